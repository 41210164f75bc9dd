"""What payload feeds keep and drop."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from reads_fake import PODS, FakeClock

from _fastpath.marker import DIFF, EVENT, Marker
from _fastpath.splice import scan_frame
from services.aggregator.clock.position import Position
from services.aggregator.clock.state import Change
from services.aggregator.clock.tap import Tap
from services.aggregator.reads import payload_feed
from services.aggregator.reads.member_stream import MemberStream, Payload, StreamOptions
from services.aggregator.reads.owed import Owed
from services.aggregator.reads.payload_feed import PayloadFeed
from services.aggregator.reads.table import Columns

OPTIONS = StreamOptions("/api/v1/pods", "", "", "", False, "Pod", "v1")


def feed_of(clock: FakeClock) -> PayloadFeed:
    return PayloadFeed(clock, PODS, "v1", OPTIONS, Columns(), version=clock.head, positions={}, owed=Owed())  # type: ignore[arg-type]


def log(clock: FakeClock, life: str, name: str, version: int) -> None:
    marker = Marker("west", life, "default", name, "11111111-2222-4333-8444-555555555555", version, {}, kind=EVENT)
    clock.state.apply(Change(clock.state.revision + 1, [(0, marker)], {"west": Position(life, version, version)}))


def stream_of(feed: PayloadFeed, life: str) -> Any:
    stream = SimpleNamespace(cluster="west", incarnation=life, dropped=[])
    stream.drop = stream.dropped.append
    feed._streams["west"] = stream
    return stream


def offer(feed: PayloadFeed, stream: Any, name: str, version: int) -> None:
    payload = Payload(stream, ("default", name, version), b"x" * 100, None, 100)  # type: ignore[arg-type]
    assert feed._keep(payload, False)


@pytest.mark.parametrize("how", ["restored", "left"])
async def test_payloads_that_nothing_will_name_do_not_stop_the_dropping(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(payload_feed, "KEEP", 500)
    monkeypatch.setattr(payload_feed, "SLACK", 0)
    clock = FakeClock()
    clock.members["west"] = SimpleNamespace(cluster="west")
    feed = feed_of(clock)
    old = stream_of(feed, "uid/0")
    log(clock, "uid/0", "a", 900)
    offer(feed, old, "a", 901)  # told by the member, never logged: it was set back, or left, before
    if how == "restored":
        new = stream_of(feed, "uid/1")
        log(clock, "uid/1", "a", 10)
    else:
        del clock.members["west"]
        new = old
    for version in range(11, 31):
        if how == "restored":
            log(clock, "uid/1", "a", version)
        offer(feed, new, "a", version)
    assert old.dropped and feed._size <= 600


async def test_payloads_ahead_of_the_log_are_kept() -> None:
    clock = FakeClock()
    position = Position("uid/0", 900, 900, diff=True, target="uid/1")
    clock.members["west"] = SimpleNamespace(cluster="west", position=position)
    feed = feed_of(clock)
    log(clock, "uid/0", "a", 900)
    new = stream_of(feed, "uid/1")
    offer(feed, new, "a", 5)  # the log has not heard of the new life yet
    assert feed._fleet_of(feed._order[0]) is None


async def test_payloads_of_a_life_that_nobody_has_met_the_end_of_do_not_stop_the_dropping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A watcher of a quiet namespace asks for nothing, so that the stream of the old life goes on."""
    monkeypatch.setattr(payload_feed, "KEEP", 500)
    monkeypatch.setattr(payload_feed, "SLACK", 0)
    clock = FakeClock()
    clock.members["west"] = SimpleNamespace(cluster="west", position=Position("uid/1", 900, 900))
    feed = feed_of(clock)
    old = stream_of(feed, "uid/0")
    for version in range(901, 921):
        log(clock, "uid/1", "a", version)
        offer(feed, old, "a", version)
    assert old.dropped and feed._size <= 600
    assert feed._pause(old) is None


async def test_payloads_that_the_log_passed_over_do_not_stop_the_dropping() -> None:
    clock = FakeClock()
    west = SimpleNamespace(cluster="west", position=Position("uid/0", 905, 904))
    clock.members["west"] = west
    feed = feed_of(clock)
    stream = stream_of(feed, "uid/0")
    log(clock, "uid/0", "a", 900)
    offer(feed, stream, "a", 905)
    assert feed._fleet_of(feed._order[0]) is None  # more may come of that version
    west.position = Position("uid/0", 906, 905)
    assert feed._fleet_of(feed._order[0]) == clock.head
    west.position = Position("uid/0", 906, 905, diff=True, target="uid/0")
    assert feed._fleet_of(feed._order[0]) is None


async def test_a_deletion_that_a_list_implies_does_not_take_the_next_objects_payload() -> None:
    """Such a deletion carries the list's version: that of the newest write, which may be the name's next object."""
    clock = FakeClock()
    clock.members["west"] = SimpleNamespace(cluster="west")
    feed = feed_of(clock)
    stream = stream_of(feed, "uid/0")
    payload = Payload(stream, ("default", "a", 50), b"x" * 100, SimpleNamespace(uid="the next"), 100)  # type: ignore[arg-type]
    stream.payloads = {payload.key: payload}
    gone = Marker("west", "uid/0", "default", "a", "the old", 50, {}, deleted=True, kind=DIFF)
    assert feed.find(gone) is None
    assert feed.find(Marker("west", "uid/0", "default", "a", "the next", 50, {}, kind=DIFF)) is payload


async def test_a_stream_goes_on_by_the_clocks_feed_when_that_watches_again() -> None:
    """A feed watches again right before the last version that it saw: what lies between two versions is nothing."""
    tap = Tap()
    stream = MemberStream(
        "west", "uid/0", SimpleNamespace(), OPTIONS, Columns(), start=5, keep=lambda payload, listed: False,  # type: ignore[arg-type]
        pause=lambda one: None, tap=tap,
    )  # fmt: skip
    try:
        tap.opened("uid/0", 5)
        await asyncio.sleep(0)
        for version in (10, 20):
            frame = b'{"type":"MODIFIED","object":{"metadata":{"name":"a","resourceVersion":"%d"}}}' % version
            tap.passed(frame, *scan_frame(frame), version)
        assert stream.seen == 20
        tap.closed()
        await asyncio.sleep(0)
        tap.opened("uid/0", 19)
        assert stream in tap._attached
    finally:
        await stream.close()
