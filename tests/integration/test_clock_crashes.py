"""The clock dies at every await of its way to etcd and back; the next one must go on as if nothing had happened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from services.aggregator.clock.clock import Marker
from tests.integration.clock_member import FakeMember
from tests.integration.clock_rig import Client, Rig, eventually, operations
from tests.integration.etcd_server import EtcdServer

Story = Callable[[dict[str, FakeMember]], None]


@pytest_asyncio.fixture
async def rig(etcd: EtcdServer) -> AsyncIterator[Rig]:
    one = Rig(etcd, max_ops=6)
    try:
        yield one
    finally:
        await one.close()


def a_run_of_deletions(members: dict[str, FakeMember]) -> None:
    members["east"].delete(*(f"a{number}" for number in range(9)))


def changes_of_two_members(members: dict[str, FakeMember]) -> None:
    for number in range(6):
        members["east"].put(f"a{number}", v=str(number))
        members["west"].put(f"b{number}")
    members["east"].delete("a0")
    members["east"].put("a0")


def a_relist(members: dict[str, FakeMember]) -> None:
    east = members["east"]
    east.refuse = True
    east.break_connections()
    east.delete("a1", "a2")
    for number in range(3, 12):
        east.put(f"a{number}", v="new")
    east.restart()
    east.refuse = False


def the_end_of_a_shown_object(members: dict[str, FakeMember]) -> None:
    members["east"].put("twin")
    members["west"].put("twin")
    members["east"].delete("twin")
    members["west"].delete("twin")
    members["west"].put("twin")


STORIES: list[Story] = [a_run_of_deletions, changes_of_two_members, a_relist, the_end_of_a_shown_object]


class Axe:
    """Kills the clock at the `number`-th transaction that carries markers: before it is sent, or with its answer
    under way."""

    def __init__(self, rig: Rig, number: int, *, sent: bool) -> None:
        self.left, self.sent = number, sent
        self.struck = asyncio.Event()
        assert rig.clock is not None
        etcd = rig.clock.context.store.etcd
        self._real = etcd._txn
        etcd._txn = self._txn  # type: ignore[method-assign]

    async def _txn(self, request: Any, timeout: float | None) -> Any:
        if operations(request) < 2:
            return await self._real(request, timeout)
        self.left -= 1
        if self.left:
            return await self._real(request, timeout)
        if self.sent:
            await self._real(request, timeout)
        self.struck.set()
        await asyncio.Event().wait()  # what follows never runs
        return None


@pytest.mark.parametrize("sent", [False, True], ids=["before it is sent", "before it is answered"])
@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
async def test_a_crash_in_the_commit(rig: Rig, story: Story, number: int, sent: bool) -> None:
    members = dict(zip(("east", "west"), await rig.add("east", "west"), strict=True))
    for one in range(9):
        members["east"].put(f"a{one}", v="old")
    pods = await rig.ready()
    await rig.settled()
    await eventually(lambda: pods.members["east"].state == pods.members["west"].state == "Live")
    shown = {(one.namespace, one.name): one for one in pods.iter_markers()}
    start = pods.head
    client = Client(pods, start, shown)
    axe = Axe(rig, number, sent=sent)
    story(members)
    try:
        async with asyncio.timeout(3):
            await axe.struck.wait()
    except TimeoutError:
        # Fewer transactions than that: the members' events came in larger batches.
        pytest.skip("the story has fewer transactions")
    client.drain()
    before = list(client.entries)
    await rig.kill()

    pods = await rig.ready()
    await rig.settled()
    again = Client(pods, start, shown)
    again.drain()
    assert [identity(one) for one in again.entries[: len(before)]] == [identity(one) for one in before]
    want = {
        (one.namespace, one.name): identity(one)
        for one in pods.iter_markers() if pods.shown(one.namespace, one.name) is one
    }  # fmt: skip
    assert {key: identity(one) for key, one in again.store.items()} == want, "I4"
    per_member: dict[tuple[str, str], int] = {}
    for one in again.entries:
        if one.kind == 0:
            life = (one.cluster, one.incarnation)
            assert one.version >= per_member.get(life, 0), "I2"
            per_member[life] = one.version


def identity(one: Marker) -> tuple[Any, ...]:
    """What a number means."""
    return one.fleet, one.cluster, one.incarnation, one.name, one.uid, one.version, one.deleted


@pytest.mark.parametrize("point", ["campaign", "load", "diff", "resign"])
async def test_a_crash_elsewhere(rig: Rig, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (east,) = await rig.add("east")
    for one in range(9):
        east.put(f"a{one}")
    pods = await rig.ready()
    await rig.settled()
    start, shown = pods.head, {(one.namespace, one.name): one for one in pods.iter_markers()}
    await rig.kill()
    east.put("a1", v="x")
    east.delete("a2")
    east.restart()

    struck = asyncio.Event()
    places = {
        "campaign": "services.aggregator.clock.store.Store.elect",
        "load": "services.aggregator.clock.history.load",
        "diff": "services.aggregator.clock.metadata.MetadataClient.whole",
        "resign": "services.aggregator.clock.store.Store.resign",
    }

    async def stuck(*args: Any, **options: Any) -> Any:
        struck.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(places[point], stuck)
        await rig.start()
        if point == "resign":
            await eventually(lambda: rig.pods.synced.is_set() and rig.pods.term)
            assert rig.task is not None
            rig.task.cancel()
        await asyncio.wait_for(struck.wait(), 10)
        await rig.kill()
    pods = await rig.ready()
    await rig.settled()
    client = Client(pods, start, shown)
    client.drain()
    assert {name: one.version for (_, name), one in client.store.items()} == {
        name: one.version for (_, name), one in east.objects.items()
    }
