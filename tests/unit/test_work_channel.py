"""Requests that workers tell of by themselves: queued like all others, told anew with each queue that begins; sole workers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc

from reclock.reconciler.v1 import reconciler_pb2 as pb
from tests.integration.work_rig import Rig, Worker, rig


def channels(*names: str, **fields: Any) -> pb.Register:
    """A registration of a controller that is told what is due."""
    sources = [pb.Source(name=name, channel=pb.Channel(), priority=5 * place) for place, name in enumerate(names)]
    fields.setdefault("scope", pb.SCOPE_ALL)
    return pb.Register(controller="c", protocol_version=1, max_in_flight=100, sources=sources, **fields)


async def due(worker: Worker, *keys: pb.DueKey) -> None:
    await worker.say(due=pb.Due(keys=keys))


def key(name: str, cluster: str = "east", source: str = "", **fields: Any) -> pb.DueKey:
    return pb.DueKey(cluster=cluster, namespace="ns", name=name, source=source, **fields)


def told(worker: Worker) -> list[str]:
    return sorted(tell.cluster for tell in worker.of("tell"))


async def test_what_is_told_is_queued_ordered_and_merged_like_all_else() -> None:
    async with rig("east") as it:
        worker = it.worker(channels("a", "b", caps={"east": 1}))
        await worker.next("tell", 2)
        assert told(worker) == ["", "east"]
        # One by one, as the cap says, by priority; the name need not be an object's.
        await due(
            worker, key("first", source="a", priority=9), key("low", source="a"), key("pods:high x", source="b"),
            key("low", source="a", priority=-1), key("ignored", "west", "a"), key("later", source="a", after={"nanos": 300_000_000}),
        )  # fmt: skip
        order = []
        for number in range(4):
            request = (await worker.requests(number + 1))[number]
            order.append((request.name, request.source, request.priority))
            await worker.done(request)
        assert order == [("first", "a", 9), ("pods:high x", "b", 5), ("low", "a", 0), ("later", "a", 0)]
        assert not worker.of("problem")
        await worker.close()


async def test_a_channel_may_make_requests_of_another_source_and_wrong_keys_are_named() -> None:
    async with rig("east") as it:
        register = channels()
        register.sources.add(version="v1", resource="configmaps", name="maps", for_object=pb.ForObject())
        register.sources.add(name="more", target="maps", channel=pb.Channel())
        worker = it.worker(register)
        await it.synced()
        await due(
            worker, key("fine"), key("a/b"), key("x", source="maps"), key("y", priority=40000), key("z", after={"seconds": -1}),
            key(""), pb.DueKey(cluster="east", namespace="no/ns", name="n"),
        )  # fmt: skip
        [request] = await worker.requests(1)
        assert (request.name, request.source, request.priority) == ("fine", "maps", 0)
        await worker.next("problem", 6)
        assert [problem.field for problem in worker.of("problem")] == [
            "due.keys[1].name", "due.keys[2].source", "due.keys[3].priority", "due.keys[4].after", "due.keys[5].name",
            "due.keys[6].namespace",
        ]
        await worker.close()


async def test_workers_are_asked_for_each_cluster_whose_queue_begins() -> None:
    async with rig("east") as it:
        first = it.worker(channels("a"))
        await first.next("tell", 2)
        await it.join("west")
        assert (await first.next("tell", 3)).cluster == "west"
        second = it.worker(channels("a"))
        await second.next("tell", 3)
        assert told(second) == ["", "east", "west"] and len(first.of("tell")) == 3
        # What waited went with the cluster; when it comes back, it has to be told.
        await it.fleet.leave("west")
        await it.join("west")
        await first.next("tell", 4)
        await second.next("tell", 4)
        await first.close()
        await second.close()


async def leaving(it: Rig, name: str, since: object) -> None:
    await it.fleet.change(name, leaving_since=since)


async def test_a_cluster_that_leaves_is_gone_but_for_those_who_empty_it() -> None:
    async with rig("east") as it:
        plain = it.worker(channels("a"))
        await plain.next("tell", 2)
        register = channels("a", leaving_clusters=True)
        register.controller = "cleaner"
        cleaner = it.worker(register)
        await cleaner.next("tell", 2)
        await leaving(it, "east", object())
        await due(plain, key("one"))
        await due(cleaner, key("two"))
        [request] = await cleaner.requests(1)
        assert request.name == "two" and not plain.of("request")
        await cleaner.done(request)
        await leaving(it, "east", None)
        assert (await plain.next("tell", 3)).cluster == "east" and len(cleaner.of("tell")) == 2
        await it.fleet.leave("east")
        await due(cleaner, key("three"))
        await cleaner.close()
        assert len(cleaner.of("request")) == 1
        await plain.close()


async def test_a_sole_worker_ends_others_and_waits_for_nobodys_leases() -> None:
    async with rig("east", lease=60) as it:
        first = it.worker(channels("a", worker="first"))
        await first.say(resume=pb.Resume(sole=True))
        await first.next("tell", 2)
        await due(first, key("one"))
        await first.requests(1)
        second = it.worker(channels("a", worker="second"))
        await second.say(resume=pb.Resume(sole=True))
        [again] = await second.requests(1)
        assert again.name == "one"
        error = await first.refused()
        assert error.code() == grpc.StatusCode.ABORTED
        # A cluster that may be in use by an earlier process: at once, but for what the worker says it runs.
        ownership: Any = it.work.parts.hub.ownership if it.work.parts.hub is not None else None
        ownership._closed_until = time.monotonic() + 60
        await it.join("west")
        await second.until(lambda: "west" in told(second))
        await due(second, key("held", "west"), key("free", "west"))
        await asyncio.sleep(0.2)
        assert len(second.of("request")) == 1
        held = pb.Held(token="known", cluster="west", namespace="ns", name="held", source="a")
        await second.say(resume=pb.Resume(tokens=[again.token], held=[held], sole=True))
        free = (await second.requests(2))[1]
        assert free.name == "free" and not second.of("cancelled")
        await second.say(done=pb.Done(token="known"))
        assert (await second.requests(3))[2].name == "held"
        await second.done(again)
        await second.close()
