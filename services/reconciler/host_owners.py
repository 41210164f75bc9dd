"""Owners on the host of objects on members (case 2): found by kind, followed as metadata, asked when in doubt."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Literal

from services.common.errors import StatusError
from services.common.kube.client import KubeClient
from services.common.kube.informer import Informer
from services.common.kube.resource import Resource
from services.common.tasks import Tasks
from services.reconciler.names import Obj
from services.reconciler.objects import deleting, propagation, uid
from services.reconciler.owned import Owner

log = logging.getLogger(__name__)

State = Literal["alive", "gone", "orphaned", "unknown"]
UIDS_MAX = 10_000


class HostOwners:
    """One metadata informer per kind that owns something on a member; started when first named."""

    def __init__(self, client: KubeClient, tasks: Tasks, gone: Callable[[str], None]) -> None:
        self._client = client
        self._tasks = tasks
        self._gone = gone
        self._resources: dict[tuple[str, str], Resource] = {}
        self._informers: dict[tuple[str, str], Informer] = {}
        self._running: dict[tuple[str, str], list[asyncio.Task[None]]] = {}
        self._orphaned: dict[str, None] = {}

    async def resource(self, api_version: str, kind: str) -> Resource | None:
        """The host's resource of a kind; in another version where that one has ended, None where it serves none."""
        found = self._resources.get((api_version, kind))
        if found is not None:
            return found
        group, _, version = api_version.rpartition("/")
        found = await self._served(group, version, kind)
        if found is None and group:
            for entry in (await self._document(f"/apis/{group}")).get("versions") or []:
                found = found or await self._served(group, entry["version"], kind)
        if found is not None:
            self._resources[api_version, kind] = found
        return found

    async def _served(self, group: str, version: str, kind: str) -> Resource | None:
        served = await self._document(f"/apis/{group}/{version}" if group else f"/api/{version}")
        for entry in served.get("resources") or []:
            if entry["kind"] == kind and "/" not in entry["name"]:
                return Resource(group, version, entry["name"], kind, bool(entry["namespaced"]))
        return None

    async def _document(self, path: str) -> dict[str, Any]:
        """A discovery document; {} for 404."""
        try:
            return dict((await self._client.request("GET", path, timeout=10)).json())
        except StatusError as error:
            if error.code != 404:
                raise
            return {}

    async def state(self, owner: Owner, namespace: str) -> State:
        """Whether an owner is there. `orphaned`: its deletion asked to leave what it owns. O(1) once followed."""
        resource = await self.resource(owner.api_version, owner.kind)
        if resource is None:
            # A CRD that was removed took its objects with it; one that is not there yet has none either.
            return "gone"
        informer = self._follow(owner, resource)
        if owner.uid in self._orphaned:
            return "orphaned"
        if not informer.synced.is_set():
            return "unknown"
        scope = namespace if resource.namespaced else ""
        seen = informer.store.get((scope, owner.name))
        if seen is not None and uid(seen) == owner.uid:
            return self._going(seen)
        return await self._ask(owner, resource, scope)

    async def _ask(self, owner: Owner, resource: Resource, namespace: str) -> State:
        """The cache may be behind: nothing is deleted on its word alone."""
        try:
            there = await self._client.get(resource, namespace or None, owner.name)
        except StatusError as error:
            if error.code != 404:
                raise
            if not (error.details or {}).get("name"):
                # Not the object is missing but its path: the version may have ended, and the object be there in another.
                self._unfollow(owner)
                return "unknown"
            return "gone"
        return self._going(there) if uid(there) == owner.uid else "gone"

    def _going(self, seen: Obj) -> State:
        if not deleting(seen):
            return "alive"
        said = propagation(seen)
        if said == "Orphan":
            return "orphaned"
        # A foreground deletion waits for what blocks it: what it owns goes now.
        return "gone" if said == "Foreground" else "alive"

    def _follow(self, owner: Owner, resource: Resource) -> Informer:
        key = (owner.api_version, owner.kind)
        if key not in self._informers:
            informer = Informer(
                self._client, resource, metadata_only=True, handler=self._handle
            )
            self._informers[key] = informer
            self._running[key] = [
                self._tasks.spawn(informer.run(), f"owners {resource.key}", root=True),
                self._tasks.spawn(self._when_synced(informer), f"owners synced {resource.key}"),
            ]
        return self._informers[key]

    def _unfollow(self, owner: Owner) -> None:
        """Look the kind up anew when it is asked about next."""
        key = (owner.api_version, owner.kind)
        self._resources.pop(key, None)
        self._informers.pop(key, None)
        for task in self._running.pop(key, ()):
            task.cancel()

    async def _when_synced(self, informer: Informer) -> None:
        await informer.synced.wait()
        self._gone("")

    def _handle(self, event: str, obj: Obj, old: Obj | None) -> None:
        if deleting(obj) and propagation(obj) == "Orphan":
            self._orphaned[uid(obj)] = None
            while len(self._orphaned) > UIDS_MAX:
                del self._orphaned[next(iter(self._orphaned))]
        if event == "DELETED" or deleting(obj):
            self._gone(uid(obj))
