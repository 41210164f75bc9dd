"""Who joins a feed's watch must miss nothing and get nothing of another life of the cluster."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from services.aggregator.clock.tap import Tap


class Taker:
    def __init__(self, incarnation: str = "a/0", resume: int = 0) -> None:
        self.incarnation, self.resume = incarnation, resume
        self.frames: list[bytes] = []
        self.offers = self.ends = 0
        self.gate: asyncio.Future[None] | None = None

    def offered(self) -> None:
        self.offers += 1

    def take(self, frame: bytes, kind: str, meta: Any) -> None:
        self.frames.append(frame)

    def ended(self) -> None:
        self.ends += 1

    def pause(self) -> asyncio.Future[None] | None:
        return self.gate


def passed(tap: Tap, frame: bytes, version: int) -> None:
    tap.passed(frame, "MODIFIED", cast(Any, None), version)


def test_attaches_only_where_nothing_is_missed() -> None:
    tap = Tap()
    behind, level, other = Taker(resume=9), Taker(resume=10), Taker("b/0", resume=99)
    assert not tap.attach(level)  # closed
    tap.opened("a/0", 10)
    assert [tap.attach(one) for one in (behind, level, other)] == [False, True, False]
    passed(tap, b"11", 11)
    late = Taker(resume=10)
    assert not tap.attach(late)
    late.resume = 11
    assert tap.attach(late)
    passed(tap, b"12", 12)
    assert level.frames == [b"11", b"12"] and late.frames == [b"12"] and not behind.frames
    tap.closed()
    assert (level.ends, late.ends, behind.ends) == (1, 1, 0)
    assert not tap.attach(late)


def test_a_feed_with_metadata_is_asked_to_watch_anew_once() -> None:
    tap, asked = Tap(), []
    tap.reopen = lambda: asked.append(1)
    first = Taker(resume=5)
    tap.want(first)
    assert tap.wanted and asked == [1]
    tap.closed()  # the old watch
    tap.opened("a/0", 5)
    assert first.offers == 1
    tap.want(Taker())
    assert asked == [1]  # it carries whole objects by now
    tap.leave(first)
    assert tap.wanted


async def test_a_full_sink_holds_the_feed() -> None:
    tap, slow = Tap(), Taker(resume=1)
    tap.opened("a/0", 1)
    tap.attach(slow)
    slow.gate = asyncio.get_running_loop().create_future()
    room = asyncio.ensure_future(tap.room())
    await asyncio.sleep(0)
    assert not room.done()
    slow.gate.set_result(None)
    await room


async def test_a_feed_that_is_ending_is_not_told_to_end_again() -> None:
    """Its time-out may have run out, and its watch not be closed yet: a second word to it would be an error."""
    tap = Tap()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as scope:
            tap.reopen = lambda: scope.reschedule(0)
            tap.want(Taker())
            try:
                await asyncio.sleep(10)
            finally:
                tap.want(Taker())
    assert tap.wanted
