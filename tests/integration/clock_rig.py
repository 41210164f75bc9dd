"""A clock on a real etcd with small members, for tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Self

from aetcd.rpc import rpc_pb2

from services.aggregator.clock.clock import Clock, Marker, ResourceClock
from services.aggregator.types import Aggregated
from services.common.etcd import Etcd, LeaseGone
from services.common.fleet import FleetListener, Member
from tests.integration.clock_member import FakeMember
from tests.integration.etcd_server import EtcdServer

PODS = Aggregated("pods", "", "v1", "pods", "Pod", True)
FLEET = "11111111-2222-4333-8444-555555555555"


class FakeFleet:
    """What FleetWatcher offers, filled by the test."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.inaccessible: set[str] = set()
        self.synced = asyncio.Event()
        self.listeners: list[FleetListener] = []
        self.mirrors: list[FakeFleet] = []
        """Fleets of other replicas, which hear of everything a little later."""

    def subscribe(self, listener: FleetListener) -> None:
        self.listeners.append(listener)

    async def engage(self, member: Member) -> None:
        self.members[member.name] = member
        for one in self.listeners:
            await one.engaged(member)
        for mirror in self.mirrors:
            await mirror.engage(member)

    async def disengage(self, name: str) -> None:
        member = self.members.pop(name)
        for one in self.listeners:
            await one.disengaged(member)
        for mirror in self.mirrors:
            await mirror.disengage(name)

    async def reachable(self, name: str, there: bool) -> None:
        member = self.members[name]
        old = member.snapshot()
        member.reachable = there
        for one in [one for fleet in (self, *self.mirrors) for one in fleet.listeners]:
            await one.updated(member, old)


def operations(request: Any) -> int:
    """Operations of a transaction, encoded already or not."""
    return len(rpc_pb2.TxnRequest.FromString(request.SerializeToString()).success)


async def eventually(probe: Callable[[], Any], what: str = "", timeout: float = 15) -> Any:
    """Wait until `probe` is true."""
    deadline = asyncio.get_running_loop().time() + timeout
    while True:
        found = probe()
        if found:
            return found
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"did not happen: {what or probe}")
        await asyncio.sleep(0.01)


class Rig:
    """Members outlive the clock, which can be killed and started again."""

    def __init__(self, etcd: EtcdServer, **options: Any) -> None:
        self.etcd = etcd
        self.options = options
        self.members: dict[str, FakeMember] = {}
        self.fleet = FakeFleet()
        self.clock: Clock | None = None
        self.task: asyncio.Task[None] | None = None
        self.aggregated = [PODS]
        self._client: Etcd | None = None

    async def add(self, *names: str) -> list[FakeMember]:
        """Start members and engage them."""
        out = []
        for name in names:
            one = self.members[name] = FakeMember(name)
            await one.start()
            await self.fleet.engage(one.member)
            out.append(one)
        return out

    def replica(self) -> Self:
        """Another replica over the same etcd and members; it is not started."""
        other = type(self)(self.etcd, **self.options)
        other.members, other.aggregated = self.members, self.aggregated
        other.fleet.members = dict(self.fleet.members)
        self.fleet.mirrors.append(other.fleet)
        return other

    async def start(self) -> ResourceClock:
        """Start a clock, a new process as it were."""
        return await self.start_with(Etcd.connect([self.etcd.endpoint]))

    async def start_with(self, client: Etcd) -> ResourceClock:
        """The same with a client of the test's own making."""
        self._client = client
        self.fleet.listeners.clear()
        options: dict[str, Any] = {"window_seconds": 900, "window_revisions": 2_000_000} | self.options
        host = next(iter(self.members.values())).member.client
        self.clock = Clock(
            etcd=self._client, prefix="/reclock/v1/", fleet_id=FLEET, fleet=self.fleet, host=host, **options
        )  # type: ignore[arg-type]
        self.clock.apply(self.aggregated)
        self.fleet.synced.set()
        self.task = asyncio.create_task(self.clock.run())
        return self.pods

    @property
    def pods(self) -> ResourceClock:
        """The pods' clock."""
        assert self.clock is not None
        found = self.clock.get("", "pods")
        assert found is not None
        return found

    async def ready(self) -> ResourceClock:
        """Start, and wait for the first sync."""
        pods = await self.start()
        await asyncio.wait_for(pods.synced.wait(), 20)
        return pods

    async def kill(self, *, found_dead: bool = True) -> None:
        """As kill -9: nothing is given up, nothing is said. The lease goes as if its process were `found_dead`; else
        it runs out."""
        assert self.clock is not None and self.task is not None
        context = self.clock.context
        lease = context.leases._lease
        context.store.resign = _nothing  # type: ignore[method-assign]
        context.leases._lease = 0
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        if self._client is not None:
            await self._client.close()
        if lease and found_dead and self.etcd.process is not None:
            # Tests run in one living process: the next clock would wait for the lease's end.
            client = Etcd.connect([self.etcd.endpoint])
            with contextlib.suppress(LeaseGone):  # the test ended it before
                await client.lease_revoke(lease)
            await client.close()
        self.clock = self.task = None

    async def stop(self) -> None:
        """In order."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        if self._client is not None:
            await self._client.close()
        self.clock = self.task = self._client = None

    async def close(self) -> None:
        """Stop everything."""
        await self.stop()
        for one in self.members.values():
            await one.close()

    # Truth.

    def want(self) -> dict[tuple[str, str, str], tuple[str, int]]:
        """(cluster, namespace, name) -> (uid, version) as the engaged members have it."""
        return {
            (name, *key): (one.uid, one.version)
            for name, member in self.members.items() if name in self.fleet.members
            for key, one in member.objects.items()
        }  # fmt: skip

    def have(self) -> dict[tuple[str, str, str], tuple[str, int]]:
        """The same as the markers have it."""
        return {
            (one.cluster, one.namespace, one.name): (one.uid, one.version) for one in self.pods.iter_markers()
        }

    async def settled(self, timeout: float = 20) -> None:
        """Wait until the markers are what the members have."""
        try:
            await eventually(lambda: self.have() == self.want(), timeout=timeout)
        except AssertionError:
            raise AssertionError(f"markers {self.have()} are not the members' {self.want()}") from None


async def _nothing(*args: Any) -> None:
    return None


class Client:
    """A watching client: keeps what it was sent, and checks what must hold on every watch."""

    def __init__(
        self, clock: ResourceClock, after: int, store: dict[tuple[str, str], Marker] | None = None
    ) -> None:
        self.cursor = clock.cursor(after)
        self.store: dict[tuple[str, str], Marker] = dict(store or {})
        self.entries: list[Marker] = []

    def drain(self) -> list[Marker]:
        """Take all; I1: versions grow, types fit what was sent before."""
        new: list[Marker] = []
        while some := self.cursor.take():
            new += some
        for entry in new:
            key = (entry.namespace, entry.name)
            assert not self.entries or entry.fleet > self.entries[-1].fleet, "I1: versions grow"
            known = self.store.get(key)
            if entry.type == "ADDED":
                assert known is None, f"I1: {entry} though {known} is shown"
                self.store[key] = entry
            elif entry.type == "MODIFIED":
                assert known is not None and known.uid == entry.uid, f"I1: {entry} after {known}"
                self.store[key] = entry
            else:
                assert known is not None and known.uid == entry.uid, f"I1: {entry} after {known}"
                del self.store[key]
            self.entries.append(entry)
        return new
