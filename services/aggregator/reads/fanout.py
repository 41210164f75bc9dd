"""One walk of the log for all watchers that get the same bytes.

A watcher that has taken everything sits down with its like (the same resource, form and selectors, from the same feed).
A group walks the log for all who sit: each batch of frames is made, joined and framed as one HTTP chunk once, and what is
left per watcher is a write to its transport. No task is woken and no timer made per watcher and event. A client whose
buffers are full is passed over and catches up from the batches that are kept for such, RING bytes per group and RINGS
for all groups together; one that falls behind those goes on alone, as does everybody where something is each one's own
matter.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

from _fastpath.marker import Marker
from services.aggregator.clock.traces import DELIVERIES_MAX
from services.aggregator.reads.judge import Judge
from services.aggregator.reads.payload_feed import PayloadFeed, User
from services.aggregator.reads.watcher import NO_FENCE, Feeds, Watcher
from services.common.errors import StatusError
from services.common.tasks import Tasks

log = logging.getLogger(__name__)

RING = 4 * 1024 * 1024  # bytes of batches that a group keeps for clients that are slower than others
RINGS = 64 * 1024 * 1024  # bytes that all groups keep so: selectors make as many groups as a user likes
SLICE = 0.003  # seconds of writing after which the loop's other work has its turn


class Client(NamedTuple):
    """How a watch's bytes leave."""

    push: Callable[[bytes], bool]
    """Writes at once, without waiting; False when nothing more should come before `drain` is through."""
    drain: Callable[[], Awaitable[None]]
    """Waits until the client has taken enough; ConnectionError when it is gone."""


class Alone(Exception):
    """What comes next every watcher must see to for itself."""


class _GroupJudge(Judge):
    """What a client lacks is its own matter: whoever skips an entry does so alone."""

    def skipped(self, entry: Marker) -> None:
        raise Alone(f"{entry.cluster}: {entry.namespace}/{entry.name} is passed over")


@dataclass(slots=True)
class Batch:
    """Frames up to version `to`, as one chunk. `counts`: cluster -> [events, bytes]; `pushed` of `counted` are told."""

    to: int
    chunk: bytes
    counts: dict[str, list[int]]
    traced: list[int]
    pushed: int = 0
    counted: int = 0


class Seat:
    """One watcher's place in a group. `next` is the number of the batch that it gets next."""

    __slots__ = ("_at", "_client", "_group", "_woken", "lagging", "next", "seated", "watcher")

    def __init__(self, group: Group, watcher: Watcher, client: Client) -> None:
        self.watcher, self.next = watcher, group.next
        self.seated, self.lagging = True, False
        self._group, self._client = group, client
        self._at = watcher.position
        self._woken: asyncio.Future[None] | None = None

    @property
    def position(self) -> int:
        """All up to it was written to the client, or is not for it."""
        return max(self._at, self._group.settled) if self.next == self._group.next else self._at

    def push(self, batch: Batch) -> bool:
        """Write a batch, the seat's next; False when the client is to take what it has first."""
        self.next += 1
        if batch.to <= self._at:
            return True
        self._at = batch.to
        batch.pushed += 1
        return self._client.push(batch.chunk)

    async def wait(self, seconds: float) -> bool:
        """True after so long; False when the watcher must go on alone."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while self.seated or self.lagging:
            if self.lagging:
                try:
                    async with asyncio.timeout_at(until):
                        await self._client.drain()
                except TimeoutError:
                    return True
                if self.seated:
                    self._group.catch_up(self)
                else:
                    self.lagging = False
            elif loop.time() >= until:
                return True
            else:
                woken = self._woken = loop.create_future()
                timer = loop.call_at(until, _wake, woken)
                try:
                    await woken
                finally:
                    timer.cancel()
        return False

    def wake(self) -> None:
        """Something is the watcher's to do."""
        if self._woken is not None:
            _wake(self._woken)

    def leave(self) -> int:
        """Get up; returns the position to go on from."""
        position = self.position
        self._group.leave(self)
        return position


class Rings:
    """What all groups keep for slow clients, in bytes."""

    def __init__(self) -> None:
        self.kept: dict[Group, int] = {}
        self.total = 0

    def keep(self, group: Group, size: int) -> None:
        """A group keeps so much now."""
        self.total += size - self.kept.pop(group, 0)
        if size:
            self.kept[group] = size

    def trim(self) -> None:
        """Whoever keeps most lets it go, as often as it takes."""
        while self.total > RINGS:
            max(self.kept, key=self.kept.__getitem__).shed()


class Group(Watcher):
    """Walks the log for its seats. Owned by one loop; `serve` is its task."""

    def __init__(self, like: Watcher, feed: PayloadFeed, rings: Rings, ended: Callable[[Group], None]) -> None:
        judge = _GroupJudge(like.options, like.judge.namespace)
        options = replace(like.options, bookmarks=False)
        super().__init__(
            like.clock, like.aggregated, options, like.frames, judge, like.presenter, _nobody, like.position
        )  # fmt: skip
        self.feeds, self.denied = Feeds(feed), like.denied
        self.switch = self._alone
        self.recheck = self._while_served
        self.next = 0
        self._ended = ended
        self._seats: dict[Seat, None] = {}  # in the order in which they sat down
        self._lagging: set[Seat] = set()
        self._ring: dict[int, Batch] = {}
        self._kept, self._rings = 0, rings
        self._rendered = like.position
        self._parts: list[tuple[Marker, bytes]] = []
        self._fences: set[int] = set()
        feed.users.add(self)

    # Seats.

    def sit(self, watcher: Watcher, client: Client) -> Seat:
        """A seat for a watcher that has taken everything in the log: the group has, at most."""
        seat = Seat(self, watcher, client)
        self._seats[seat] = None
        if watcher.position > self.position:
            # It has some of what the group has still to send: a batch must end there.
            self._fences.add(watcher.position)
            self._fence = min(self._fences)
        return seat

    def leave(self, seat: Seat) -> None:
        """Take a seat away; without any the group ends."""
        self._put_out([seat])
        self._prune()
        if not self._seats:
            self._ended(self)

    def shed(self) -> None:
        """Keep nothing: who is behind goes on alone."""
        self._put_out(list(self._lagging))
        self._prune()
        if not self._seats:
            self._ended(self)

    def _put_out(self, seats: list[Seat]) -> None:
        for seat in seats:
            self._seats.pop(seat, None)
            self._lagging.discard(seat)
            seat.seated = False
            seat.wake()

    @property
    def settled(self) -> int:
        """Up to here nothing is left to write to a seat that has had every batch."""
        return self._rendered if self._parts else max(self._rendered, self.position)

    # Walking.

    async def serve(self) -> None:
        """Until it is cancelled, or nobody can be served together any more."""
        try:
            await self.run(math.inf)
        except (Alone, StatusError) as reason:
            log.info("%d watchers of %s go on alone: %s", len(self._seats), self.aggregated.key, reason)
        finally:
            self._put_out(list(self._seats))
            self._prune()
            self._ended(self)

    async def _alone(self) -> None:
        raise Alone("the feed went on without them")

    async def _while_served(self) -> None:
        assert self.feeds is not None
        if self.feeds.shown.refused:
            raise Alone("a member has not this form")
        if self.clock.aggregated.authorization != self.aggregated.authorization:
            raise Alone("who may see it is another's to say now")

    def _append(self, entry: Marker, frame: bytes) -> None:
        self._parts.append((entry, frame))
        self._out_size += len(frame)

    async def _flush(self) -> None:
        parts, self._parts = self._parts, []
        self._out_size = 0
        if parts:
            batch = self._batch(parts)
            self._rendered = batch.to
            self._ring[self.next] = batch
            self._kept += len(batch.chunk)
            self.next += 1
            await self._broadcast(batch)
            if not self._seats:
                raise Alone("all of them are too slow")

    async def _at_fence(self, fleet: int) -> None:
        await self._flush()
        self._fences = {one for one in self._fences if one >= fleet}
        self._fence = min(self._fences, default=NO_FENCE)

    def _batch(self, parts: list[tuple[Marker, bytes]]) -> Batch:
        counts: dict[str, list[int]] = {}
        for entry, frame in parts:
            one = counts.setdefault(entry.cluster, [0, 0])
            one[0] += 1
            one[1] += len(frame)
        traced = [entry.fleet for entry, _ in parts if entry.fleet in self._traces.open] if self._traces.open else []
        head = b"%x\r\n" % sum(one[1] for one in counts.values())  # RFC 9112, 7.1
        return Batch(parts[-1][0].fleet, b"".join((head, *(frame for _, frame in parts), b"\r\n")), counts, traced)

    async def _broadcast(self, batch: Batch) -> None:
        number, until = self.next - 1, time.monotonic() + SLICE
        for seat in tuple(self._seats):
            # Who sits down or catches up meanwhile is past it; the numbers tell.
            if seat.next != number or seat.lagging or not seat.seated:
                continue
            if not seat.push(batch):
                seat.lagging = True
                self._lagging.add(seat)
                seat.wake()
            if time.monotonic() > until:
                await asyncio.sleep(0)
                until = time.monotonic() + SLICE
        self._tell(batch)
        self._prune()
        self._rings.trim()

    def catch_up(self, seat: Seat) -> None:
        """The client has room again: write what it has not had yet, until it has no more."""
        while seat.next < self.next:
            if not seat.push(self._ring[seat.next]):
                return
        seat.lagging = False
        self._lagging.discard(seat)
        self._prune()

    def _prune(self) -> None:
        """Drop batches that everybody had, and those that are too much to keep for those who had not."""
        low = min((seat.next for seat in self._lagging), default=self.next)
        first = self.next - len(self._ring)
        while first < low or self._kept > RING:
            batch = self._ring.pop(first)
            self._kept -= len(batch.chunk)
            self._tell(batch)
            first += 1
        self._rings.keep(self, self._kept)
        self._put_out([seat for seat in self._lagging if seat.next < first])

    def _tell(self, batch: Batch) -> None:
        """Count what was written of a batch since it was told last."""
        times, batch.counted = batch.pushed - batch.counted, batch.pushed
        if not times:
            return
        for cluster, (events, size) in batch.counts.items():
            sent = self._sent[cluster]
            sent.deliveries += events * times
            sent.bytes += size * times
        if batch.traced:
            for _ in range(min(times, DELIVERIES_MAX)):
                self._traces.delivered(batch.traced)


class Fanout:
    """The groups of one aggregator. `release` lets go of a feed."""

    def __init__(self, release: Callable[[PayloadFeed, User], None]) -> None:
        self._release = release
        self._groups: dict[Hashable, Group] = {}
        self._alike: Counter[Hashable] = Counter()
        self._tasks = Tasks("fan-out")
        self._running: dict[Group, asyncio.Task[None]] = {}
        self._rings = Rings()

    @contextmanager
    def member(self, watcher: Watcher, likeness: Hashable, client: Client) -> Iterator[None]:
        """While this lasts the watcher may share its walk with others of the same `likeness` (not None)."""
        self._alike[likeness] += 1
        watcher.join = lambda: self._join(watcher, likeness, client)
        try:
            yield
        finally:
            watcher.join = None
            self._alike[likeness] -= 1
            if not self._alike[likeness]:
                del self._alike[likeness]

    def _join(self, watcher: Watcher, likeness: Hashable, client: Client) -> Seat | None:
        """A seat for a watcher that has taken everything; None where it is better off alone."""
        feed = watcher.feeds.shown if watcher.feeds is not None else None
        if (
            feed is None or feed.private or not feed.covers(watcher.position) or self._alike[likeness] < 2
            or watcher.judge.unseen or not watcher.frames.told
        ):  # fmt: skip
            return None
        key = (likeness, feed)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(watcher, feed, self._rings, lambda ended: self._end(key, ended))
            self._running[group] = self._tasks.spawn(group.serve(), watcher.aggregated.key)
        return group.sit(watcher, client)

    def _end(self, key: Hashable, group: Group) -> None:
        if self._groups.get(key) is group:
            del self._groups[key]
        task = self._running.pop(group, None)
        if task is not None:
            assert group.feeds is not None
            self._release(group.feeds.shown, group)
            if not task.done() and task is not asyncio.current_task():
                task.cancel()

    async def close(self) -> None:
        """End all groups."""
        await self._tasks.close()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _nobody(data: bytes) -> None:
    raise AssertionError("a group writes to its seats")
