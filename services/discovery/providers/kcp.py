"""Provider `kcp`: the workspaces below one, each served as a whole API at `<URL>/clusters/<path>`.

Addresses are made of the configured URL and the path, never of what an object says: our credentials go nowhere else.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.common.kube.client import KubeClient
from services.common.kube.informer import Informer
from services.common.kube.resource import Resource
from services.common.kube.shape import Shape, shaped
from services.common.tasks import Tasks
from services.discovery.config import KcpProvider
from services.discovery.names import Candidate, NamedCandidate
from services.discovery.providers.objects import Access, ObjectProvider
from services.discovery.providers.own import REREAD, OwnAccess

GROUP, VERSION = "tenancy.kcp.io", "v1alpha1"
IDENTITY = "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster"
"""Workspaces have no kube-system; which one answers is told by their LogicalCluster."""
LABEL = "reclock.dev/workspace"
FIRST = 5.0
"""Seconds that a new workspace's own children are waited for."""
_SERVED = re.compile(r"/clusters/[^/]*/*$")
_SEGMENT = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Workspaces(Resource):
    """Workspaces that a workspace has: `at` is its URL's path."""

    at: str = ""

    def path(self, ns: str | None = None, name: str | None = None, sub: str | None = None) -> str:
        """Return the URL path below the server."""
        return f"{self.at}{Resource.path(self, ns, name, sub)}"


class KcpTask(ObjectProvider):
    """`id`, `run`: see base.Provider. A workspace that is gone, or deleted, is a cluster that left."""

    where = "Workspaces"
    reread = REREAD

    def __init__(
        self, ident: str, settings: KcpProvider, host: KubeClient | None,
        holders: Callable[[], Mapping[str, str]],
    ) -> None:  # fmt: skip
        # A client of its own in any case: the server of the kubeconfig may be one workspace's, paths start above it.
        self._path = Path(settings.kubeconfig) if host is None or settings.kubeconfig else host.source or Path()
        super().__init__(ident, str(self._path), None, holders)
        self._root, self._depth = settings.root, settings.depth
        self._own = OwnAccess()
        self._tasks = Tasks(ident)
        self._followed: dict[str, tuple[Informer, asyncio.Task[None] | None]] = {}
        """Path -> the informer of its children; the root's task is not ours."""

    async def watches(self, client: KubeClient) -> Sequence[Informer]:
        """Follow the root's children; theirs are followed as they come."""
        await self._access_again(client)
        root = self._informer(client, self._root)
        self._followed = {self._root: (root, None)}
        return [root]

    async def _access_again(self, client: KubeClient) -> None:
        """Take over what the file has now."""
        before = self._own.kubeconfig
        await self._own.read(self._path)
        now = self._own.kubeconfig
        if now is not None and now != before:
            server = _SERVED.sub("", str(now["clusters"][0]["cluster"]["server"]))
            await client.reconnect(shaped(now, Shape(), server))

    def _informer(self, client: KubeClient, path: str) -> Informer:
        resource = Workspaces(GROUP, VERSION, "workspaces", "Workspace", False, f"/clusters/{path}")
        return Informer(client, resource, handler=self.workspace_changed)

    def workspace_changed(self, kind: str, obj: dict[str, Any], old: dict[str, Any] | None) -> None:
        """Conditions change often; whether it can be used counts."""
        if kind != "MODIFIED" or old is None or usable(obj) != usable(old):
            self.changed(kind, obj, old)

    async def read(self, client: KubeClient) -> Mapping[Candidate, Access]:
        """Walk the tree; follow the children of workspaces that are new, stop at those that are gone."""
        await self._access_again(client)
        found: dict[Candidate, Access] = {}
        level = [self._root]
        live = {self._root}
        for depth in range(self._depth):
            children = [child for path in level for child in self._children(path)]
            for path, uid in children:
                found[NamedCandidate("Workspace", path)] = self._access(client, path, uid)
            level = [path for path, _ in children]
            if depth + 1 < self._depth:
                await self._follow_all(client, level)
                live.update(level)
        for path in set(self._followed) - live:
            self._drop(path)
        return found

    def _children(self, path: str) -> list[tuple[str, str]]:
        informer, _ = self._followed[path]
        return [
            (f"{path}:{name}", str(obj["metadata"].get("uid", "")))
            for (_, name), obj in sorted(informer.store.items()) if usable(obj)
        ]  # fmt: skip

    async def _follow_all(self, client: KubeClient, paths: Sequence[str]) -> None:
        fresh = [path for path in paths if path not in self._followed]
        for path in fresh:
            informer = self._informer(client, path)
            self._followed[path] = (informer, self._tasks.spawn(informer.run(), path))
        if fresh:
            waits = [asyncio.ensure_future(self._followed[path][0].synced.wait()) for path in fresh]
            await asyncio.wait(waits, timeout=FIRST)
            for wait in waits:
                wait.cancel()

    def _drop(self, path: str) -> None:
        _, task = self._followed.pop(path)
        if task is not None:
            task.cancel()

    def unread(self) -> Sequence[tuple[str, str]]:
        """Workspaces whose children could not be listed yet."""
        late = [(path, one) for path, (one, _) in self._followed.items() if not one.synced.is_set()]
        self._retry = self._retry or bool(late)
        return [(f"Workspace {path}:", one.last_error or "could not be listed yet") for path, one in late]

    def _access(self, client: KubeClient, path: str, uid: str) -> Access:
        own = self._own
        if own.kubeconfig is None:
            return Access(uid, "", None, own.problem)
        kubeconfig = shaped(own.kubeconfig, Shape(identity=IDENTITY), f"{client.server}/clusters/{path}")
        return Access(uid, "", kubeconfig, own.problem, {LABEL: path.replace(":", ".")[-63:].lstrip(".-")})

    async def stop(self) -> None:
        """Stop following."""
        await self._tasks.close()


def usable(workspace: Mapping[str, Any]) -> bool:
    """Whether a workspace serves its API: it is initialised, and not being deleted."""
    metadata, status = workspace["metadata"], workspace.get("status") or {}
    named = _SEGMENT.fullmatch(str(metadata.get("name", ""))) is not None
    return named and status.get("phase") == "Ready" and not metadata.get("deletionTimestamp")
