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
        return self._store(obj)

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
