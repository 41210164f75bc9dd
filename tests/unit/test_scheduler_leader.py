"""Leadership by a Lease: one at a time, handed over, lost in time."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from services.common.errors import MemberUnreachable, StatusError
from services.common.kube.client import KubeClient
from services.scheduler.leader import Leader


class Leases:
    """A host that has one Lease, with compare-and-swap."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.away = False
        self.slow: asyncio.Event | None = None
        """While there is one, what is written is answered only when it is set."""
        self._version = 0

    async def get(self, resource: Any, namespace: str, name: str) -> dict[str, Any]:
        self._answer()
        if self.lease is None:
            raise StatusError(404)
        return copy.deepcopy(self.lease)

    async def create(self, resource: Any, namespace: str, obj: dict[str, Any]) -> dict[str, Any]:
        self._answer()
        if self.lease is not None:
            raise StatusError(409, "AlreadyExists")
        return self._store(obj)

    async def update(self, resource: Any, namespace: str, obj: dict[str, Any]) -> dict[str, Any]:
        self._answer()
        assert self.lease is not None
        if obj["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise StatusError(409)
        stored = self._store(obj)
        if self.slow is not None:
            await self.slow.wait()
        return stored

    def _answer(self) -> None:
        if self.away:
            raise MemberUnreachable("host: cannot connect")

    def _store(self, obj: dict[str, Any]) -> dict[str, Any]:
        self._version += 1
        self.lease = copy.deepcopy(obj)
        self.lease["metadata"]["resourceVersion"] = str(self._version)
        return copy.deepcopy(self.lease)


@asynccontextmanager
async def candidate(leases: Leases, seconds: float = 0.4) -> AsyncIterator[tuple[Leader, asyncio.Event]]:
    leads = asyncio.Event()

    async def lead() -> None:
        leads.set()
        try:
            await asyncio.Event().wait()
        finally:
            leads.clear()

    leader = Leader(cast(KubeClient, leases), namespace="kube-system", seconds=seconds, lead=lead)
    task = asyncio.create_task(leader.run())
    try:
        yield leader, leads
    finally:
        task.cancel()
        await asyncio.wait({task})


async def until(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), 10)


async def test_only_one_leads_and_the_other_takes_over() -> None:
    leases = Leases()
    async with candidate(leases) as (first, leads):
        await until(leads)
        async with candidate(leases) as (second, waits):
            await asyncio.sleep(1.0)
            assert not waits.is_set()
            assert second.holder == first.identity
    # The first one is gone without a word: its lease has to end.
    async with candidate(leases) as (third, leads):
        await until(leads)
        assert leases.lease is not None
        assert leases.lease["spec"]["holderIdentity"] == third.identity
        assert leases.lease["spec"]["leaseTransitions"] == 1


async def test_resigning_hands_over_at_once() -> None:
    leases = Leases()
    async with candidate(leases, seconds=3600) as (first, leads):
        await until(leads)
    await first.resign()
    async with candidate(leases, seconds=3600) as (_, leads):
        await until(leads)


async def test_a_leader_that_cannot_renew_stops_and_comes_back() -> None:
    leases = Leases()
    async with candidate(leases) as (leader, leads):
        await until(leads)
        leases.away = True
        async with asyncio.timeout(10):
            while leader.leading or leads.is_set():  # noqa: ASYNC110 (they have no event for that)
                await asyncio.sleep(0.01)
        leases.away = False
        await until(leads)


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


async def test_the_lease_counts_from_before_the_call_that_took_it() -> None:
    leases, clock, leads = Leases(), Clock(), asyncio.Event()

    async def lead() -> None:
        leads.set()
        await asyncio.Event().wait()

    leader = Leader(cast(KubeClient, leases), namespace="kube-system", seconds=15, lead=lead, now=clock)
    assert leader.remaining() == 0
    await leader._try()
    assert leader.remaining() == 10, "the last third is for what was sent to arrive"
    clock.seconds += 4
    leases.slow = asyncio.Event()
    renewal = asyncio.create_task(leader._try())
    await asyncio.sleep(0.01)
    clock.seconds += 5
    leases.slow.set()
    assert await renewal
    assert leader.remaining() == 5, "others count from when it was written, not from when we heard of it"
    clock.seconds += 5
    assert leader.remaining() == 0


async def test_a_leader_that_hung_beyond_its_lease_acts_no_more() -> None:
    leases, clock = Leases(), Clock()
    seen: list[float] = []
    began = asyncio.Event()

    async def lead() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(leader.remaining())

    leader = Leader(cast(KubeClient, leases), namespace="kube-system", seconds=0.6, lead=lead, now=clock)
    task = asyncio.create_task(leader.run())
    await until(began)
    # The process did not run for a while; the first thing that it does then may be anything.
    clock.seconds += 60
    assert leader.remaining() == 0
    leases.away = True
    async with asyncio.timeout(10):
        while not seen:  # noqa: ASYNC110 (the work's end has no event)
            await asyncio.sleep(0.01)
    assert (seen, leader.leading) == ([0], False)
    task.cancel()
    await asyncio.wait({task})


async def test_a_renewal_of_which_nothing_is_known_is_read_before_the_next() -> None:
    leases, clock = Leases(), Clock()
    leader = Leader(cast(KubeClient, leases), namespace="kube-system", seconds=15, lead=asyncio.Event().wait, now=clock)  # type: ignore[arg-type]
    await leader._try()
    leases.slow = asyncio.Event()
    assert not await leader._within(0.01)
    leases.slow = None
    assert await leader._within(1), "it was written, so the next one is made from what is stored"
