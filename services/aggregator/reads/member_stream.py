"""One member's watch as a source of payloads: the bytes of objects, found by name and member version."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from _fastpath.listing import Item, version_of
from _fastpath.splice import SpliceError, list_items, scan, table_row_object
from services.aggregator.clock.metadata import UNMARKED_SECONDS
from services.aggregator.clock.overdue import Hearing
from services.aggregator.clock.tap import Tap
from services.aggregator.reads.codec import JSON, AnyMeta, Codec
from services.aggregator.reads.member_list import MemberList
from services.aggregator.reads.table import Columns, columns_in
from services.common.errors import MemberUnreachable, StatusError, decode_status
from services.common.kube.client import KubeClient
from services.common.pace import Pace
from services.common.tasks import Backoff

log = logging.getLogger(__name__)

GATHER = 0.003  # seconds between two reads while events come fast
SILENCE = 150.0  # seconds; members send bookmarks every minute
WATCH_SECONDS = (1800, 3600)  # what gets no bookmarks is watched for a shorter time than SILENCE
LATE = 1.0  # seconds that a payload may take when its entry is in the log
RETURN = 1.0  # seconds that the clock's feed may take to watch again
SHORT = 5.0  # seconds: a watch that ends sooner is one of a member that stops, or of a proxy before none
LIST_AHEAD = 1024 * 1024

Key = tuple[str, str, int]  # namespace, name, member version


class Payload:
    """An object's bytes inside of `raw`, and the frames already made of it (by fleet version and form)."""

    __slots__ = ("end", "frames", "key", "meta", "raw", "stream", "values")

    def __init__(self, stream: MemberStream, key: Key, raw: bytes, meta: AnyMeta, end: int) -> None:
        self.stream, self.key, self.raw, self.meta, self.end = stream, key, raw, meta, end
        self.frames: dict[tuple[int, str, bytes, bool], bytes] = {}
        self.values: dict[str, str] | None = None  # of the JSON's selectable fields, once read

    @property
    def body(self) -> bytes:
        """The object alone."""
        return self.raw[self.meta.start : self.end]


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What is watched, and in which form."""

    path: str
    accept_watch: str
    accept_list: str
    include: str
    table: bool
    kind: str
    api_version: str
    codec: Codec = JSON
    marked: bool = True
    """Does an idle watch of it get bookmarks?"""


class Handover(Exception):
    """The clock's feed can take over."""


class MemberStream:
    """Watches one member from a version on (or lists it first), and keeps payloads until they are dropped.

    `keep(payload)` decides about each that comes; `pause()` is awaited before more is read.
    """

    def __init__(
        self, cluster: str, incarnation: str, client: KubeClient, options: StreamOptions, columns: Columns,
        *, start: int, keep: Callable[[Payload, bool], bool], pause: Callable[[MemberStream], asyncio.Future[None] | None],
        tap: Tap | None = None,
    ) -> None:  # fmt: skip
        self.cluster, self.incarnation, self.client = cluster, incarnation, client
        self.payloads: dict[Key, Payload] = {}
        self.size = 0
        self.seen = start  # every event up to here (those at it perhaps not all) has come
        self.connected = False
        self.refused = False  # the member does not have this form of the type
        self._resume = start
        self._options, self._columns = options, columns
        self._keep, self._pause = keep, pause
        self._waiters: dict[Key, asyncio.Future[None]] = {}
        self._tap = tap
        self._joined: asyncio.Future[None] | None = None  # done when the clock's feed brings nothing more
        self._offer = asyncio.Event()
        self._returning = False
        self._scope: asyncio.Timeout | None = None
        self._hearing = Hearing(LATE)
        self._paused = False  # it is we who do not read
        self._backoff = Backoff(initial=0.1, maximum=5.0)
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"payloads:{cluster}{options.path}")

    def may_come(self, version: int) -> bool:
        """Can an event of this version still arrive?"""
        return self.seen <= version

    def wait(self, key: Key) -> asyncio.Future[None]:
        """Done when the payload is there, or cannot come any more. Shield it: others wait on it too."""
        future = self._waiters.get(key)
        if future is None:
            future = self._waiters[key] = asyncio.get_running_loop().create_future()
        return future

    def overdue(self) -> bool:
        """The log has what this watch has not brought: one of our own that is silent is opened anew. Is it?"""
        scope = self._scope
        if scope is None or self._paused or not self._hearing.renews():
            return False
        log.info("payloads of %s%s: one is overdue and the watch is silent: watching anew", self.cluster, self._options.path)
        self.client.renew()  # connections that are kept for the next request may be as dead
        self._scope = None
        scope.reschedule(0)
        return True

    @property
    def renewed(self) -> float:
        """Seconds in which what a watch that was just opened anew brings may still come."""
        return self._hearing.fresh(RETURN)

    def _wake(self, key: Key) -> None:
        future = self._waiters.pop(key, None)
        if future is not None and not future.done():
            future.set_result(None)

    def _wake_passed(self) -> None:
        if self._waiters:
            for key in [key for key in self._waiters if key[2] < self.seen]:
                self._wake(key)

    def put(self, payload: Payload) -> None:
        """Keep a payload, from wherever it came."""
        old = self.payloads.pop(payload.key, None)
        if old is not None:
            self.size -= len(old.raw)
        self.payloads[payload.key] = payload
        self.size += len(payload.raw)
        self._wake(payload.key)

    def drop(self, payload: Payload) -> None:
        """Forget a payload."""
        if self.payloads.get(payload.key) is payload:
            del self.payloads[payload.key]
            self.size -= len(payload.raw)

    async def close(self) -> None:
        """Stop watching; who waits is woken."""
        if self._tap is not None:
            self._tap.leave(self)
        self._task.cancel()
        await asyncio.wait((self._task,))
        for key in list(self._waiters):
            self._wake(key)

    async def _run(self) -> None:
        if self._tap is not None:
            self._tap.want(self)
        try:
            while True:
                hint: float | None = None
                begun = time.monotonic()
                try:
                    if not self.seen:
                        await self._list()
                    if await self._by_tap():
                        continue
                    if await self._watch() or time.monotonic() - begun > SHORT:
                        self._backoff.reset()
                        continue  # ended in order: Kubernetes ends every watch after a while
                except StatusError as error:
                    hint = error.retry_after
                    self._failed(error)
                except SpliceError as error:
                    self._failed(MemberUnreachable(f"what it sends is no watch: {error}"))
                except Exception:
                    # Watchers live on what comes here: a bug must not end it for all of them.
                    log.exception("payloads of %s%s failed", self.cluster, self._options.path)
                self.connected = False
                await self._backoff.wait(hint)
        finally:
            self.connected = False

    def _failed(self, error: StatusError) -> None:
        if error.code == 406:
            self.refused = True
        if error.code == 410:
            # The member forgot what came after: what is missed by then is asked for one by one.
            self.seen = self._resume = 0
        level = logging.INFO if error.code in (404, 410) else logging.WARNING
        if self._backoff.attempt == 0:
            log.log(level, "payloads of %s%s: %s", self.cluster, self._options.path, error.message)

    async def _list(self) -> None:
        """Take the present state, of which `keep` wants what no log entry had yet."""
        options = self._options
        query = {"includeObject": options.include} if options.include else {}
        listed = MemberList(
            self.client, self.cluster, options.path, query, {"Accept": options.accept_list},
            table=options.table, budget=LIST_AHEAD, codec=options.codec,
        )  # fmt: skip
        try:
            await listed.opened()
            if options.table:
                self._columns.learn(self.cluster, columns_in(listed.head))
            while await listed.more():
                for item in listed.take():
                    self._offer_item(item)
            version = listed.version
        finally:
            await listed.close()
        self.seen = self._resume = version
        self._wake_passed()

    def _offer_item(self, item: Item) -> None:
        key = (item.namespace, item.name, item.version)
        payload = Payload(self, key, item.raw, item.meta, item.end)
        if self._keep(payload, True):
            self.put(payload)
        self._wake(key)

    # By the feed of the clock.

    @property
    def resume(self) -> int:
        """Every event up to here has come."""
        return self._resume

    def offered(self) -> None:
        """The clock's feed brings whole objects: a watch of our own may not be needed any more."""
        if (self._scope is not None or self._returning) and self._join():
            self._offer.set()
            scope, self._scope = self._scope, None
            if scope is not None:
                scope.reschedule(0)  # until it ends, both bring the same; one that is ending cannot be told again

    def _join(self) -> bool:
        """Take what the clock's feed brings, where that leaves no gap."""
        self._joined = asyncio.get_running_loop().create_future()
        if self._tap is None or not self._tap.attach(self):
            self._joined = None
        return self._joined is not None

    def take(self, frame: bytes, kind: str, meta: AnyMeta) -> None:
        """A frame of the clock's feed."""
        self._take_scanned(frame, kind, meta, meta.end)

    def pause(self) -> asyncio.Future[None] | None:
        """Done when there is room again."""
        return self._pause(self)

    def ended(self) -> None:
        """The feed's watch is over."""
        if self._joined is not None and not self._joined.done():
            self._joined.set_result(None)

    async def _by_tap(self) -> bool:
        """Live off the clock's feed while that lasts; False where it cannot be joined."""
        if self._joined is None and not self._join():
            return False
        assert self._joined is not None
        self.connected, self.refused = True, False
        self._backoff.reset()
        await self._joined
        self._joined = None
        self._offer.clear()
        self._returning = True
        try:
            async with asyncio.timeout(RETURN):
                await self._offer.wait()  # the feed watches again in a moment, as a rule
        except TimeoutError:
            pass  # then a watch of our own goes on
        finally:
            self._returning = False
        return True

    async def _watch(self) -> bool:
        """Watch; True when the tap can take over."""
        try:
            async with asyncio.timeout(None) as self._scope:
                await self._follow()
        except (TimeoutError, Handover):
            return True
        finally:
            self._scope = None
        return False

    async def _follow(self) -> None:
        options = self._options
        query = {
            "watch": "true", "allowWatchBookmarks": "true", "resourceVersion": str(self._resume),
            "timeoutSeconds": str(random.randint(*(WATCH_SECONDS if options.marked else UNMARKED_SECONDS))),
            "includeObject": options.include or None,
        }  # fmt: skip
        stream = self.client.stream(
            "GET", options.path, query=query, headers={"Accept": options.accept_watch, "Accept-Encoding": "identity"},
            sock_read=SILENCE,
        )  # fmt: skip
        self._hearing.heard()
        async with stream as response:
            self.connected, self.refused = True, False
            splitter = options.codec.splitter()
            content = response.content
            pace = Pace(GATHER)
            while chunk := await content.readany():
                self._hearing.heard()
                frames = splitter.feed(chunk)
                pace.stepped(len(frames))
                for frame in frames:
                    self._take(frame)
                if frames:
                    self._backoff.reset()  # not before: a member that sends garbage is not asked again at once
                if self._join():
                    raise Handover
                if (left := pace.left()) > 0:
                    await asyncio.sleep(left)
                paused = self._pause(self)
                if paused is not None:
                    self._paused = True
                    try:
                        await paused
                    finally:
                        self._paused = False
                    self._hearing.heard()
            if splitter.pending:
                raise MemberUnreachable(f"cluster {self.cluster}: its watch was cut")

    def _take(self, frame: bytes) -> None:
        type_, meta = self._options.codec.scan_frame(frame)
        if type_ == "ERROR":
            raise error_of(frame[meta.start : meta.end])
        raw, end = frame, meta.end
        if self._options.table:
            version = version_of(meta.version)
            raw, meta, end = self._row(frame, meta)
            if type_ == "BOOKMARK":
                self._passed(version or version_of(meta.version), bookmark=True)
                return
        self._take_scanned(raw, type_, meta, end)

    def _take_scanned(self, raw: bytes, type_: str, meta: AnyMeta, end: int) -> None:
        version = version_of(meta.version)
        if type_ == "BOOKMARK":
            self._passed(version, bookmark=True)
            return
        key = (meta.namespace, meta.name, version)
        if key not in self.payloads:
            payload = Payload(self, key, raw, meta, end)
            if self._keep(payload, False):
                self.put(payload)
        self._passed(version)

    def _row(self, frame: bytes, meta: AnyMeta) -> tuple[bytes, AnyMeta, int]:
        head, spans, tail = list_items(frame[meta.start : meta.end], b"rows")
        self._columns.learn(self.cluster, columns_in(head, tail))
        if len(spans) != 1:
            raise SpliceError(f"a Table of {len(spans)} rows in a watch")
        a, b = spans[0]
        row = frame[meta.start + a : meta.start + b]
        start, end = table_row_object(row)
        return row, scan(row, start), end

    def _passed(self, version: int, *, bookmark: bool = False) -> None:
        if version > self.seen:
            # As the clock's positions: where its feed watches again from there, this stream can join it.
            self._resume = version if bookmark else version - 1
            self.seen = version
            self._wake_passed()
        elif bookmark and version == self.seen:
            self._resume = version


def error_of(body: bytes) -> StatusError:
    """The Status inside of an ERROR frame."""
    return StatusError.from_status(decode_status(body) or {})
