"""Watches: where one starts, what it is told first, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from aiohttp import web

from services.aggregator.reads import proto_frames
from services.aggregator.reads.fanout import Client, Fanout
from services.aggregator.reads.feed_pool import FeedPool, json_form
from services.aggregator.reads.frames import Frames, error_event
from services.aggregator.reads.judge import Judge, Key
from services.aggregator.reads.lister import ATTEMPTS, BATCH, Lister, Request
from services.aggregator.reads.negotiate import Negotiated
from services.aggregator.reads.presenter import Presenter
from services.aggregator.reads.proto_frames import ProtoFrames
from services.aggregator.reads.query import EXACT, ReadOptions
from services.aggregator.reads.respond import HOLD
from services.aggregator.reads.scope import LeftOut, Scope
from services.aggregator.reads.table import Columns, Layout, columns_in
from services.aggregator.reads.walk import BrokeOff, Restart, Walk
from services.aggregator.reads.watcher import Feeds, Watcher
from services.aggregator.types import Aggregated, Call
from services.common.errors import StatusError, expired, unavailable

if TYPE_CHECKING:
    from services.aggregator.clock.clock import ResourceClock

log = logging.getLogger(__name__)

LEARN_TRIES = 2  # times that a watch asks members that were away what matched at its start
RECHECK = 30.0  # seconds between looks at what members let the client see


class NotKnown(Exception):
    """The next event is of a member that cannot be asked whether the client may see it: the watch ends before it."""


class WatchSession:
    """One watch request."""

    def __init__(
        self, call: Call, aggregated: Aggregated, form: Negotiated, options: ReadOptions, *, scope: Scope,
        lister: Lister, pool: FeedPool, fanout: Fanout, presenter: Presenter, refuse: Callable[[], None],
    ) -> None:  # fmt: skip
        self.clock: ResourceClock = scope.resource(aggregated)
        self._call, self._aggregated = call, aggregated
        self._form, self._options = replace(form, as_list=False), options
        self._scope, self._lister, self._pool, self._presenter = scope, lister, pool, presenter
        self._fanout = fanout
        self._refuse = refuse  # notes that a member has not this form
        self._served = call.info.version or aggregated.version
        namespace = call.info.namespace if aggregated.namespaced else ""
        self._judge = Judge(options, namespace)
        self._left = LeftOut()
        self._response: web.StreamResponse | None = None
        self._held: list[bytes] = []
        self._held_size = 0
        self._include = ""
        if form.kind == "table":
            self._include = "Metadata" if options.include == "None" else options.include
        self._checked = time.monotonic()
        self._granted: frozenset[str] = frozenset()
        self._lacking: Mapping[str, str] = {}
        self._watching: Watcher | None = None
        self._set_at = 0
        self._learn_tries = LEARN_TRIES

    async def serve(self) -> web.StreamResponse:
        """Answer the watch. StatusError only before anything was sent; later ones become ERROR events."""
        deadline = time.monotonic() + self._options.timeout
        try:
            watcher = await self._begin()
            await self._start()
            self.clock.tally.watchers += 1
            try:
                with self._shared(watcher):
                    await watcher.run(deadline)
            finally:
                self.clock.tally.watchers -= 1
        except StatusError as error:
            await self._fail(error)
        except Restart as reason:
            log.info("watch of %s: its initial state is gone: %s", self._aggregated.key, reason)
            await self._fail(expired("The resourceVersion for the provided watch is too old."))
        except NotKnown as reason:
            log.info("watch of %s ends before an event of %s, which cannot be asked", self._aggregated.key, reason)
        finally:
            self._release()
        assert self._response is not None
        await self._response.write_eof()
        return self._response

    # Sending.

    async def _start(self) -> None:
        """Send the head and what was held back until now."""
        if self._response is not None:
            return
        response = web.StreamResponse(status=200)
        response.headers["Content-Type"] = self._form.stream_type
        response.headers["Cache-Control"] = "no-cache, private"
        response.enable_chunked_encoding()
        self._call.warnings.extend(w for w in self._left.warnings() if w not in self._call.warnings)
        await response.prepare(self._call.request)
        self._response = response
        if self._held:
            data, self._held = b"".join(self._held), []
            await response.write(data)

    async def _write(self, data: bytes) -> None:
        if self._response is not None:
            await self._response.write(data)
            return
        self._held.append(data)
        self._held_size += len(data)
        if self._held_size >= HOLD:
            await self._start()

    def _shared(self, watcher: Watcher) -> AbstractContextManager[None]:
        """Lets the watcher walk with those that get the same bytes, where nothing of it is its own."""
        if self._judge.on_payload or self._judge.absent or self._aggregated.authorization == "Member":
            return nullcontext()
        layout = watcher.frames.layout
        likeness = (
            id(self.clock), self._aggregated, self._served, self._form, self._judge.namespace, self._options.labels,
            self._options.fields, self._options.include, layout and layout.definitions, watcher.denied,
        )  # fmt: skip
        return self._fanout.member(watcher, likeness, Client(self._push, self._drain))

    def _push(self, chunk: bytes) -> bool:
        """Write a chunk, framing and all, past the layers that would copy it once more."""
        protocol = self._call.request.protocol
        transport = protocol.transport
        if transport is None or transport.is_closing():
            return False
        transport.write(chunk)
        return not protocol.writing_paused

    async def _drain(self) -> None:
        transport = self._call.request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client is gone")
        await self._call.request.writer.drain()

    async def _fail(self, error: StatusError) -> None:
        """Kubernetes: once a version could be read, errors are events of the stream."""
        if self._response is None:
            self._held.clear()
            if error.code not in (410, 504):
                raise error
        await self._start()
        assert self._response is not None
        frame = proto_frames.error_event(error) if self._form.protobuf else error_event(error)
        await self._response.write(frame)

    # Starting.

    async def _begin(self) -> Watcher:
        options, clock = self._options, self.clock
        if options.initial_events:
            return await self._with_state()
        if not options.number:
            position = (await clock.snapshot(linearizable=options.version != "0")).version
        else:
            position = options.number
            clock.cursor(min(position, clock.head))  # 410 before anything is opened for it
        await self._permissions()
        if self._judge.on_payload:
            await self._rebuild_set(position)
        columns = self._pool.columns(self._aggregated, self._served)
        if self._form.kind == "table" and not columns.definitions:
            await self._learn_columns(columns)
        layout = columns.layout() if self._form.kind == "table" else None
        return await self._watcher(self._frames(layout), position)

    def _frames(self, layout: Layout | None) -> Frames | ProtoFrames:
        kind, api_version = self._aggregated.kind, self._aggregated.at(self._served).group_version
        if self._form.protobuf:
            return ProtoFrames(self._form, kind, api_version)
        return Frames(self._form, kind, api_version, layout, self._include)

    async def _watcher(self, frames: Frames | ProtoFrames, position: int) -> Watcher:
        watcher = self._watching = Watcher(
            self.clock, self._aggregated, self._options, frames, self._judge, self._presenter, self._write, position
        )  # fmt: skip
        feeds = Feeds(await self._pool.acquire(
            watcher, self.clock, self._aggregated, self._served, self._form, self._include))  # fmt: skip
        watcher.feeds = feeds  # at once: whatever ends this request from now on releases them
        if self._judge.on_payload and (self._form.kind != "object" or self._form.protobuf):
            feeds.fields = await self._pool.acquire(
                watcher, self.clock, self._aggregated, self._served, json_form(), "")  # fmt: skip
        watcher.denied = frozenset(self._left.denied)
        if self._aggregated.authorization == "Member":
            # Also not of members that could not be asked, or join later: their consent ends this watch (_recheck).
            watcher.granted = self._granted
            watcher.ask = self._ask
        watcher.switch = lambda: self._switch(watcher)
        watcher.learn = self._learn_set
        watcher.recheck = self._recheck
        return watcher

    async def _switch(self, watcher: Watcher) -> None:
        """Change to feeds that cover the watcher; from private ones to shared ones when they do."""
        feeds = watcher.feeds
        assert feeds is not None
        args = (watcher, self.clock, self._aggregated, self._served)
        feeds.shown = await self._pool.better(feeds.shown, *args, self._form, self._include)
        if feeds.fields is not None:
            feeds.fields = await self._pool.better(feeds.fields, *args, json_form(), "")

    # The present state first.

    async def _with_state(self) -> Watcher:
        request = self._request(replace(self._options, match="", limit=0))
        for attempt in range(ATTEMPTS):
            self._left = LeftOut()
            try:
                walk = await self._lister.open(request, self._left)
                try:
                    return await self._send_state(walk)
                finally:
                    await walk.close()
            except Restart as reason:
                if self._response is not None:
                    raise
                log.info("watch of %s: state taken anew: %s", self._aggregated.key, reason)
            except BrokeOff as error:
                if self._response is not None:
                    raise
                request.broken[error.cluster] = error.message
            self._held, self._held_size = [], 0
            await asyncio.sleep(0.02 * attempt)
        raise unavailable(f"{self._aggregated.key}: no consistent state could be had, try again")

    def _request(self, options: ReadOptions) -> Request:
        # Lists know the same selectors: the members choose, also by fields of the payload.
        return Request(
            self._call, self._aggregated, replace(self._form, as_list=True), options, self.clock, self._presenter
        )  # fmt: skip

    async def _send_state(self, walk: Walk) -> Watcher:
        version = walk.plan.version
        await self._permissions()
        columns = self._pool.columns(self._aggregated, self._served)
        for source in walk.sources:
            if walk.layout is not None:
                columns.learn(source.cluster, columns_in(source.current.head))
        frames = self._frames(walk.layout)
        self._judge.start = version
        self._judge.absent = frozenset(self._left.away)
        self._judge.plain = self._judge.plain and not self._left.away
        # Opened before the state is sent: what happens meanwhile is read beside it.
        watcher = await self._watcher(frames, version)
        try:
            matching: list[Key] = []
            while (batch := await walk.next(BATCH)) is not None:
                out = []
                for shown in batch:
                    if shown.cluster in self._left.denied:
                        continue
                    out.append(frames.object("ADDED", shown.version, shown.body))
                    if self._judge.on_payload:
                        namespace, _, name = shown.key.rpartition("/")
                        matching.append((namespace, name))
                if out:
                    await self._write(b"".join(out))
            # Complete whoever is away: what was not sent the client has not.
            self._judge.begin(matching)
            if self._options.mark_initial_end:
                await self._write(frames.bookmark(version, initial_end=True))
        except BaseException:
            self._release()
            raise
        return watcher

    def _release(self) -> None:
        """Let go of the feeds of the watcher made last."""
        watcher, self._watching = self._watching, None
        if watcher is not None and watcher.feeds is not None:
            for feed in watcher.feeds.all():
                self._pool.release(feed, watcher)

    async def _rebuild_set(self, position: int) -> None:
        """What matched at the client's version; members that are away are asked when they are back.

        Raises when nobody can say: 503 while the store of versions is away (the client tries again), Restart for a
        version that members have compacted (410: it lists anew). Guesses would tell of deletions of what it never had.
        """
        matching, unsure = await self._matching_at(position)
        self._judge.begin((key for key, _ in matching), unsure=unsure, asked=position)
        self._set_at = position

    async def _learn_set(self) -> None:
        """Ask again for the sets of members that were away; a few times, then their objects are told anew."""
        away = any(member.state == "Unreachable" for name, member in self.clock.members.items() if name in self._judge.unsure)
        if away or self._learn_tries <= 0:
            return  # other members' events must not wait for one that hangs
        self._learn_tries -= 1
        try:
            self._judge.learn(*await self._matching_at(self._set_at))
        except (Restart, StatusError) as error:
            log.info("watch of %s: what matched at %d cannot be told: %s", self._aggregated.key, self._set_at, error)

    async def _matching_at(self, position: int) -> tuple[list[tuple[Key, str]], set[str]]:
        """Keys that matched at a version, with their clusters; and the clusters that could not be asked."""
        left = LeftOut()
        options = replace(self._options, version=str(position), match=EXACT, limit=0)
        request = replace(self._request(options), form=Negotiated("partial", "v1", as_list=True))
        walk = await self._lister.open(request, left)
        try:
            matching = await self._keys(walk)
        finally:
            await walk.close()
        earlier, untold = await self._matching_before(walk)
        # A member that had the type then, and lacks it now or has left, says that it has nothing.
        members = self.clock.members
        then = (await self.clock.vector_at(position)).members
        gone = {cluster for cluster in then if cluster not in members or members[cluster].position is None}
        return matching + earlier, {*left.away, *walk.failed, *untold, *gone}

    async def _matching_before(self, walk: Walk) -> tuple[list[tuple[Key, str]], set[str]]:
        """What matched, but is not in the members' lists: objects that went at the very version that was asked for.

        Objects that expire together go at one version of their member, in several transactions here. Between those the
        position names that version already (`read`, with `resume` behind it), and the member's list lacks what the log, and
        so the client, still has. One version earlier the member has it. Also the clusters that could not be asked for that.
        """
        split = {cluster: replace(at, read=at.read - 1) for cluster, at in walk.plan.positions.items()
                 if at.resume < at.read and at.read > 1 and cluster not in walk.failed}  # fmt: skip
        before = Walk(self.clock, self._presenter, replace(walk.plan, positions=split, only_same=True))
        try:
            await before.open()
            return await self._keys(before), set(before.failed)
        finally:
            await before.close()

    @staticmethod
    async def _keys(walk: Walk) -> list[tuple[Key, str]]:
        """The keys of all its objects, with their clusters."""
        keys: list[tuple[Key, str]] = []
        while (batch := await walk.next(BATCH)) is not None:
            for shown in batch:
                namespace, _, name = shown.key.rpartition("/")
                keys.append(((namespace, name), shown.cluster))
        return keys

    async def _learn_columns(self, columns: Columns) -> None:
        """Ask one member after the other for the Table's columns: they go out with the first event."""
        path = self._aggregated.at(self._served).path()
        headers = {"Accept": self._form.accept(many=True)}
        for cluster, member in self.clock.members.items():
            if member.state == "NoType":
                continue
            try:
                answer = await member.client.request("GET", path, query={"limit": 1}, headers=headers, timeout=2.0)
            except StatusError as error:
                log.info("columns of %s on %s: %s", self._aggregated.key, cluster, error.message)
                continue
            head, _, rest = answer.body.partition(b'"rows":')
            if rest and head.rstrip().endswith(b","):
                columns.learn(cluster, columns_in(head + b'"rows":'))
                return

    # Permissions of members.

    async def _permissions(self) -> None:
        self._lacking = await self._scope.lacking(self._call, self._aggregated, self.clock, list(self.clock.members))
        self._left.denied |= self._lacking
        if self._aggregated.authorization != "Member":
            return
        clusters = list(self.clock.members)
        granted = await self._scope.permitted(
            self._call, self._aggregated, self.clock, clusters, LeftOut() if self._granted else self._left, "watch")
        self._granted = frozenset(granted)
        self._left.denied |= {c: "it does not let this user watch" for c in clusters
                              if c not in self._granted and c not in self._left.away and c not in self._left.denied}

    async def _ask(self, cluster: str) -> None:
        """An event of a member that had not been asked: passed over only if it says no.

        The client goes on from its last version: an event passed over before the member consents would be lost to it.
        """
        left = LeftOut()
        if cluster in self.clock.members:
            await self._scope.permitted(self._call, self._aggregated, self.clock, [cluster], left, "watch")
        if cluster in left.away:
            raise NotKnown(cluster)
        if cluster not in left.denied:  # it consents, or has left the fleet with what the client may have seen
            raise expired("the clusters that this user may watch have changed")
        assert self._watching is not None
        self._watching.denied |= {cluster}

    async def _recheck(self) -> None:
        """Raise 410 when the watch must begin anew: under another authorisation, or by somebody else."""
        feeds = self._watching.feeds if self._watching is not None else None
        if self._form.protobuf and feeds is not None and feeds.shown.refused:
            self._refuse()
            raise expired("a cluster does not serve this type in protobuf")
        if not self._scope.serves(self.clock, self._aggregated):
            raise expired(f"{self._aggregated.key} is aggregated in another way now")
        if time.monotonic() - self._checked < RECHECK:
            return
        self._checked = time.monotonic()
        lacking = await self._scope.lacking(self._call, self._aggregated, self.clock, list(self.clock.members))
        if any((name in lacking) != (name in self._lacking) for name in self.clock.members):
            raise expired(f"the clusters that serve {self._aggregated.key} in {self._served} have changed")
        if self._aggregated.authorization != "Member":
            return
        before = self._granted
        left = LeftOut()
        clusters = list(self.clock.members)
        granted = frozenset(await self._scope.permitted(
            self._call, self._aggregated, self.clock, clusters, left, "watch"))
        # A member that cannot be asked keeps its verdict.
        now = granted | {c for c in before if c in left.away}
        if now != before:
            raise expired("the clusters that this user may watch have changed")
