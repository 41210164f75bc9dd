"""The built-in controllers as workers of the protocol: what the caches make due goes there, and comes back as requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from sdk_tools import until

from reclock import Fleet, Worker
from reclock.reconciler.v1 import reconciler_pb2 as pb
from services.common.errors import StatusError
from services.reconciler.channels import Channels
from services.reconciler.controllers.context import Again
from services.reconciler.dispatch import SOURCES, Dispatcher
from services.reconciler.keys import Key
from tests.integration.work_rig import Rig, rig

JOB = Key("job", "ns", "a")


class Recording(Dispatcher):
    """Notes what it would reconcile; `outcomes` are raised, one after the other."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, Key]] = []
        self.outcomes: list[Exception] = []
        self.listed: list[Key] = []
        super().__init__(None, None, self._everything, 16)  # type: ignore[arg-type]

    def _everything(self, cluster: str) -> Iterator[Key]:
        return iter(self.listed)

    async def _reconcile(self, cluster: str, key: Any) -> None:
        self.ran.append((cluster, key))
        if self.outcomes:
            raise self.outcomes.pop(0)


@asynccontextmanager
async def working(dispatcher: Recording, *names: str) -> AsyncIterator[tuple[Rig, Channels]]:
    """The service, and the controllers as its worker."""
    channels = Channels()
    channels.controllers = dispatcher.by_source
    async with rig(*names, lease=60) as it:
        channels.worker = Worker(
            *dispatcher.controllers, fleet=Fleet.without_front(it.work.token), reconciler=it.server.bound, tls_cert=""
        )
        async with channels.worker:
            yield it, channels


async def rows(it: Rig) -> dict[tuple[str, str], pb.Queue]:
    return {(row.controller, row.cluster): row for row in (await it.queues.ListQueues(pb.ListQueuesRequest())).queues}


async def test_every_kind_of_key_comes_back_from_its_own_controller() -> None:
    dispatcher = Recording()
    both = [JOB, Key("workload", "ns", "job-a"), Key("namespace", "", "ns"), Key("routed", "", "all")]
    member = [
        Key("dependencies", "", "all"), Key("leaving", "", "all"), Key("owned/things.a.example", "ns", "x"),
        Key("owned/pods", "", "system:x y"),
    ]  # fmt: skip
    wanted = {("", key) for key in both} | {("east", key) for key in (*both, *member)}
    async with working(dispatcher, "east") as (it, channels):
        for cluster, key in wanted:
            channels.add(cluster, str(key))
        channels.add("gone", str(JOB))
        await until(lambda: len(dispatcher.ran) == len(wanted))
        assert set(dispatcher.ran) == wanted
        shown = await rows(it)
        assert set(shown) == {(name, "east") for name in SOURCES} | {("reclock-workloads", ""), ("reclock-namespaces", "")}
        host, east = shown["reclock-workloads", ""], shown["reclock-workloads", "east"]
        assert (host.weight, host.cap, east.weight, east.cap) == (100, 16, 1, 4)


async def test_all_is_told_at_first_and_of_each_cluster_that_joins() -> None:
    dispatcher = Recording()
    dispatcher.listed = [JOB, Key("namespace", "", "ns")]
    async with working(dispatcher) as (it, _):
        await until(lambda: len(dispatcher.ran) == 2)
        await it.join("west")
        await until(lambda: len(dispatcher.ran) == 4)
        assert {cluster for cluster, _ in dispatcher.ran[2:]} == {"west"}


async def test_a_reconcile_runs_again_when_it_says_so_and_when_it_fails() -> None:
    dispatcher = Recording()
    async with working(dispatcher, "east") as (it, channels):
        dispatcher.outcomes = [Again(0.01), StatusError(500, "InternalError", "no"), ValueError("a bug about one object")]
        channels.add("east", str(JOB))
        await until(lambda: len(dispatcher.ran) == 4)
        channels.add_after("east", str(JOB), 0.05)
        await until(lambda: len(dispatcher.ran) == 5)
        assert (await rows(it))["reclock-workloads", "east"].retries == 2


async def test_an_operator_pauses_and_resumes_it() -> None:
    dispatcher = Recording()
    async with working(dispatcher, "east") as (it, channels):
        await it.queues.UpdateQueue(pb.UpdateQueueRequest(controller="reclock-workloads", cluster="east", paused=True))
        channels.add("east", str(JOB))
        channels.add("east", str(Key("namespace", "", "ns")))
        await until(lambda: dispatcher.ran)
        await asyncio.sleep(0.1)
        assert dispatcher.ran == [("east", Key("namespace", "", "ns"))]
        assert (await rows(it))["reclock-workloads", "east"].paused
        await it.queues.UpdateQueue(pb.UpdateQueueRequest(controller="reclock-workloads", cluster="east", paused=False))
        await until(lambda: len(dispatcher.ran) == 2)


async def test_nothing_is_reconciled_for_a_replica_that_may_have_lost_the_host() -> None:
    dispatcher = Recording()
    async with working(dispatcher, "east") as (it, channels):
        hub = it.work.parts.hub
        assert hub is not None
        asked: list[bool] = []
        valid = False
        hub.valid = lambda: asked.append(valid) or valid  # type: ignore[func-returns-value]
        channels.add("east", str(JOB))
        await until(lambda: len(asked) >= 3)
        assert not dispatcher.ran
        valid = True
        await until(lambda: dispatcher.ran)
