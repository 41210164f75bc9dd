"""The SDK's side of requests that a worker tells of by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from sdk_tools import until

from reclock import Channel, Controller, Fleet, For, ReclockError, Request, Target, Worker, controller
from reclock._dues import BATCH, Dues
from reclock.testing import FakeService


def told(**fields: Any) -> tuple[Controller, list[str]]:
    """A controller of two channels, and what its handler was asked."""
    asked: list[str] = []

    def tells(cluster: str) -> Iterator[Target]:
        yield Target("listed", "ns", source="jobs")
        yield Target("urgent", "ns", source="jobs", priority=3)

    @controller(for_=[Channel(name="jobs", priority=10), Channel(name="plans")], name="told", tells=tells, **fields)
    async def handle(request: Request) -> None:
        asked.append(f"{request.source} {request} {request.resource.plural}")

    return handle, asked


async def test_a_cluster_that_begins_is_told_and_so_is_news_while_there_is_a_stream() -> None:
    handle, asked = told()
    async with FakeService() as service, Worker(handle, fleet=Fleet.without_front("secret"), reconciler=service.address, tls_cert="") as worker:
        assert worker.connected
        assert service.metadata[0]["authorization"] == "Bearer secret"
        stream = await service.worker()
        assert [source.WhichOneof("to") for source in stream.register.sources] == ["channel", "channel"]
        stream.send(tell={"cluster": "east"})
        await until(lambda: len(stream.due) == 2)
        assert stream.due["east", "ns", "listed", "jobs"].priority == -90
        assert stream.due["east", "ns", "urgent", "jobs"].priority == 3
        worker.tell(handle, Target("soon", "ns", source="plans", after=60))
        await until(lambda: len(stream.due) == 3)
        soon = stream.due["", "ns", "soon", "plans"]
        assert 59 < soon.after.ToTimedelta().total_seconds() <= 60 and not soon.HasField("priority")
        assert (await service.ask("east", "ns", "listed", source="jobs")).ok
        assert asked == ["jobs east/ns/listed "]
        service.break_streams()
        await until(lambda: not worker.connected)
        worker.tell(handle, Target("lost", source="plans"))
        again = await service.worker(after=1)
        again.send(tell={"cluster": ""})
        await until(lambda: len(again.due) == 2)
        assert all(cluster == "" and name != "lost" for cluster, _, name, _ in again.due)
        with pytest.raises(ReclockError, match="no front"):
            await worker.fleet.host.get("v1/pods", "a", "b")


async def test_a_sole_worker_says_so_at_once_and_with_each_cluster() -> None:
    handle, _ = told(sole=True, leaving=True)
    async with FakeService() as service, Worker(handle, fleet=Fleet.without_front(), reconciler=service.address, tls_cert=""):
        stream = await service.worker()
        assert stream.register.leaving_clusters
        await until(lambda: len(stream.said) > 1)
        assert stream.said[1].resume.sole and not stream.said[1].resume.tokens
        stream.send(tell={"cluster": "east"})
        await until(lambda: stream.due)
        assert [message.WhichOneof("message") for message in stream.said if message.WhichOneof("message") != "heartbeat"] == [
            "register", "resume", "resume", "due"
        ]


async def test_a_teller_that_fails_is_survived() -> None:
    def tells(cluster: str) -> Iterator[Target]:
        yield Target("before", source="a")
        raise ValueError("no idea")

    @controller(for_=[Channel(name="a"), For("v1/pods", name="b")], tells=tells)
    async def handle(request: Request) -> None:
        return None

    async with FakeService() as service, Worker(handle, fleet=Fleet.without_front(), reconciler=service.address, tls_cert=""):
        stream = await service.worker()
        stream.send(tell={"cluster": "east"})
        await until(lambda: stream.due)
        assert (await service.ask("east", "", "before", source="a")).ok
        assert handle.resource("b").plural == "pods" and handle.resource("a").plural == ""
        await asyncio.sleep(0)


def test_what_waits_is_merged_and_sent_in_parts() -> None:
    dues = Dues()
    dues.put([Target("a", priority=1, after=60), Target("a", priority=-5), Target("b", after=60), Target("b", after=30, priority=2)])
    dues.put(Target(f"n{number}") for number in range(BATCH))
    first, second = dues.take().due, dues.take().due
    assert len(first.keys) == BATCH and len(second.keys) == 2 and not dues
    assert first.keys[0].priority == 1 and not first.keys[0].HasField("after")
    assert first.keys[1].priority == 2 and 29 < first.keys[1].after.ToTimedelta().total_seconds() <= 30
