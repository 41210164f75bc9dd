"""Which replica has which cluster, on a real etcd that does not always answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from services.common.etcd import Etcd, EtcdUnavailable, TxnResult
from services.reconciler.work import ring
from services.reconciler.work.replicas import Record, Replicas
from tests.integration.etcd_server import EtcdServer

NAMES = [f"c{number}" for number in range(12)]


class Shaky(Etcd):
    """Transactions fail while `failing`: they are not done, or (`done`) only their answer is lost."""

    failing = 0
    done = False
    failed = 0

    async def txn(
        self, compares: Sequence[Any] = (), success: Sequence[Any] = (), failure: Sequence[Any] = (), *, timeout: float | None = None
    ) -> TxnResult:
        if not self.failing:
            return await super().txn(compares, success, failure, timeout=timeout)
        self.failing -= 1
        self.failed += 1
        if self.done:
            await super().txn(compares, success, failure, timeout=timeout)
        raise EtcdUnavailable("etcd: Txn: no answer")


class Node:
    """A replica that has no work; it owns what it is told to."""

    def __init__(self, server: EtcdServer, name: str) -> None:
        self.name = name
        self.etcd = Shaky.connect([server.endpoint])
        self.has: dict[str, int] = {}
        self.drops = 0
        """Clusters that it lost."""
        record = Record("127.0.0.1:1", 1.0, "secret")
        self.replicas = Replicas(self.etcd, "/owners/", name, lambda: record, self, ttl=5, lease=0.5)
        self.replicas.want(NAMES)
        self.task = asyncio.create_task(self.replicas.run())

    def gained(self, cluster: str, fence: int, closed_until: float) -> None:
        self.has[cluster] = fence

    def lost(self, cluster: str) -> None:
        del self.has[cluster]
        self.drops += 1

    def moved(self, cluster: str, replica: str) -> None:
        assert cluster not in self.has or not replica, "two have it"

    async def release(self, cluster: str, limit: float) -> bool:
        return True

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})
        await self.etcd.close()


@asynccontextmanager
async def nodes(server: EtcdServer, *names: str) -> AsyncIterator[list[Node]]:
    """Replicas; those that the test adds to the list are closed with it."""
    made = [Node(server, name) for name in names]
    try:
        yield made
    finally:
        for node in made:
            await node.close()


async def settled(made: list[Node]) -> None:
    """Each has what belongs to it."""
    weights = {node.name: 1.0 for node in made}
    async with asyncio.timeout(30):
        for node in made:
            while set(node.has) != {name for name in NAMES if ring.owner(name, weights) == node.name}:  # noqa: ASYNC110 - replicas tell nobody
                await asyncio.sleep(0.02)


@pytest.mark.parametrize("done", [False, True], ids=["not done", "answer lost"])
async def test_a_cluster_that_etcd_did_not_hear_is_given_up_goes_all_the_same(etcd: EtcdServer, done: bool) -> None:
    async with nodes(etcd, "a") as made:
        await settled(made)
        made[0].etcd.failing, made[0].etcd.done = 3, done
        made.append(Node(etcd, "b"))
        await settled(made)
        assert made[0].etcd.failed == 3 and made[0].drops == len(made[1].has) > 3, "nothing but what moved was dropped"


@pytest.mark.parametrize("done", [False, True], ids=["not done", "answer lost"])
async def test_an_answer_that_is_lost_while_clusters_are_taken_costs_no_others(etcd: EtcdServer, done: bool) -> None:
    async with nodes(etcd, "a") as made:
        made[0].etcd.failing, made[0].etcd.done = 2, done
        await settled(made)
        assert made[0].etcd.failed == 2 and made[0].drops == 0
        made.append(Node(etcd, "b"))
        await settled(made)
        for node in made:
            kept = await node.etcd.range(b"/owners/clusters/", prefix=True)
            fences = {kv.key.decode().removeprefix("/owners/clusters/member/"): kv.create_revision for kv in kept.kvs}
            assert node.has.items() <= fences.items(), "its fence is the revision at which it took it"
