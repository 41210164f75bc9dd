"""Replicas split the clusters: who is there, and who owns what, in etcd.

Under the prefix: `replicas/<id>` = {address, weight, secret} and `clusters/<key>` = <id>, both under the replica's etcd
lease; `clean/<key>` says that the last owner left with nothing in flight. A cluster's fencing token is the revision at
which its owner took it. A replica believes in its lease from the moment it *sent* the last renewal that was answered,
so it stops before etcd lets the others have its clusters; whoever follows then waits as long as workers' leases last.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol
from urllib.parse import quote, unquote

import msgspec

from services.common.etcd import (
    PUT,
    Etcd,
    EtcdError,
    EtcdUnavailable,
    KeyValue,
    LeaseGone,
    compare,
    op_delete,
    op_put,
)
from services.common.tasks import Backoff, Tasks
from services.reconciler.work import ring
from services.reconciler.work.mapping import HOST
from services.reconciler.work.ownership import Owner

log = logging.getLogger(__name__)

RELEASE_LIMIT = 30.0
"""Seconds for which a cluster that is to move waits for what is in flight; after that its leases are called off."""
AGAIN_AFTER = 0.5
"""Seconds until a cluster is tried again that etcd did not answer for."""
HOST_KEY = "host"
MEMBER_KEY = "member/"


class Record(msgspec.Struct, frozen=True):
    """What a replica says of itself."""

    address: str
    weight: float
    secret: str


class Releaser(Owner, Protocol):
    """An owner that can let a cluster go in order."""

    async def release(self, cluster: str, limit: float) -> bool:
        """Hand out nothing more of it, wait until nothing is in flight; False when that takes longer than `limit`."""


Watcher = Callable[[Mapping[str, Record]], None]


class Replicas:
    """This replica among the others. `run` until cancelled; `valid` must be asked before anything is handed out."""

    def __init__(
        self, etcd: Etcd, prefix: str, replica: str, record: Callable[[], Record], owner: Releaser, *, ttl: int, lease: float,
        sticky: Iterable[str] = (HOST,),
    ) -> None:  # fmt: skip
        self._etcd = etcd
        self._prefix = prefix.rstrip("/") + "/"
        self.replica = replica
        self._record = record
        self._owner = owner
        self._ttl = ttl
        self._lease = lease
        self._sticky = set(sticky)
        """Clusters that stay where they are as long as their replica lives."""
        self._wanted: set[str] | None = None
        self._fences: dict[str, int] = {}
        """Clusters of this replica."""
        self._releasing: set[str] = set()
        self._leaving: set[str] = set()
        """Clusters that are not ours any more, while etcd has not been told yet."""
        self._dirty = asyncio.Event()
        self._valid_until = 0.0
        self.records: dict[str, Record] = {}
        self.owners: dict[str, str] = {}
        self.watchers: list[Watcher] = []
        self._stopped = False

    # What others ask.

    def valid(self) -> bool:
        """Whether this replica's lease holds for sure."""
        return time.monotonic() < self._valid_until

    def want(self, clusters: Iterable[str]) -> None:
        """See Ownership."""
        self._wanted = set(clusters)
        self._dirty.set()

    # Its life.

    async def run(self) -> None:
        """Take part, again and again, until cancelled."""
        backoff = Backoff(initial=0.1, maximum=2.0)
        while not self._stopped:
            try:
                await self._take_part(backoff)
            except EtcdError as error:
                log.warning("replica %s: %s", self.replica, error)
            await backoff.wait()

    async def _take_part(self, backoff: Backoff) -> None:
        """One etcd lease long."""
        sent = time.monotonic()
        lease = await self._etcd.lease_grant(self._ttl)
        self._believe(sent)
        tasks = Tasks(f"replica {self.replica}")
        try:
            await self._etcd.put(self._replica_key(self.replica), msgspec.json.encode(self._record()), lease)
            revision = await self._read()
            backoff.reset()
            log.info("replica %s takes part, %d there", self.replica, len(self.records))
            ends = [
                tasks.spawn(self._renew(lease), "renew"), tasks.spawn(self._watch(revision + 1), "watch"),
                tasks.spawn(self._settle(lease, tasks), "settle"), tasks.spawn(self._expire(), "expire"),
            ]  # fmt: skip
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            # First of all: what we hand out after others have our clusters would be handed out twice.
            self._lapse()
            await asyncio.shield(tasks.close())
            with contextlib.suppress(EtcdError):
                # What we still hold others may have now, unless etcd is away: then it ends by itself.
                await self._etcd.lease_revoke(lease)

    async def stop(self) -> None:
        """Leave in order: release what is idle as such. The task of `run` is cancelled by its owner."""
        self._stopped = True
        for cluster in list(self._fences):
            idle = await self._owner.release(cluster, 0)
            fence = self._fences.pop(cluster, None)
            if fence is None:
                continue  # our lease ended meanwhile: it is anybody's
            self._owner.lost(cluster)
            with contextlib.suppress(EtcdError):
                await self._give_up(cluster, fence, clean=idle)

    def _believe(self, sent: float) -> None:
        # A tenth is for clocks that run differently, and for what is on its way.
        self._valid_until = sent + self._ttl * 0.9

    def _lapse(self) -> None:
        """Own nothing any more."""
        self._valid_until = 0.0
        for cluster in list(self._fences):
            del self._fences[cluster]
            self._owner.lost(cluster)
        self._releasing.clear()
        self.records.clear()
        self.owners.clear()
        self._tell()

    async def _renew(self, lease: int) -> None:
        while True:
            await asyncio.sleep(self._ttl / 4)
            sent = time.monotonic()
            try:
                await self._etcd.lease_keepalive(lease)
            except LeaseGone:
                raise
            except EtcdError as error:
                # The lease may well hold; `_expire` says when it does not for sure.
                log.warning("replica %s: not renewed: %s", self.replica, error)
                continue
            self._believe(sent)

    async def _expire(self) -> None:
        while True:
            left = self._valid_until - time.monotonic()
            if left <= 0:
                break
            await asyncio.sleep(left)
        log.warning("replica %s: its lease could not be renewed in time: it owns nothing now", self.replica)

    # What etcd says.

    async def _read(self) -> int:
        self.records.clear()
        self.owners.clear()
        result = await self._etcd.range(self._prefix.encode(), prefix=True)
        for kv in result.kvs:
            self._note(kv.key, kv)
        # Not one by one: who is not told of seems to be gone.
        self._tell()
        return result.revision

    async def _watch(self, revision: int) -> None:
        async with contextlib.aclosing(
            self._etcd.watch(self._prefix.encode(), prefix=True, start_revision=revision)
        ) as batches:
            async for batch in batches:
                for event in batch.events:
                    self._note(event.kv.key, event.kv if event.type == PUT else None)
                if batch.events:
                    self._tell()
                    self._dirty.set()

    def _note(self, raw: bytes, kv: KeyValue | None) -> None:
        kind, _, name = raw.decode().removeprefix(self._prefix).partition("/")
        if kind == "replicas":
            if kv is None:
                self.records.pop(name, None)
            else:
                self.records[name] = msgspec.json.decode(kv.value, type=Record)
        elif kind == "clusters":
            cluster = _cluster(name)
            holder = kv.value.decode() if kv is not None else ""
            if holder:
                self.owners[cluster] = holder
            else:
                self.owners.pop(cluster, None)
            if holder != self.replica:
                self._owner.moved(cluster, holder)

    def _tell(self) -> None:
        for watcher in self.watchers:
            watcher(self.records)

    # What follows.

    async def _settle(self, lease: int, tasks: Tasks) -> None:
        """Take what is this replica's and free; let go what is another's."""
        self._dirty.set()
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            if self._wanted is None or self._stopped:
                continue
            for cluster in [cluster for cluster in self._fences if cluster not in self._wanted]:
                self._owner.lost(cluster)
                tasks.spawn(self._leave(cluster, self._fences.pop(cluster), clean=False), f"leave {cluster or 'host'}")
            for cluster in sorted(self._wanted):
                mine = self._should_have(cluster) == self.replica
                if mine and self._may_take(cluster):
                    await self._try_to_take(cluster, lease)
                elif not mine and cluster in self._fences and cluster not in self._releasing:
                    self._releasing.add(cluster)
                    tasks.spawn(self._release(cluster), f"release {cluster or 'host'}")

    def _should_have(self, cluster: str) -> str:
        if cluster in self._sticky and (holder := self.owners.get(cluster)) in self.records and holder:
            return holder
        return ring.owner(cluster, {name: record.weight for name, record in self.records.items()})

    def _may_take(self, cluster: str) -> bool:
        """Whether it is nobody's; what etcd says is ours may be so by a transaction whose answer was lost."""
        free = self.owners.get(cluster, self.replica) == self.replica
        return free and cluster not in self._fences and cluster not in self._leaving

    async def _try_to_take(self, cluster: str, lease: int) -> None:
        try:
            await self._take(cluster, lease)
        except EtcdUnavailable as error:
            # One answer that is late is no reason to drop all clusters: the lease says when they are not ours.
            log.warning("replica %s: %s not taken yet: %s", self.replica, cluster or "the host", error)
            asyncio.get_running_loop().call_later(AGAIN_AFTER, self._dirty.set)

    async def _take(self, cluster: str, lease: int) -> None:
        key, clean = self._cluster_key(cluster), self._clean_key(cluster)
        kv = await self._etcd.get(key)
        if kv is not None:
            # Another's, or ours under an earlier lease: the watch says when it is free.
            if kv.value == self.replica.encode() and kv.lease == lease:
                self._gain(cluster, kv.create_revision, clean=False)
            return
        mark = await self._etcd.get(clean)
        free = [compare(key, "version", "=", 0), compare(clean, "version", "!=" if mark else "=", 0)]
        result = await self._etcd.txn(free, [op_put(key, self.replica.encode(), lease), op_delete(clean)])
        # Else somebody was faster: the watch says who.
        if result.succeeded:
            self._gain(cluster, result.revision, clean=bool(mark))

    def _gain(self, cluster: str, fence: int, *, clean: bool) -> None:
        if self._wanted is None or cluster not in self._wanted or not self.valid():
            self._dirty.set()
        self._fences[cluster] = fence
        self.owners[cluster] = self.replica
        log.info("replica %s: has %s now%s", self.replica, cluster or "the host", "" if clean else ", after a lease")
        self._owner.gained(cluster, fence, 0.0 if clean else time.monotonic() + self._lease)

    async def _release(self, cluster: str) -> None:
        """Move a cluster in order: what runs may end, nothing new is handed out."""
        idle = await self._owner.release(cluster, RELEASE_LIMIT)
        self._releasing.discard(cluster)
        if cluster not in self._fences:
            return
        self._owner.lost(cluster)
        await self._leave(cluster, self._fences.pop(cluster), clean=idle)

    async def _leave(self, cluster: str, fence: int, *, clean: bool) -> None:
        """Let others have a cluster: told until etcd has it, for as long as our lease lives nobody else could."""
        self._leaving.add(cluster)
        backoff = Backoff(initial=0.1, maximum=2.0)
        try:
            while True:
                try:
                    await self._give_up(cluster, fence, clean=clean)
                    return
                except EtcdError as error:
                    log.warning("replica %s: %s not given up yet: %s", self.replica, cluster or "the host", error)
                await backoff.wait()
        finally:
            self._leaving.discard(cluster)
            self._dirty.set()

    async def _give_up(self, cluster: str, fence: int, *, clean: bool) -> None:
        """May be done twice: what was taken anew since has another revision."""
        key = self._cluster_key(cluster)
        success = [op_delete(key)] + ([op_put(self._clean_key(cluster), self.replica.encode())] if clean else [])
        await self._etcd.txn([compare(key, "create", "=", fence)], success)

    def _replica_key(self, name: str) -> bytes:
        return f"{self._prefix}replicas/{name}".encode()

    def _cluster_key(self, cluster: str) -> bytes:
        return f"{self._prefix}clusters/{_name(cluster)}".encode()

    def _clean_key(self, cluster: str) -> bytes:
        return f"{self._prefix}clean/{_name(cluster)}".encode()


def _name(cluster: str) -> str:
    return HOST_KEY if cluster == HOST else MEMBER_KEY + quote(cluster, safe="")


def _cluster(name: str) -> str:
    return HOST if name == HOST_KEY else unquote(name.removeprefix(MEMBER_KEY))


def new_secret() -> str:
    """What a replica's callers must show."""
    return secrets.token_urlsafe(16)
