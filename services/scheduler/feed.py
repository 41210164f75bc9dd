"""Reads one member's nodes and pods into a `MemberState`, and looks for foreign objects of a name.

Objects are pruned as they come: of a pod only its key, uid and version stay in the informer's copy.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from services.common.errors import MemberUnreachable, StatusError
from services.common.kube.client import KubeClient
from services.common.kube.informer import Informer
from services.common.kube.resource import NODES, PODS, Resource
from services.common.tasks import Tasks
from services.scheduler.ledger import OwnerKey
from services.scheduler.member import MemberState

log = logging.getLogger(__name__)

ORIGIN_LABEL = "reclock.dev/origin"
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
CLASH_LIMIT = 3.0
HUNG_FOR = 10.0
"""Seconds for which a member that did not answer is not asked again."""
STALE_AFTER = 30.0
"""Seconds for which nodes and pods may go unfollowed: a restart of the member's API server is no news."""
KINDS: dict[str, Resource] = {
    "Deployment": Resource("apps", "v1", "deployments", "Deployment"),
    "ReplicaSet": Resource("apps", "v1", "replicasets", "ReplicaSet"),
    "StatefulSet": Resource("apps", "v1", "statefulsets", "StatefulSet"),
    "DaemonSet": Resource("apps", "v1", "daemonsets", "DaemonSet"),
    "Job": Resource("batch", "v1", "jobs", "Job"),
}


class MemberFeed:
    """Informers on one member; `problem` says what keeps its state from being used.

    `fleet_id` is the origin label of this fleet's copies, for those who do not say for which fleet they ask.
    """

    def __init__(self, client: KubeClient, state: MemberState, fleet_id: Callable[[], str] = lambda: "") -> None:
        self.client, self.state = client, state
        self._fleet_id = fleet_id
        self._nodes = Informer(client, NODES, handler=self._node)
        self._pods = Informer(client, PODS, handler=self._pod)
        self._hung_until = 0.0
        self._broken_since: float | None = None

    def start(self, tasks: Tasks) -> None:
        """Follow the member from now on."""
        tasks.spawn(self._nodes.run(), f"nodes of {self.state.cluster}")
        tasks.spawn(self._pods.run(), f"pods of {self.state.cluster}")

    @property
    def synced(self) -> bool:
        """Both lists were read once."""
        return self._nodes.synced.is_set() and self._pods.synced.is_set()

    async def wait_synced(self) -> None:
        """Wait for both."""
        await self._nodes.synced.wait()
        await self._pods.synced.wait()

    def problem(self) -> str:
        """Why nothing can be admitted now; "" when it can."""
        if not self.synced:
            error = self._nodes.last_error or self._pods.last_error
            return f"its nodes and pods are not read yet{': ' + error if error else ''}"
        if time.monotonic() < self._hung_until:
            return "it did not answer a moment ago"
        return self._stale()

    def _stale(self) -> str:
        """Why what is known is of a while ago, and says nothing about room now; "" while it is fresh."""
        error, now = self._nodes.last_error or self._pods.last_error, time.monotonic()
        if not error:
            self._broken_since = None
            return ""
        self._broken_since = now if self._broken_since is None else self._broken_since
        if now < self._broken_since + STALE_AFTER:
            return ""
        return f"its nodes and pods cannot be followed any more: {error}"

    def _node(self, kind: str, obj: dict[str, Any], old: dict[str, Any] | None) -> None:
        if kind == "DELETED":
            self.state.remove_node(obj["metadata"]["name"])
            return
        try:
            self.state.upsert_node(obj)
        except ValueError as error:
            log.warning("%s: node %s is not used: %s", self.state.cluster, obj["metadata"]["name"], error)
        prune(obj)

    def _pod(self, kind: str, obj: dict[str, Any], old: dict[str, Any] | None) -> None:
        if kind == "DELETED":
            self.state.remove_pod(obj["metadata"]["uid"])
            return
        self.state.upsert_pod(obj)
        prune(obj)

    async def clash(self, owner: OwnerKey, fleet_id: str = "") -> str:
        """Say which object that is foreign to the fleet has the owner's kind and name; "" when none has."""
        found = await self._there(owner)
        origin = (found or {}).get(ORIGIN_LABEL)
        mine = fleet_id or self._fleet_id()
        if found is None or (origin is not None and mine in ("", origin)):
            return ""
        return f"{owner.kind} {owner.namespace}/{owner.name} exists there and is not from this fleet"

    async def _there(self, owner: OwnerKey) -> dict[str, str] | None:
        """Labels of the object of the owner's kind and name; None when there is none."""
        resource = KINDS.get(owner.kind)
        if resource is None:
            return None
        path = resource.path(owner.namespace, owner.name)
        try:
            async with asyncio.timeout(CLASH_LIMIT):
                response = await self.client.request(
                    "GET", path, headers={"Accept": METADATA_ONLY}, timeout=CLASH_LIMIT
                )
        except TimeoutError as error:
            self._hung_until = time.monotonic() + HUNG_FOR
            raise MemberUnreachable(f"did not answer within {CLASH_LIMIT:g} s") from error
        except StatusError as error:
            if error.code == 404:
                return None
            if isinstance(error, MemberUnreachable):
                self._hung_until = time.monotonic() + HUNG_FOR
            raise
        return (response.json().get("metadata") or {}).get("labels") or {}


def prune(obj: dict[str, Any]) -> None:
    """Leave only what the informer itself compares."""
    metadata = obj["metadata"]
    kept = {name: metadata[name] for name in ("name", "namespace", "uid", "resourceVersion") if name in metadata}
    obj.clear()
    obj["metadata"] = kept
