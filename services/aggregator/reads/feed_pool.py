"""Which payload feed a watcher uses: a shared one that covers its position, else one of its own until it catches up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from services.aggregator.clock.position import Position
from services.aggregator.reads.codec import JSON, PROTOBUF
from services.aggregator.reads.member_stream import StreamOptions
from services.aggregator.reads.negotiate import Negotiated
from services.aggregator.reads.owed import Owed
from services.aggregator.reads.payload_feed import PayloadFeed, User
from services.aggregator.reads.table import Columns
from services.aggregator.types import Aggregated
from services.common.errors import StatusError
from services.common.tasks import Tasks

if TYPE_CHECKING:
    from services.aggregator.clock.clock import ResourceClock

log = logging.getLogger(__name__)

IDLE = 30.0  # seconds that a feed without watchers stays open
NEAR = 1000 << 7  # fleet versions behind the head up to which a new shared feed starts at a resuming watcher's

FeedKey = tuple[int, str, str, str, str]


class FeedPool:
    """All feeds of one aggregator."""

    def __init__(self) -> None:
        self._shared: dict[FeedKey, PayloadFeed] = {}
        self._locks: dict[FeedKey, asyncio.Lock] = {}
        self._columns: dict[tuple[str, str], Columns] = {}
        self._tasks = Tasks("payload-feeds")
        self.owed = Owed()

    def columns(self, aggregated: Aggregated, served: str) -> Columns:
        """The Table columns of a resource as all its lists and feeds met them."""
        return self._columns.setdefault((aggregated.key, served), Columns())

    def _key(self, clock: ResourceClock, aggregated: Aggregated, served: str, form: Negotiated, include: str) -> FeedKey:
        return (id(clock), aggregated.key, served, form.accept(many=False), include)

    async def acquire(
        self, user: User, clock: ResourceClock, aggregated: Aggregated, served: str, form: Negotiated, include: str,
        vector: Mapping[str, Position] | None = None,
    ) -> PayloadFeed:  # fmt: skip
        """A feed for a watcher at `user.position`; `vector` are the members' positions there, if known."""
        key = self._key(clock, aggregated, served, form, include)
        async with self._locks.setdefault(key, asyncio.Lock()):
            feed = self._shared.get(key)
            if feed is not None and feed.covers(user.position):
                feed.users.add(user)
                return feed
            private = (feed is not None and not feed.closed) or clock.head - user.position > NEAR
            # A watcher may wait for a version of the future: its feed serves the others from now on.
            position = min(user.position, clock.head)
            positions = vector if vector is not None else await self._vector(clock, position)
            feed = self._open(clock, aggregated, served, form, include, position, positions, private)
            feed.users.add(user)
            if not private:
                self._shared[key] = feed
            return feed

    async def better(
        self, feed: PayloadFeed, user: User, clock: ResourceClock, aggregated: Aggregated, served: str,
        form: Negotiated, include: str,
    ) -> PayloadFeed:  # fmt: skip
        """A feed that covers the watcher, a shared one if any does; `feed` itself where nothing is better."""
        if feed.covers(user.position):
            if not feed.private:
                return feed
            shared = self._shared.get(self._key(clock, aggregated, served, form, include))
            if shared is None or shared.closed:
                if clock.head - user.position > NEAR:
                    return feed
            elif not shared.covers(user.position):
                return feed
        other = await self.acquire(user, clock, aggregated, served, form, include)
        if other is not feed:
            self.release(feed, user)
        return other

    def release(self, feed: PayloadFeed, user: User) -> None:
        """The watcher ended; a shared feed stays a while for the next."""
        feed.users.discard(user)
        if feed.users or self._tasks_closed:
            return
        self._tasks.spawn(self._retire(feed), name="retire")

    _tasks_closed = False

    async def _retire(self, feed: PayloadFeed) -> None:
        if not feed.private:
            await asyncio.sleep(IDLE)
            if feed.users:
                return
        for key in [key for key, one in self._shared.items() if one is feed]:
            del self._shared[key]
        await feed.close()

    async def _vector(self, clock: ResourceClock, position: int) -> Mapping[str, Position]:
        """The members' positions at a version or just before; those of now where history does not say."""
        # A version between two events of one member version has no vector: the revision before it may have.
        for version in (position, (position & ~127) - 1):
            if version >= clock.head:
                break
            try:
                return (await clock.vector_at(version)).members
            except StatusError as error:
                # Inside of a diff: what is missing is asked for one by one.
                log.info("no vector at %d: %s", version, error.message)
        return {name: member.position for name, member in clock.members.items() if member.position is not None}

    def _open(
        self, clock: ResourceClock, aggregated: Aggregated, served: str, form: Negotiated, include: str,
        version: int, positions: Mapping[str, Position], private: bool,
    ) -> PayloadFeed:  # fmt: skip
        resource = aggregated.at(served)
        options = StreamOptions(
            path=resource.path(), accept_watch=form.accept(many=False), accept_list=form.accept(many=True),
            include=include, table=form.kind == "table", kind=aggregated.kind, api_version=resource.group_version,
            codec=PROTOBUF if form.protobuf else JSON, marked=resource.marked,
        )  # fmt: skip
        usable = {c: p for c, p in positions.items()
                  if c in clock.members and clock.members[c].state not in ("NoType", "Disengaging")}  # fmt: skip
        return PayloadFeed(
            clock, aggregated, served, options, self.columns(aggregated, served),
            version=version, positions=usable, owed=self.owed, private=private,
        )  # fmt: skip

    async def close(self) -> None:
        """End all feeds."""
        self._tasks_closed = True
        await self._tasks.close()
        await self.owed.close()
        await asyncio.gather(*(feed.close() for feed in self._shared.values()))
        self._shared.clear()


def json_form() -> Negotiated:
    """Whole objects: what field selectors are judged on."""
    return Negotiated()

