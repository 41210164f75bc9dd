"""The fleet as discovery streams it: one `Member` per cluster, whose client stays valid over changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import grpc

from reclock.discovery.v1 import discovery_pb2, discovery_pb2_grpc
from services.common.config import TLS
from services.common.errors import from_rpc
from services.common.fleet_file import FleetFile
from services.common.grpc import channel
from services.common.kube.client import KubeClient
from services.common.kube.kubeconfig import KubeconfigError
from services.common.tasks import Backoff

log = logging.getLogger(__name__)

SILENCE = 60.0
"""Seconds without an event after which the stream is opened anew; discovery repeats its mark each 15 s."""


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a cluster, as of a node."""

    key: str
    effect: str
    value: str = ""
    added_at: datetime | None = None


@dataclass(eq=False, slots=True)
class Member:
    """One cluster. The object stays the same until the cluster leaves; its fields change over updates.

    `client` too stays the same: changed credentials or another server are taken over in place. It is None
    only for watchers without access.
    """

    name: str
    uid: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    kube_version: str = ""
    server: str = ""
    provider: str = ""
    reachable: bool = False
    ready: bool = False
    reason: str = ""
    """Why it is not reachable or not ready; for people."""
    unreachable_since: datetime | None = None
    forgotten: bool = False
    leaving_since: datetime | None = None
    """Since when no provider has it; only watchers `with_leaving` are told, for others it has left."""
    digest: str = ""
    version: int = 0
    client: KubeClient = None  # type: ignore[assignment]

    @property
    def incarnation(self) -> str:
        """Uid of kube-system: another one under the same name is another cluster. "" until reached once."""
        return self.uid

    def same_as(self, other: Member) -> bool:
        """Whether nothing but the record's version differs (a restarted discovery counts anew)."""
        return all(getattr(self, n) == getattr(other, n) for n in Member.__slots__ if n != "version")

    def snapshot(self) -> Member:
        """A copy that keeps today's values (sharing the client)."""
        names = Member.__slots__
        return Member(**{name: getattr(self, name) for name in names})


class FleetListener(Protocol):
    """Called in stream order by the watcher's task, one call at a time; must not wait for clusters."""

    async def engaged(self, member: Member) -> None:
        """The cluster is part of the fleet now; it may be unreachable."""

    async def updated(self, member: Member, old: Member) -> None:
        """Fields of `member` changed; `old` holds the values before."""

    async def disengaged(self, member: Member) -> None:
        """It left the fleet; its client is closed after this returns."""


def _stamp(message: Any, name: str) -> datetime | None:
    return getattr(message, name).ToDatetime(tzinfo=UTC) if message.HasField(name) else None


def _taint(taint: Any) -> Taint:
    return Taint(taint.key, taint.effect, taint.value, _stamp(taint, "added_at"))


def apply_record(member: Member, cluster: Any) -> None:
    """Take the fields of a discovery_pb2.Cluster over."""
    conditions = {condition.type: condition for condition in cluster.conditions}
    reachable, ready = conditions.get("Reachable"), conditions.get("Ready")
    member.uid = cluster.uid
    member.labels = dict(cluster.labels)
    member.annotations = dict(cluster.annotations)
    member.taints = tuple(_taint(taint) for taint in cluster.taints)
    member.kube_version = cluster.kube_version
    member.server = cluster.server
    member.provider = cluster.provider
    member.reachable = reachable is not None and reachable.status == "True"
    member.ready = ready is not None and ready.status == "True"
    failing = [c.message or c.reason for c in (reachable, ready) if c is not None and c.status != "True"]
    member.reason = failing[0] if failing else ""
    member.unreachable_since = _stamp(cluster, "unreachable_since")
    member.forgotten = cluster.forgotten
    member.leaving_since = _stamp(cluster, "leaving_since")
    member.digest = cluster.access.digest
    member.version = cluster.version


class FleetWatcher:
    """Follows discovery and keeps its last snapshot while discovery is away.

    `synced` is set after the first complete snapshot, be it the one kept in `state_file` (credentials, mode 0600)
    before a restart. `with_leaving` follows clusters that no provider has any more until what Reclock made there is
    gone. `run` never returns; everything happens in its task.
    """

    def __init__(
        self, address: str, tls: TLS | None = None, *, user_agent: str = "reclock", with_access: bool = True,
        with_leaving: bool = False, state_file: str = "",
    ) -> None:  # fmt: skip
        self.members: dict[str, Member] = {}
        self.inaccessible: set[str] = set()
        """Clusters of the fleet that are no members yet: their credentials cannot be had, or not be used, now."""
        self.synced = asyncio.Event()
        self.last_error = ""
        """Why discovery is not followed now; "" when it is."""
        self._address, self._tls = address, tls
        self._user_agent = user_agent
        self._with_access = with_access
        self._with_leaving = with_leaving
        self._listeners: list[FleetListener] = []
        self._version = 0
        self._kept: dict[str, Any] = {}
        self._file = FleetFile(state_file, self._kept.values)

    def subscribe(self, listener: FleetListener) -> None:
        """Add a listener, before `run` starts (later ones are not told of members that are there)."""
        self._listeners.append(listener)

    def check(self) -> str | None:
        """For `Service.checks`: what is missing."""
        if self.synced.is_set():
            return None
        return self.last_error or f"no snapshot of the fleet from discovery at {self._address} yet"

    async def run(self) -> None:
        """Follow until cancelled, then close all clients."""
        backoff = Backoff(initial=0.2, maximum=5.0)
        chan = channel(self._address, self._tls)
        keeper = asyncio.create_task(self._file.run(), name="fleet/file")
        try:
            await self._restore()
            while True:
                try:
                    await self._follow(discovery_pb2_grpc.DiscoveryServiceStub(chan), backoff)
                    self._say("the stream ended")
                except grpc.aio.AioRpcError as error:
                    self._say(from_rpc(error, "discovery").message)
                except TimeoutError:
                    self._say("no sign of life")
                await backoff.wait()
        finally:
            keeper.cancel()
            await chan.close()
            await self._file.flush()
            for member in list(self.members.values()):
                if member.client is not None:
                    await member.client.close()

    async def _restore(self) -> None:
        """Take the snapshot from before the restart; an empty one says nothing."""
        for cluster in await self._file.load():
            await self._upsert(cluster)
        if self.members:
            log.info("%d clusters are known from %s", len(self.members), self._file.path)
            self.synced.set()

    def _say(self, reason: str) -> None:
        if reason != self.last_error:
            kept = f"; {len(self.members)} known clusters are kept" if self.synced.is_set() else ""
            log.warning("discovery at %s: %s%s", self._address, reason, kept)
        self.last_error = reason

    async def _follow(self, stub: Any, backoff: Backoff) -> None:
        request = discovery_pb2.WatchClustersRequest(
            resume_version=self._version, with_access=self._with_access, with_leaving=self._with_leaving
        )
        call = stub.WatchClusters(request)
        # Of a resumed stream only changes come; else what the snapshot does not name has left.
        named: set[str] | None = set()
        try:
            while True:
                async with asyncio.timeout(SILENCE):
                    event = await call.read()
                if event is grpc.aio.EOF:
                    return
                if self.last_error:
                    log.info("discovery at %s: follows again", self._address)
                self.last_error = ""
                backoff.reset()
                named = await self._event(event, named)
        finally:
            call.cancel()

    async def _event(self, event: Any, named: set[str] | None) -> set[str] | None:
        kinds = discovery_pb2.WatchClustersResponse
        if event.type == kinds.EVENT_TYPE_SYNCED:
            if named is not None and not event.resumed:
                for name in [name for name in (*self.members, *self.inaccessible) if name not in named]:
                    await self._disengage(name)
            named = None
            self._version = event.version
            self.synced.set()
            self._file.mark()
        elif event.type == kinds.EVENT_TYPE_DISENGAGED:
            await self._disengage(event.cluster.name)
        else:
            if named is not None:
                named.add(event.cluster.name)
            await self._upsert(event.cluster)
        if named is None:
            self._version = event.version
        return named

    async def _upsert(self, cluster: Any) -> None:
        member = self.members.get(cluster.name)
        # Without a digest discovery knows the cluster from before its restart, and cannot read its source now.
        accessible = not self._with_access or bool(cluster.access.digest)
        if member is None:
            member = Member(cluster.name)
            apply_record(member, cluster)
            if not accessible or (self._with_access and not await self._connect(member, cluster)):
                self.inaccessible.add(cluster.name)
                return
            self.inaccessible.discard(cluster.name)
            self.members[cluster.name] = member
            self._keep(cluster)
            await self._tell("engaged", member)
            return
        old = member.snapshot()
        if accessible and cluster.access.digest != member.digest:
            await self._reconnect(member, cluster)
        apply_record(member, cluster)
        if not accessible:
            member.digest = old.digest
        self._keep(cluster)
        if not member.same_as(old):
            await self._tell("updated", member, old)

    def _keep(self, cluster: Any) -> None:
        before = self._kept.get(cluster.name)
        if self._file.path is None or before == cluster:
            return
        if before is not None and not cluster.access.digest:
            cluster.access.CopyFrom(before.access)
        self._kept[cluster.name] = cluster
        self._file.mark()

    async def _connect(self, member: Member, cluster: Any) -> bool:
        try:
            member.client = await KubeClient.connect(
                cluster.access.kubeconfig, name=member.name, user_agent=self._user_agent
            )
        except KubeconfigError as error:
            log.error("cluster %s: its kubeconfig cannot be used: %s", member.name, error)
            return False
        return True

    async def _reconnect(self, member: Member, cluster: Any) -> None:
        try:
            await member.client.reconnect(cluster.access.kubeconfig)
        except KubeconfigError as error:
            log.error("cluster %s: its new kubeconfig cannot be used: %s", member.name, error)

    async def _disengage(self, name: str) -> None:
        self.inaccessible.discard(name)
        member = self.members.pop(name, None)
        if self._kept.pop(name, None) is not None:
            self._file.mark()
        if member is None:
            return
        await self._tell("disengaged", member)
        if member.client is not None:
            await member.client.close()

    async def _tell(self, what: str, *args: Member) -> None:
        for listener in self._listeners:
            try:
                await getattr(listener, what)(*args)
            except Exception:
                # One listener's bug must not keep the others, or later members, from being told.
                log.exception("fleet listener failed on %s of %s", what, args[0].name)
