"""What a member is told of all that is placed there: until it has heard, and not of what is past by then."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from scheduler_fakes import World

from reclock.scheduler.v1 import scheduler_pb2 as pb
from services.common.errors import unavailable
from services.scheduler import remote
from services.scheduler.member import Ask
from services.scheduler.resync import Resync


@pytest.fixture
def world() -> World:
    return World()


def between(world: World, name: str, happens: Any) -> list[list[str]]:
    """`happens` is awaited while a member is being told; returns what it is told each time."""
    admission: Any = world.fleet.admissions[name]
    tell, heard = admission.resync, []

    async def resync(asks: Sequence[Ask]) -> None:
        heard.append([ask.id for ask in asks])
        await happens()
        await tell(asks)

    admission.resync = resync
    return heard


async def test_one_that_does_not_answer_is_told_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.member("east", remote=True)
    key = world.workload("job-a")
    await world.settle(key)
    failures, changed = [unavailable("it hangs"), unavailable("it hangs")], []

    async def fails() -> None:
        if failures:
            raise failures.pop()

    heard = between(world, "east", fails)
    monkeypatch.setattr("services.scheduler.resync.Backoff.wait", lambda self: asyncio.sleep(0))
    await Resync(world.engine, lambda: True, changed.append).until_told("east")
    assert heard == [["uid-job-a"]] * 3 and changed == ["east"]


async def test_who_does_not_lead_tells_nobody(world: World) -> None:
    world.member("east", remote=True)
    heard = between(world, "east", None)
    assert await Resync(world.engine, lambda: False, lambda cluster: None).tell("east")
    assert heard == []


async def test_what_is_placed_meanwhile_is_told_with_its_next_step(world: World) -> None:
    state = world.member("east", remote=True)
    key = world.workload("job-a")

    async def placed() -> None:
        await world.settle(key)

    between(world, "east", placed)
    assert await Resync(world.engine, lambda: True, lambda cluster: None).tell("east")
    assert len(state.ledger) == 0, "the worker took the older word for all there is"
    await world.settle(key)
    assert [r.confirmed for r in state.ledger] == [True]


async def test_what_leaves_meanwhile_holds_no_room(world: World) -> None:
    state = world.member("east", remote=True)
    key = world.workload("job-a")
    await world.settle(key)

    async def suspended() -> None:
        world.edit(key, suspend=True)
        await world.settle(key)

    between(world, "east", suspended)
    assert await Resync(world.engine, lambda: True, lambda cluster: None).tell("east")
    assert len(state.ledger) == 0


class Stream:
    """A worker that says three times that it is there."""

    def __init__(self) -> None:
        self.left = 3

    async def read(self) -> Any:
        self.left -= 1
        return pb.AdmissionServiceWatchResponse(synced=True) if self.left >= 0 else grpc.aio.EOF

    def cancel(self) -> None:
        pass


async def test_a_stream_goes_on_telling_until_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []

    async def connected(cluster: str) -> bool:
        told.append(cluster)
        return len(told) == 2

    admission = remote.RemoteAdmission(
        "east", "127.0.0.1:1", None, ttl=1, deadline=1, on_state=lambda cluster, freed: None, on_connected=connected
    )
    stub = SimpleNamespace(Watch=lambda request: Stream())
    monkeypatch.setattr(remote.RemoteAdmission, "_stub", stub)
    await admission._follow(remote.Backoff())
    assert told == ["east", "east"]
