"""Watchers of one namespace or name: woken by their own entries only, and none is missed."""

from __future__ import annotations

import asyncio
import random

import pytest
from reads_fake import FakeClock

from _fastpath.marker import Marker
from services.aggregator.clock.cursor import Cursor
from services.aggregator.clock.state import Change, State
from services.aggregator.clock.topics import Topic


def marker(namespace: str, name: str, version: int) -> Marker:
    return Marker("east", "east-uid/0", namespace, name, f"uid-{name}", version, {})


class Watching:
    """Takes all of a topic, as a watcher does: counts how often it was woken and what it looked at."""

    def __init__(self, clock: FakeClock, topic: Topic) -> None:
        self.clock, self.topic = clock, topic
        self.wakes = self.seen = 0
        self.took: list[int] = []
        self.cursor = Cursor(clock, clock.head)
        self.task = asyncio.get_running_loop().create_task(self._run())

    def wants(self, one: Marker) -> bool:
        return self.topic[0] in ("", one.namespace) and self.topic[1] in ("", one.name)

    async def _run(self) -> None:
        while True:
            for one in self.cursor.take():
                self.seen += 1
                if self.wants(one):
                    self.took.append(one.fleet)
            if await self.cursor.wait(5, self.topic):
                self.wakes += 1


async def turn() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


async def test_what_happens_elsewhere_does_not_wake_a_watcher_and_is_never_looked_at() -> None:
    clock = FakeClock()
    watching = [Watching(clock, topic) for topic in (("quiet", ""), ("noisy", "other"), ("", "other"))]
    await turn()
    for number in range(500):
        clock.commit({}, marker("noisy", f"pod-{number}", number + 1))
        await turn()
    assert [(one.wakes, one.seen) for one in watching] == [(0, 0)] * 3
    assert all(one.cursor.passed == clock.head for one in watching), "payloads would be kept for them"
    own = clock.commit({}, marker("noisy", "pod-x", 900), marker("quiet", "one", 901), marker("quiet", "two", 902))
    assert watching[0].cursor.passed is not None
    assert watching[0].cursor.passed < own
    await turn()
    assert (watching[0].wakes, watching[0].seen, len(watching[0].took)) == (1, 2, 2)
    assert [one.wakes for one in watching[1:]] == [0, 0]
    for one in watching:
        one.task.cancel()


@pytest.mark.parametrize("seed", range(5))
async def test_nothing_is_missed_or_repeated_whatever_the_order(seed: int) -> None:
    source, clock = random.Random(seed), FakeClock()
    topics = [("a", ""), ("b", ""), ("", "x"), ("a", "x"), ("", "")]
    watching = [Watching(clock, topic) for topic in topics]
    expected: list[list[int]] = [[] for _ in topics]
    for version in range(1, 400):
        some = [marker(source.choice("abc"), name, version) for name in source.sample("wxyz", source.randint(1, 3))]
        clock.commit({}, *some)
        for one in some:
            for at, watcher in enumerate(watching):
                if watcher.wants(one):
                    expected[at].append(one.fleet)
        if source.random() < 0.5:
            await turn()
    await turn()
    assert [one.took for one in watching] == expected
    for one in watching:
        one.task.cancel()


async def test_a_wait_that_times_out_goes_on_behind_what_passed_meanwhile() -> None:
    clock = FakeClock()
    cursor = Cursor(clock, clock.head)
    waiting = asyncio.ensure_future(cursor.wait(0.05, ("quiet", "")))
    await turn()
    passed = clock.commit({}, marker("noisy", "pod", 1))
    assert not await waiting
    assert cursor.position == passed
    clock.commit({}, marker("quiet", "pod", 2))
    assert [one.namespace for one in cursor.take()] == ["quiet"]


async def test_a_log_that_is_read_anew_wakes_everybody_where_they_were() -> None:
    clock = FakeClock()
    clock.commit({}, marker("noisy", "pod", 1))
    cursor = Cursor(clock, clock.head)
    waiting = asyncio.ensure_future(cursor.wait(5, ("quiet", "")))
    await turn()
    before = clock.commit({}, marker("noisy", "pod", 2))
    anew = State(clock.state.base, 0)
    anew.apply(Change(clock.revision, [(0, marker("noisy", "pod", 2))]))
    anew.apply(Change(clock.revision + 1, [(0, marker("quiet", "pod", 3))]))
    clock.state = anew
    clock.topics.told(anew)
    assert await waiting
    assert cursor.position == before
    assert [one.namespace for one in cursor.take()] == ["quiet"]
