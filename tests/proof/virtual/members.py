"""Simulated members, what became of them as plain data (the model of the fleet), and each replica's way to them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

from deploy.local.sim import Cluster, WatchResponse, World
from deploy.local.sim import Response as Answer
from deploy.local.sim.errors import Refused
from deploy.local.sim.objects import loaded, make_state
from deploy.local.sim.store import Backup, Change, Collection
from services.common.errors import MemberUnreachable
from services.common.kube.objects import Query
from tests.proof.history import Key, MemberRecord, MemberState
from tests.sim_client import SimClient

STAMP = "torture/stamp"
PODS = "pods"
NAMESPACE = "default"
GROUPS = ("a", "b")
LATENCY = (0.0, 0.0005, 0.002)
NOT_FOUND = b'{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"message":"no such type"}'


class Site:
    """One member: a simulated cluster, and what the proof knows of it. `down`: nobody reaches it."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.cluster: Cluster = world.add(name, role="none", managed_fields=False)
        self.record = MemberRecord(name)
        self.live: dict[Key, tuple[str, str]] = {}
        """The model: key -> (uid, stamp)."""
        self.down = self.lacks = self.drips = False
        self.slow = 0.0
        self.lives = 1
        self.before = ("", -1)
        """(uid, count) of the incarnation before this one, as the clock had it."""
        self.stamps = 0
        self.paths: list[Path] = []
        self.backups: list[Backup] = []
        self._hear()

    def _hear(self) -> None:
        self.cluster.core.store.listeners.append(self._changed)

    def _changed(self, collection: Collection, change: Change) -> None:
        if collection.name != PODS:
            return
        meta = change.state.object()["metadata"]
        key, stamp = (meta["namespace"], meta["name"]), meta.get("annotations", {}).get(STAMP, "")
        gone = change.kind == "DELETED"
        self.record.states.append(MemberState(change.version, *key, meta["uid"], stamp, gone))
        if gone:
            self.live.pop(key, None)
        else:
            self.live[key] = (meta["uid"], stamp)

    # Changes.

    def _stamp(self) -> str:
        self.stamps += 1
        return f"{self.name}.{self.lives}.{self.stamps}"

    def put(self, name: str, group: str, node: str = "") -> None:
        """Create or change a pod."""
        stamp = self._stamp()
        if (NAMESPACE, name) in self.live:
            self.cluster.patch(PODS, NAMESPACE, name, {"metadata": {"annotations": {STAMP: stamp}, "labels": {"group": group}}})
        else:
            self.cluster.create(pod(name, stamp, group))

    def delete(self, name: str) -> None:
        if (NAMESPACE, name) in self.live:
            self.cluster.delete(PODS, NAMESPACE, name)

    def expire(self, names: list[str]) -> None:
        """Pods end together, at one version, as what an expired lease held."""
        store, type_ = self.cluster.core.store, self.cluster.type(PODS)
        collection, version = self.cluster.core.collection(type_), self.cluster.revision + 1
        for name in names:
            state = collection.live.get(f"{NAMESPACE}/{name}")
            if state is not None:
                store.remove(collection, make_state(type_, loaded(type_, state), version))

    def tick(self, revisions: int) -> None:
        self.cluster.core.store.tick(revisions)
        self.cluster.bookmark()

    def compact(self) -> None:
        self.record.disturbed = True
        self.cluster.compact()

    def restart(self) -> None:
        """The API server restarts: connections break in the middle of whatever they carry."""
        self.record.disturbed = True
        for path in self.paths:
            path.break_streams()
        self.cluster.restart()

    def backup(self) -> None:
        self.backups = [*self.backups[-2:], self.cluster.backup()]

    def restore(self, backup: Backup) -> None:
        """Back to a backup: versions run backwards and repeat."""
        for path in self.paths:
            path.break_streams()
        self.cluster.restore(backup)
        self._again()

    def reincarnate(self) -> None:
        for path in self.paths:
            path.break_streams()
        self.cluster.reincarnate()
        self.backups.clear()
        self._again()

    def _again(self) -> None:
        self.lives += 1
        self.record.lives = self.lives
        self.record.disturbed = self.record.returns = True
        self._hear()
        self.live = {}
        for obj in self.cluster.objects(PODS):
            meta = obj["metadata"]
            self.live[meta["namespace"], meta["name"]] = (meta["uid"], meta["annotations"][STAMP])


def pod(name: str, stamp: str, group: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": NAMESPACE, "labels": {"group": group}, "annotations": {STAMP: stamp},
        },
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }  # fmt: skip


class Path(SimClient):
    """One replica's way to a member. `cut`: this replica alone does not reach it."""

    def __init__(self, site: Site, source: random.Random) -> None:
        super().__init__(site.cluster, site.name)
        self.site, self._random = site, source
        self.cut = self.dead = False
        self._watches: list[Any] = []
        site.paths.append(self)

    def break_streams(self) -> None:
        """What was sent and not read yet is lost."""
        for watch in self._watches:
            watch.events.clear()
            watch.close("dropped")
        self._watches.clear()

    def hang_streams(self) -> None:
        """Those that are open stay so, and bring nothing any more. States may be missed: of what hangs again right after it
        was opened anew, the object itself is asked for."""
        self.site.record.disturbed = True
        for watch in self._watches:
            watch.hold()

    async def _travel(self) -> None:
        await asyncio.sleep(self._random.choice(LATENCY) + self.site.slow * self._random.random())
        if self.site.down or self.cut:
            raise MemberUnreachable(f"{self.label}: no route")
        if self.dead:
            await asyncio.Event().wait()

    async def _ask(
        self, method: str, path: str, query: Query, body: bytes | None, headers: Mapping[str, str] | None
    ) -> tuple[Any, Any]:
        await self._travel()
        if self.site.lacks and path.startswith("/api/v1") and (path == "/api/v1" or PODS in path):
            if path == "/api/v1":
                return Answer(200, b'{"kind":"APIResourceList","resources":[]}'), None
            return Answer(404, NOT_FOUND), None
        answer, rule = await super()._ask(method, path, query, body, headers)
        await self._travel()
        if isinstance(answer, WatchResponse):
            self._watches = [one for one in self._watches if not one.closed]
            self._watches.append(answer.watch)
            if self.site.drips:
                _drip(answer.watch)
        return answer, rule


def _drip(watch: Any) -> None:
    """One event a read: the connection may break between two of one version."""
    take = watch.take
    watch.take = lambda limit=1: take(1)


__all__ = ["GROUPS", "NAMESPACE", "PODS", "STAMP", "Path", "Refused", "Site", "pod"]
