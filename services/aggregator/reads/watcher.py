"""One client's watch: the log walked in order, each entry with its payload, in the client's form."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from _fastpath.marker import CLASH, DIFF, LEAVE, Marker
from services.aggregator.clock.cursor import Cursor
from services.aggregator.reads.fields import values_of
from services.aggregator.reads.frames import Frames
from services.aggregator.reads.judge import Judge, Type
from services.aggregator.reads.member_stream import LATE, Payload
from services.aggregator.reads.payload_feed import PayloadFeed
from services.aggregator.reads.presenter import Presenter
from services.aggregator.reads.proto_frames import ProtoFrames
from services.aggregator.reads.query import ReadOptions
from services.aggregator.types import Aggregated
from services.common.errors import StatusError

if TYPE_CHECKING:
    from services.aggregator.clock.clock import ResourceClock

log = logging.getLogger(__name__)

TAKE = 256  # entries per step
FLUSH = 64 * 1024  # bytes after which events made so far go out: what is made ahead is kept once per slow client
PATIENCE = LATE
BOOKMARK_EVERY = 50.0  # seconds; clients are promised one a minute
LOOK_EVERY = 10.0  # seconds between looks at what has no event
NO_EVENT = (DIFF, LEAVE, CLASH)  # deletions that the member never told
NO_FENCE = 1 << 127  # above all versions


@dataclass(slots=True)
class Feeds:
    """Where a watch's payloads come from; `fields` are whole objects, where the shown form is not enough."""

    shown: PayloadFeed
    fields: PayloadFeed | None = None

    def all(self) -> list[PayloadFeed]:
        """One or both."""
        return [self.shown] if self.fields is None else [self.shown, self.fields]


Write = Callable[[bytes], Awaitable[None]]


class Place(Protocol):
    """Among watchers that get the same (`fanout.Seat`)."""

    @property
    def position(self) -> int:
        """All up to it was sent."""

    async def wait(self, seconds: float) -> bool:
        """True after so long; False when the watcher must go on alone."""

    def leave(self) -> int:
        """Returns the position to go on from."""


class Watcher:
    """Sends everything after `position`; `granted` says which clusters this client may see (None: all)."""

    def __init__(
        self, clock: ResourceClock, aggregated: Aggregated, options: ReadOptions, frames: Frames | ProtoFrames, judge: Judge,
        presenter: Presenter, write: Write, position: int,
    ) -> None:  # fmt: skip
        self._position = position
        self._cursor: Cursor | None = None
        self._place: Place | None = None
        self._bookmark_at = 0.0
        self._fence = NO_FENCE  # what was made so far goes out before an entry behind it
        self.join: Callable[[], Place | None] | None = None  # sits down with others that get the same
        self.denied: frozenset[str] = frozenset()
        self.granted: frozenset[str] | None = None
        self.feeds: Feeds | None = None
        self.switch: Callable[[], Awaitable[None]] | None = None  # looks for a better feed
        self.learn: Callable[[], Awaitable[None]] | None = None  # asks again for what the judge could not be told
        self.ask: Callable[[str], Awaitable[None]] | None = None  # about a cluster that is in neither set; raises mostly
        self.recheck: Callable[[], Awaitable[None]] | None = None  # raises when the permitted members changed
        self.clock, self.aggregated, self.options = clock, aggregated, options
        self.frames, self.judge, self.presenter, self._write = frames, judge, presenter, write
        self._out: list[bytes] = []
        self._out_size = 0
        self._columns = b"" if frames.layout is None else frames.layout.definitions
        fields = options.fields
        self._topic = (judge.namespace or fields.exact("metadata.namespace") or "", fields.exact("metadata.name") or "")
        self._sent = clock.tally.members
        self._traces = clock.traces
        self._traced: list[int] = []  # of what is in _out
        self._drop_object = options.include == "None" and frames.layout is not None

    @property
    def position(self) -> int:
        """All up to it was sent, or is not for this client: while it waits, whatever happens elsewhere is not."""
        if self._place is not None:
            return self._place.position
        passed = self._cursor.passed if self._cursor is not None else None
        return self._position if passed is None else max(self._position, passed)

    @property
    def _private(self) -> bool:
        return self.feeds is not None and any(feed.private for feed in self.feeds.all())

    async def run(self, deadline: float) -> None:
        """Until `deadline` (monotonic). StatusError ends the watch with an ERROR event."""
        self._bookmark_at = time.monotonic() + BOOKMARK_EVERY
        cursor = self._cursor = self.clock.cursor(self._position)
        while True:
            entries = cursor.take(TAKE)
            if entries:
                if self.recheck is not None:
                    await self.recheck()  # what came while this one waited may not be for it any more
                await self._send(entries)
                await self._flush()
            self._position = max(self._position, cursor.position)
            if len(entries) == TAKE and time.monotonic() < deadline:
                continue
            # Only with nothing left to take, and nothing awaited since: others may not be told what this one lacks.
            place = self.join() if self.join is not None and self._position == self.clock.head else None
            if place is not None:
                if not await self._sit(place, deadline):
                    return
                cursor = self._cursor = self.clock.cursor(self._position)
                continue
            left = await self._between(deadline)
            if left is None:
                return
            # A private feed waits for its watcher to pass every entry.
            await cursor.wait(left, ("", "") if self._private else self._topic)
            self._position = max(self._position, cursor.position)

    async def _sit(self, place: Place, deadline: float) -> bool:
        """Others get the same: one walks the log for all. False when the watch is over, True to go on alone."""
        feed = self.feeds.shown if self.feeds is not None else None
        assert feed is not None
        self._place, self._cursor = place, None
        feed.users.discard(self)  # what is still needed is the other's to say
        try:
            while (left := await self._between(deadline)) is not None:
                if not await place.wait(left):
                    return True
            return False
        finally:
            self._place, self._position = None, place.leave()
            feed.users.add(self)

    async def _between(self, deadline: float) -> float | None:
        """Do what is due beside events. Seconds until there is more of it; None when the watch is over."""
        now = time.monotonic()
        if now >= self._bookmark_at or now >= deadline:
            # A log that has not reached the client's version yet knows nothing of it: its bookmark would only be an echo.
            if self.options.bookmarks and self.position <= self.clock.head:
                await self._write(self.frames.bookmark(self.position))
            self._bookmark_at = now + BOOKMARK_EVERY
        if now >= deadline:
            return None
        if self.switch is not None and self._private:
            await self.switch()
        if self.recheck is not None:
            await self.recheck()
        return min(deadline, self._bookmark_at, now + LOOK_EVERY) - now

    async def _flush(self) -> None:
        self._out_size = 0
        if self._out:
            data = b"".join(self._out) if len(self._out) > 1 else self._out[0]
            self._out.clear()
            await self._write(data)
            if self._traced:
                self._traces.delivered(self._traced)
                self._traced.clear()

    async def _send(self, entries: Sequence[Marker]) -> None:
        feeds = self.feeds
        assert feeds is not None
        if len(entries) > 1:
            await self._prefetch(entries, feeds)
        for entry in entries:
            if entry.fleet > self._fence:
                await self._at_fence(entry.fleet)
            if entry.cluster not in self.denied and (self.granted is None or entry.cluster in self.granted):
                frame = self._quick(entry, feeds.shown)
                if frame is None:
                    frame = await self._slow(entry, feeds)
                if frame:
                    self._append(entry, frame)
            elif entry.cluster not in self.denied and self.ask is not None:
                await self._flush()
                await self.ask(entry.cluster)
            if feeds.shown.private:
                for feed in feeds.all():
                    feed.consumed(entry)
            self._position = entry.fleet
            if self._out_size >= FLUSH:
                await self._flush()

    async def _at_fence(self, fleet: int) -> None:
        """The next entry, of version `fleet`, is behind the fence."""
        raise NotImplementedError

    def _append(self, entry: Marker, frame: bytes) -> None:
        size = len(frame)
        self._out.append(frame)
        self._out_size += size
        sent = self._sent[entry.cluster]
        sent.deliveries += 1
        sent.bytes += size
        if entry.fleet in self._traces.open:
            self._traced.append(entry.fleet)

    def _quick(self, entry: Marker, feed: PayloadFeed) -> bytes | None:
        """The frame, b"" for nothing to send, None when something must be waited for. The hot path."""
        judge = self.judge
        if judge.on_payload or entry.kind in NO_EVENT:
            return None
        type_ = judge.decide(entry, None)
        if type_ is None:
            judge.sent(entry, None)
            return b""
        payload = feed.find(entry)
        if payload is None:
            return None
        key = (entry.fleet, type_, self._columns, self.frames.told)
        frame = payload.frames.get(key) if not self._drop_object else None
        if frame is None:
            body = self.presenter.present(entry.cluster, payload.raw, payload.meta, entry.fleet, payload.end)
            if body is None:
                return None
            frame = self._frame(entry, type_, payload, body, feed)
            if not self._drop_object:
                payload.frames[key] = frame
        self.frames.told = True
        judge.sent(entry, type_)
        return frame

    async def _slow(self, entry: Marker, feeds: Feeds) -> bytes:
        judge = self.judge
        values = None
        if entry.cluster in judge.unsure and self.learn is not None:
            await self.learn()  # the member is back: it tells of changes
        if judge.on_payload and judge.needs_payload(entry):
            judged = await self._payload(entry, feeds, fields=True)
            if judged is None:
                judge.skipped(entry)
                return b""
            values = self._values(judged)
        type_ = judge.decide(entry, values)
        if type_ is None:
            judge.sent(entry, None)
            return b""
        payload = await self._payload(entry, feeds)
        if payload is None:
            if type_ == "DELETED":
                judge.sent(entry, type_)
                return self.frames.gone(entry, entry.fleet, self._old_labels(entry) or entry.labels)
            judge.skipped(entry)
            return b""
        body = await self.presenter.show(entry.cluster, payload.raw, payload.meta, entry.fleet, payload.end)
        frame = self._frame(entry, type_, payload, body, feeds.shown)
        judge.sent(entry, type_)
        return frame

    def _frame(self, entry: Marker, type_: Type, payload: Payload, body: bytes, feed: PayloadFeed) -> bytes:
        if type_ == "DELETED" and entry.type != "DELETED" and self.options.labels:
            # It left the selector: Kubernetes shows the state that still matched.
            old = self._old_labels(entry)
            if old is not None:
                body = self.frames.with_labels(body, old)
        layout = self.frames.layout
        if layout is not None:
            if self._drop_object:
                body = b"null"
            row = payload.raw[: payload.meta.start] + body + payload.raw[payload.end :]
            body = layout.row(entry.cluster, feed.columns.places(entry.cluster), row)
        return self.frames.object(type_, entry.fleet, body)

    @staticmethod
    def _old_labels(entry: Marker) -> dict[str, str] | None:
        before = entry.before
        return before.labels if before is not None else None

    def _values(self, payload: Payload) -> dict[str, str]:
        """The payload's selectable fields, with the host's uids where copies have others."""
        fields = self.options.fields.on_payload
        if payload.values is None or any(term.field not in payload.values for term in fields.terms):
            body = payload.body
            found = values_of(fields, body, self.aggregated.group, self.aggregated.resource)
            payload.values = {**(payload.values or {}), **found}
        return self.presenter.shown_values(payload.stream.cluster, payload.values)

    async def _prefetch(self, entries: Sequence[Marker], feeds: Feeds) -> None:
        """Ask for all objects of a batch at once that only the members can still give."""
        wanted = []
        for feed in feeds.all():
            wanted += [
                feed.fetch(entry) for entry in entries
                if feed.find(entry) is None and entry.type != "DELETED" and self.judge.needs_payload(entry)
                and not feed.may_come(entry) and not self._superseded(entry) and not feed.given_up(entry)
            ]  # fmt: skip
        if len(wanted) > 1:
            await asyncio.gather(*wanted, return_exceptions=True)  # failures show when the entry's turn comes
        else:
            for coroutine in wanted:
                coroutine.close()

    def _superseded(self, entry: Marker) -> bool:
        """Has the object a later entry in the log?"""
        newest = self.clock.marker(entry.cluster, entry.namespace, entry.name)
        return newest is None or newest.fleet > entry.fleet

    async def _payload(self, entry: Marker, feeds: Feeds, *, fields: bool = False) -> Payload | None:
        """The entry's payload; None when it cannot be had and a later entry makes up for it."""
        await self._flush()  # what was made so far does not wait with this one
        until = time.monotonic() + PATIENCE
        silent = entry.type == "DELETED" and entry.kind in NO_EVENT
        while True:
            if self.switch is not None and not all(feed.covers(self._position) for feed in feeds.all()):
                # The shared feed went on without us: another is opened where we stand.
                await self.switch()
            feed = (feeds.fields if fields else None) or feeds.shown
            payload = feed.find(entry)
            if payload is not None or silent or feed.closed or feed.given_up(entry):
                return payload
            if feed.refused and self.recheck is not None:
                await self.recheck()  # raises where the form was protobuf: the client begins anew in another
            left = until - time.monotonic()
            if left > 0 and feed.may_come(entry):
                await feed.wait(entry, left)
                continue
            if entry.type == "DELETED" or self._superseded(entry):
                return None
            try:
                payload = await feed.fetch(entry)
                if payload is None:
                    feed.pass_over(entry)
                return payload
            except StatusError as error:
                if left <= 0 or (error.code < 500 and error.code != 429):
                    log.info("%s: %s/%s: %s", entry.cluster, entry.namespace, entry.name, error.message)
                    await feed.give_up(entry)
                    return None
                await asyncio.sleep(0.1)
