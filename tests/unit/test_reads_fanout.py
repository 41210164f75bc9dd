"""Watchers that get the same bytes: one walk for all, whatever each client's pace, and nothing lost or told twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from kube_fake import eventually
from reads_fake import Fleet, fleet_of, pod

from services.aggregator.reads import fanout, watcher
from services.aggregator.reads.fanout import Group
from services.aggregator.reads.watcher import Watcher

METADATA = {"Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"}
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with fleet_of("east", "west") as fleet:
        yield fleet


def groups(fleet: Fleet) -> list[Group]:
    return list(fleet.reads._fanout._groups.values())


def seats(fleet: Fleet) -> list[int]:
    return sorted(len(group._seats) for group in groups(fleet))


class Clients:
    """Watches that read side by side."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.got: list[list[Any]] = []
        self.tasks: list[asyncio.Task[None]] = []

    def open(self, query: str, path: str = "/api/v1/pods", pause: float = 0, **headers: str) -> None:
        got: list[Any] = []
        self.got.append(got)
        self.tasks.append(asyncio.create_task(self._read(got, query, path, pause, headers)))

    async def _read(self, got: list[Any], query: str, path: str, pause: float, headers: dict[str, str]) -> None:
        async with self.fleet.watch(query, path, **headers) as stream:
            while event := await stream.next(60):
                got.append(event)
                if pause:
                    await asyncio.sleep(pause)

    async def have(self, count: int) -> None:
        await eventually(lambda: all(len(got) >= count for got in self.got))

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest.fixture
async def clients(fleet: Fleet) -> AsyncIterator[Clients]:
    clients = Clients(fleet)
    yield clients
    await clients.close()


async def test_watchers_of_one_kind_share_one_walk(fleet: Fleet, clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    walks: list[Watcher] = []
    send = Watcher._send

    async def noting(self: Watcher, entries: Any) -> None:
        walks.append(self)
        await send(self, entries)

    monkeypatch.setattr(Watcher, "_send", noting)
    for _ in range(5):
        clients.open(f"resourceVersion={fleet.clock.head}")
    await eventually(lambda: fleet.clock.tally.watchers == 5)
    fleet.write("east", pod("first"))  # whoever came alone sits down after it
    await clients.have(1)
    await eventually(lambda: seats(fleet) == [5])
    walks.clear()
    for number in range(20):
        fleet.write(("east", "west")[number % 2], pod(f"p{number}"))
    await clients.have(21)
    assert {type(one) for one in walks} == {Group}
    assert all(got == clients.got[0] for got in clients.got)
    assert [event["object"]["metadata"]["name"] for event in clients.got[0]] == ["first", *(f"p{n}" for n in range(20))]
    tally = fleet.clock.tally.members
    await eventually(lambda: tally["east"].deliveries + tally["west"].deliveries == 5 * 21)
    await clients.close()
    await eventually(lambda: not groups(fleet))


async def test_other_forms_and_selectors_are_other_groups(fleet: Fleet, clients: Clients) -> None:
    at = f"resourceVersion={fleet.clock.head}"
    kinds: list[tuple[str, str, dict[str, str]]] = [
        (at, "/api/v1/pods", {}), (at, "/api/v1/pods", METADATA), (at, "/api/v1/pods", TABLE),
        (at, "/api/v1/namespaces/default/pods", {}), (f"{at}&labelSelector=app%3Dweb", "/api/v1/pods", {}),
        (f"{at}&fieldSelector=metadata.name%3Da", "/api/v1/pods", {}),
    ]  # fmt: skip
    for query, path, headers in kinds * 2:
        clients.open(query, path, **headers)
    await eventually(lambda: fleet.clock.tally.watchers == 12)
    fleet.write("east", pod("a", app="web"))
    await clients.have(1)
    await eventually(lambda: seats(fleet) == [2] * 6)
    fleet.write("east", pod("a", app="none"))
    fleet.write("west", pod("b", "other", app="web"))
    await eventually(lambda: [len(got) for got in clients.got] == [3, 3, 3, 2, 3, 2] * 2)
    assert clients.got[:6] == clients.got[6:]
    assert [event["type"] for event in clients.got[4]] == ["ADDED", "DELETED", "ADDED"]
    assert clients.got[4][1]["object"]["metadata"]["labels"] == {"app": "web"}
    assert clients.got[2][0]["object"]["columnDefinitions"] and clients.got[2][1]["object"]["columnDefinitions"] is None


async def test_watches_by_payload_go_alone(fleet: Fleet, clients: Clients) -> None:
    for _ in range(2):
        clients.open(f"resourceVersion={fleet.clock.head}&fieldSelector=spec.nodeName%3Dn0")
    await eventually(lambda: fleet.clock.tally.watchers == 2)
    for number in range(2):
        fleet.write("east", pod(f"p{number}"))
        await clients.have(number + 1)
    assert not groups(fleet) and clients.got[0] == clients.got[1]


async def test_an_entry_that_is_passed_over_is_everyones_own_matter(
    fleet: Fleet, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has the object goes on with it, who has not is told of it later: a group would take all for one."""
    monkeypatch.setattr(watcher, "PATIENCE", 0.2)
    for _ in range(3):
        clients.open(f"resourceVersion={fleet.clock.head}")
    await eventually(lambda: fleet.clock.tally.watchers == 3)
    fleet.write("east", pod("a", n="0"))
    await clients.have(1)
    await eventually(lambda: seats(fleet) == [3])
    member = fleet.members["east"]
    member.mute = True
    first, second = (member.write(pod("b", n=n)) for n in "12")
    member.events = [one for one in member.events if one[2] is not first]  # its watch never tells of it
    fleet.clock.log("east", first)
    fleet.clock.log("east", second)
    member.mute = False
    member.nudge()
    await clients.have(2)
    told = [(event["type"], event["object"]["metadata"]["labels"]["n"]) for event in clients.got[0]]
    assert told == [("ADDED", "0"), ("ADDED", "2")] and clients.got[0] == clients.got[1] == clients.got[2]
    fleet.write("east", pod("b", n="3"))
    await clients.have(3)
    await eventually(lambda: seats(fleet) == [3])  # together again
    assert clients.got[0][2]["type"] == "MODIFIED" and clients.got[0] == clients.got[1] == clients.got[2]


@pytest.mark.parametrize("ring", [1 << 30, 100_000], ids=["from the ring", "alone"])
async def test_a_client_that_stops_reading_holds_nobody_up_and_misses_nothing(
    fleet: Fleet, clients: Clients, ring: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout, "RING", ring)
    at = fleet.clock.head
    clients.open(f"resourceVersion={at}")
    async with fleet.watch(f"resourceVersion={at}") as stuck:
        stuck.answer.connection.transport.pause_reading()  # type: ignore[union-attr]
        await eventually(lambda: fleet.clock.tally.watchers == 2)
        fleet.write("east", pod("first"))
        await clients.have(1)
        await eventually(lambda: seats(fleet) == [2])
        (group,) = groups(fleet)
        for number in range(600):
            big = pod(f"p{number}")
            big["metadata"]["annotations"] = {"x": "y" * 20_000}
            fleet.write("east", big)
            if number % 20 == 19:
                await clients.have(number)
        await clients.have(601)
        assert group._kept <= max(ring, 64_000) if ring < 1 << 20 else group._kept > 100_000
        assert len(group._seats) == (1 if ring < 1 << 20 else 2)
        stuck.answer.connection.transport.resume_reading()  # type: ignore[union-attr]
        late = [await stuck.next() for _ in range(601)]
    assert late == clients.got[0]


async def test_groups_together_keep_no_more_than_one_sum(
    fleet: Fleet, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any number of selectors, each with a client that stops reading: the fullest ring goes, and nothing is missed."""
    monkeypatch.setattr(fanout, "RINGS", 1_500_000)
    at = fleet.clock.head
    queries = [f"resourceVersion={at}&labelSelector=x%21%3D{number}" for number in range(6)]
    for query in queries:
        clients.open(query)
    async with AsyncExitStack() as stack:
        stuck = [await stack.enter_async_context(fleet.watch(query)) for query in queries]
        for one in stuck:
            one.answer.connection.transport.pause_reading()  # type: ignore[union-attr]
        await eventually(lambda: fleet.clock.tally.watchers == 12)
        fleet.write("east", pod("first"))
        await clients.have(1)
        await eventually(lambda: seats(fleet) == [2] * 6)
        rings = fleet.reads._fanout._rings
        most = 0
        for number in range(400):
            big = pod(f"p{number}")
            big["metadata"]["annotations"] = {"x": "y" * 20_000}
            fleet.write("east", big)
            if number % 20 == 19:
                await clients.have(number + 2)
                await eventually(lambda: rings.total == sum(group._kept for group in groups(fleet)) <= 1_500_000)
                most = max(most, rings.total)
        await clients.have(401)
        assert most > 500_000 and 1 in seats(fleet)
        for one in stuck:
            one.answer.connection.transport.resume_reading()  # type: ignore[union-attr]
        for one in stuck:
            assert [await one.next() for _ in range(401)] == clients.got[0]
        await eventually(lambda: not rings.total)  # whoever was behind has had all


async def test_a_ring_goes_with_the_client_that_it_was_kept_for(fleet: Fleet, clients: Clients) -> None:
    at = fleet.clock.head
    clients.open(f"resourceVersion={at}")
    rings = fleet.reads._fanout._rings
    async with fleet.watch(f"resourceVersion={at}") as stuck:
        stuck.answer.connection.transport.pause_reading()  # type: ignore[union-attr]
        await eventually(lambda: fleet.clock.tally.watchers == 2)
        fleet.write("east", pod("first"))
        await eventually(lambda: seats(fleet) == [2])
        for number in range(400):
            big = pod(f"p{number}")
            big["metadata"]["annotations"] = {"x": "y" * 20_000}
            fleet.write("east", big)
            if number % 20 == 19:
                await clients.have(number)
        await clients.have(401)
        assert rings.total
        stuck.answer.close()
        await eventually(lambda: seats(fleet) == [1])
        assert not rings.total


async def test_no_event_goes_out_after_members_have_come_to_decide(fleet: Fleet, clients: Clients) -> None:
    for _ in range(3):
        clients.open(f"resourceVersion={fleet.clock.head}")
    await eventually(lambda: fleet.clock.tally.watchers == 3)
    fleet.write("east", pod("a"))
    await clients.have(1)
    await eventually(lambda: seats(fleet) == [3])
    fleet.clock.aggregated = replace(fleet.clock.aggregated, authorization="Member")
    fleet.write("east", pod("b"))
    await clients.have(2)
    assert {(got[1]["type"], got[1]["object"]["code"]) for got in clients.got} == {("ERROR", 410)}
    await eventually(lambda: not groups(fleet))


async def test_no_version_is_lost_or_told_twice_whoever_joins_when(
    fleet: Fleet, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Watchers of every age, slow ones among them, while a group yields at every write and keeps little."""
    source = random.Random(7)
    for owner, name, value in ((fanout, "SLICE", -1.0), (fanout, "RING", 30_000), (watcher, "FLUSH", 3_000)):
        monkeypatch.setattr(owner, name, value)
    starts = []
    for number in range(400):
        fleet.write(source.choice(("east", "west")), pod(f"p{source.randrange(30)}", "default" if number % 3 else "other"))
        if number % 8 == 0 and number < 320:
            starts.append(fleet.clock.head if source.random() < 0.7 or not starts else source.choice(starts))
            clients.open(f"resourceVersion={starts[-1]}", pause=0.002 * (source.random() < 0.3))
        if source.random() < 0.3:
            await asyncio.sleep(source.choice((0, 0, 0.001, 0.004)))
    entries = [entry for entry in fleet.clock.state.log.entries if entry.type != "HIDDEN"]
    await eventually(lambda: all(got and version(got[-1]) == entries[-1].fleet for got in clients.got))
    for start, got in zip(starts, clients.got, strict=True):
        expected = [(entry.fleet, entry.type, entry.name) for entry in entries if entry.fleet > start]
        assert [(version(event), event["type"], event["object"]["metadata"]["name"]) for event in got] == expected
    assert groups(fleet)


async def test_who_waits_without_bookmarks_waits(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for a moment that has passed, again and again."""
    monkeypatch.setattr(watcher, "BOOKMARK_EVERY", 0.05)
    looks = 0
    between = Watcher._between

    async def counting(self: Watcher, deadline: float) -> float | None:
        nonlocal looks
        looks += 1
        return await between(self, deadline)

    monkeypatch.setattr(Watcher, "_between", counting)
    async with fleet.watch(f"resourceVersion={fleet.clock.head}") as stream:
        assert await stream.silent(0.5)
    assert looks < 20


def version(event: Any) -> int:
    return int(event["object"]["metadata"]["resourceVersion"])

