"""Payloads of one resource in one form, from every member, shared by all watchers of that form.

A log entry says that an object changed; its bytes come from here, found by cluster, incarnation, name and
member version. Log and payloads arrive independently: who needs one that is not there yet waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from _fastpath.listing import version_of
from _fastpath.marker import Marker
from _fastpath.splice import SpliceError, list_items, scan, table_row_object
from services.aggregator.clock import metrics
from services.aggregator.clock.metadata import WHOLE_ACCEPT
from services.aggregator.clock.position import Position
from services.aggregator.reads.member_stream import MemberStream, Payload, StreamOptions
from services.aggregator.reads.owed import Owed
from services.aggregator.reads.table import Columns, columns_in
from services.aggregator.types import Aggregated
from services.common.errors import MemberUnreachable, StatusError
from services.common.kube.client import MAX_OBJECT, KubeClient

if TYPE_CHECKING:
    from services.aggregator.clock.clock import ResourceClock

log = logging.getLogger(__name__)

KEEP = 8 * 1024 * 1024  # bytes kept of payloads that every present watcher may have used already
SLACK = 1024 * 1024  # bytes beyond it after which payloads are dropped: not at every event
HARD = 32 * 1024 * 1024  # bytes above which payloads go even if a slow watcher, or the log, did not use them yet
PRIVATE = 2 * 1024 * 1024  # bytes per member that a private feed reads ahead of its watcher
FETCHES = 16  # single objects asked for at once
FETCH_TIMEOUT = 2.0


class User(Protocol):
    """A watcher."""

    @property
    def position(self) -> int:
        """All up to it was sent, or is not for this watcher."""


class PayloadFeed:
    """A shared feed drops its oldest payloads; a private one (for a watcher far behind) waits for its watcher."""

    def __init__(
        self, clock: ResourceClock, aggregated: Aggregated, served: str, options: StreamOptions, columns: Columns,
        *, version: int, positions: Mapping[str, Position], owed: Owed, private: bool = False,
    ) -> None:  # fmt: skip
        self.clock, self.columns, self.private = clock, columns, private
        self._owed = owed
        self.covers_from = version  # payloads of entries above it are here, or will come
        self.users: set[User] = set()
        self.closed = False
        self._options = options
        self._resource = aggregated.at(served)
        # What the clock's own feeds bring when they are asked for whole objects.
        self._tappable = not private and options.accept_watch == WHOLE_ACCEPT and self._resource == aggregated.at()
        self._streams: dict[str, MemberStream] = {}
        self._order: deque[Payload] = deque()
        self._size = 0
        self._paused: dict[str, asyncio.Future[None]] = {}
        self._fetching: dict[tuple[str, str, str, int], asyncio.Task[Payload | None]] = {}
        self._slots = asyncio.Semaphore(FETCHES)
        self._gap_until: dict[str, int] = {}
        for cluster, position in positions.items():
            self._open(cluster, position.incarnation, 0 if position.diff else position.resume)

    @property
    def layout(self) -> Columns:
        """The Table's columns as members told them."""
        return self.columns

    @property
    def refused(self) -> bool:
        """Has a member of the feed no such form?"""
        return any(stream.refused for stream in self._streams.values())

    def covers(self, position: int) -> bool:
        """Can a watcher at `position` go on with this feed?"""
        return not self.closed and position >= self.covers_from

    def _open(self, cluster: str, incarnation: str, start: int) -> MemberStream | None:
        member = self.clock.members.get(cluster)
        if member is None or self.closed:
            return None
        stream = MemberStream(
            cluster, incarnation, member.client, self._options, self.columns,
            start=start, keep=self._keep, pause=self._pause, tap=member.tap if self._tappable else None,
        )  # fmt: skip
        self._streams[cluster] = stream
        return stream

    def stream(self, cluster: str, incarnation: str) -> MemberStream | None:
        """The member's stream; begun now for a member that joined, or came back as another one or by another client.

        A member that left the fleet and joined again is the same cluster, but the client it had is closed.
        """
        found = self._streams.get(cluster)
        member = self.clock.members.get(cluster)
        if found is not None and found.incarnation == incarnation and (member is None or found.client is member.client):
            return found
        if member is None:
            return None
        if self._life(cluster) != incarnation:
            return None
        if found is not None:
            task = asyncio.get_running_loop().create_task(found.close(), name=f"payloads:close:{cluster}")
            task.add_done_callback(lambda _: None)
        return self._open(cluster, incarnation, 0)

    def _life(self, cluster: str) -> str:
        """The incarnation that the cluster's newest entries are of; "" where the log has nothing of it."""
        position = self.clock.members[cluster].position
        return "" if position is None else position.target or position.incarnation

    # Keeping and dropping.

    def _keep(self, payload: Payload, listed: bool) -> bool:
        namespace, name, version = payload.key
        if listed:
            marker = self.clock.marker(payload.stream.cluster, namespace, name)
            if marker is not None and marker.version > version:
                return False
            if marker is not None and marker.version == version and marker.fleet <= self._low():
                return False
        self._size += 2 * len(payload.raw)  # its frames are about as long
        if not self.private:
            self._order.append(payload)
            if self._size > KEEP + SLACK:
                self._evict()
        return True

    def _low(self) -> int:
        return min((user.position for user in self.users), default=self.clock.head)

    def _evict(self) -> None:
        low = self._low()
        while self._order and self._size > KEEP:
            payload = self._order[0]
            fleet = self._fleet_of(payload)
            if fleet is None or (fleet > low and self._size < HARD):
                return
            self.covers_from = max(self.covers_from, fleet)
            self._order.popleft()
            self._forget(payload)

    def _fleet_of(self, payload: Payload) -> int | None:
        """The fleet version that a payload's event got; None when it has none yet."""
        namespace, name, version = payload.key
        stream = payload.stream
        if self._streams.get(stream.cluster) is not stream or stream.cluster not in self.clock.members:
            # Of a member's earlier life, or of one that left: nothing that is to come will name it, and it must not
            # stand in the way of those behind it.
            return self.clock.head
        newest = self.clock.marker(stream.cluster, namespace, name)
        if newest is None:
            return self.clock.head  # gone from the log, tombstone and all
        if newest.incarnation != stream.incarnation:
            # The first of a new life; or of a life that has ended, where no watcher has met an entry of the next one
            # yet: nothing will name it.
            return None if stream.incarnation == self._life(stream.cluster) else self.clock.head
        if newest.version < version:
            # To come; or passed over by the log: the copy of a host's object under the name of one that went.
            position = self.clock.members[stream.cluster].position
            passed = position is not None and not position.diff and position.read > version
            return self.clock.head if passed else None
        one: Marker | None = newest
        while one is not None and one.version > version:
            one = one.prev
        return one.fleet if one is not None else newest.fleet

    def _forget(self, payload: Payload) -> None:
        self._size -= 2 * len(payload.raw)
        payload.stream.drop(payload)

    def _pause(self, stream: MemberStream) -> asyncio.Future[None] | None:
        loop = asyncio.get_running_loop()
        if not self.private:
            if self._size <= HARD:
                return None
            self._evict()
            if self._size <= HARD:
                return None
            # The log is behind: nothing that it will name may go, so members are read no further for a moment.
            late: asyncio.Future[None] = loop.create_future()
            loop.call_later(0.05, _release, late)
            return late
        if stream.size <= PRIVATE:
            return None
        future = self._paused[stream.cluster] = loop.create_future()
        return future

    def consumed(self, marker: Marker) -> None:
        """A private feed's watcher is past this entry: older payloads of the member are not needed any more."""
        stream = self._streams.get(marker.cluster)
        if stream is None or not stream.payloads:
            return
        for payload in list(stream.payloads.values()):
            if payload.key[2] >= marker.version:
                break
            self._forget(payload)
        if stream.size <= PRIVATE and (paused := self._paused.pop(marker.cluster, None)) and not paused.done():
            paused.set_result(None)

    # Finding.

    def find(self, marker: Marker) -> Payload | None:
        """The payload of an entry, if it is here. O(1)."""
        stream = self._streams.get(marker.cluster)
        if stream is None or stream.incarnation != marker.incarnation:
            return None
        found = stream.payloads.get((marker.namespace, marker.name, marker.version))
        if found is not None and found.meta.uid != marker.uid:
            # A list's version stands for what it lacks, and may be that of the next object of this name. And where another
            # cluster has taken a member's place, what came before anybody could notice has versions of its own.
            return None
        return found

    def may_come(self, marker: Marker) -> bool:
        """Can the member's watch still bring it?"""
        stream = self.stream(marker.cluster, marker.incarnation)
        return stream is not None and stream.may_come(marker.version)

    async def wait(self, marker: Marker, seconds: float) -> Payload | None:
        """Wait for the member's watch to bring it; None when it did not, or cannot."""
        stream = self.stream(marker.cluster, marker.incarnation)
        found = self.find(marker)
        if stream is None or found is not None:
            return found
        key = (marker.namespace, marker.name, marker.version)
        await asyncio.wait((stream.wait(key),), timeout=seconds)
        found = self.find(marker)
        if found is None and stream.may_come(marker.version) and stream.overdue():
            metrics.RENEWED.labels(self.clock.aggregated.key, metrics.named(marker.cluster), "payloads").inc()
        if found is None and (more := stream.renewed) and stream.may_come(marker.version):
            # All who wait get what was missed: asked for it, the member may have a newer state only.
            await asyncio.wait((stream.wait(key),), timeout=more)
            found = self.find(marker)
        return found

    async def fetch(self, marker: Marker) -> Payload | None:
        """Ask the member for the object; None when it has a newer one or none (the log will tell).

        StatusError when it did not answer. Watchers that need the same object share the request.
        """
        key = (marker.cluster, marker.namespace, marker.name, marker.version)
        task = self._fetching.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._fetch(marker), name=f"payload:{key}")
            self._fetching[key] = task
            task.add_done_callback(lambda done: self._fetched(key, done))
        return await asyncio.shield(task)

    def _fetched(self, key: tuple[str, str, str, int], task: asyncio.Task[Payload | None]) -> None:
        self._fetching.pop(key, None)
        if not task.cancelled():
            task.exception()  # told to who awaits it; nobody may be left

    async def _fetch(self, marker: Marker) -> Payload | None:
        member = self.clock.members.get(marker.cluster)
        stream = self.stream(marker.cluster, marker.incarnation)
        if member is None or stream is None:
            return None
        body = await self._get(member.client, marker)
        if body is None:
            return None
        try:
            payload = self._parse(stream, body)
        except SpliceError as error:
            raise MemberUnreachable(f"cluster {marker.cluster}: its answer is no object: {error}") from error
        if payload.key[2] != marker.version or payload.meta.uid != marker.uid:
            return None
        self._size += 2 * len(payload.raw)
        if not self.private:
            self._order.append(payload)
        stream.put(payload)
        return payload

    async def _get(self, client: KubeClient, marker: Marker) -> bytes | None:
        path = self._resource.path(marker.namespace or None, marker.name)
        query = {"includeObject": self._options.include} if self._options.include else None
        headers = {"Accept": self._options.accept_watch}
        async with self._slots:
            try:
                answer = await client.request(
                    "GET", path, query=query, headers=headers, timeout=FETCH_TIMEOUT, longest=MAX_OBJECT
                )
            except StatusError as error:
                if error.code == 404:
                    return None
                raise
        return answer.body

    def _parse(self, stream: MemberStream, body: bytes) -> Payload:
        if not self._options.table:
            meta = self._options.codec.scan_answer(body)
            return Payload(stream, (meta.namespace, meta.name, version_of(meta.version)), body, meta, meta.end)
        head, spans, tail = list_items(body, b"rows")
        self.columns.learn(stream.cluster, columns_in(head, tail))
        row = body[slice(*spans[0])] if spans else b"{}"
        start, end = table_row_object(row)
        found = scan(row, start)
        return Payload(stream, (found.namespace, found.name, version_of(found.version)), row, found, end)

    # Giving up.

    def pass_over(self, marker: Marker) -> None:
        """The member has a newer state, or none, which the log is to tell: see that it does."""
        self._owed.add(self.clock, self._resource, marker)

    def given_up(self, marker: Marker) -> bool:
        """Was a gap opened that covers this entry already?"""
        return marker.fleet <= self._gap_until.get(marker.cluster, 0)

    async def give_up(self, marker: Marker) -> None:
        """Open a gap: the member's live objects are sent anew once it answers. In etcd when this returns."""
        until = self.clock.head
        await self.clock.open_gap(marker.cluster)
        self._gap_until[marker.cluster] = max(until, self._gap_until.get(marker.cluster, 0))
        log.warning("%s: payload of %s/%s (version %d) did not come: gap opened",
                    marker.cluster, marker.namespace, marker.name, marker.version)  # fmt: skip

    async def close(self) -> None:
        """End all streams."""
        self.closed = True
        streams, self._streams = list(self._streams.values()), {}
        for task in list(self._fetching.values()):
            task.cancel()
        for paused in self._paused.values():
            if not paused.done():
                paused.set_result(None)
        await asyncio.gather(*(stream.close() for stream in streams))
        self._order.clear()


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
