"""`reclock.dev/v1alpha1 versionmarkers`: the clock's markers and positions as Kubernetes objects, read-only.

Objects without a namespace, and positions (`type: Bookmark`), stand in the namespace `default`, as Kubernetes
does it with events. Costs O(markers) a list: it is for people and tools, not for controllers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from _fastpath.marker import Marker
from services.aggregator.clock.position import Position
from services.aggregator.reads import markers_table as table
from services.aggregator.reads.frames import error_event, event
from services.aggregator.reads.marker_objects import bookmark_object, home, marker_name, marker_object
from services.aggregator.reads.negotiate import Negotiated, negotiate
from services.aggregator.reads.query import ReadOptions, decode_list, decode_watch
from services.aggregator.reads.respond import Outgoing, pretty, whole
from services.aggregator.reads.tokens import Token, TokenCodec, scope_of
from services.aggregator.types import Aggregated, Call
from services.common.errors import StatusError, method_not_allowed, not_found, unavailable

if TYPE_CHECKING:
    from services.aggregator.clock.clock import ResourceClock
    from services.aggregator.clock.clocks import ResourceClocks

GROUP, VERSION, RESOURCE, KIND = "reclock.dev", "v1alpha1", "versionmarkers", "VersionMarker"
TYPE = Aggregated(RESOURCE, GROUP, VERSION, RESOURCE, KIND, namespaced=True)
STEP = 500  # objects per write; the loop serves others between
WAIT = 10.0

Object = dict[str, Any]
Objects = list[Object]
Clocks = list["ResourceClock"]


class VersionMarkers:
    """Serves the resource; the front has authorised the request."""

    def __init__(
        self, clock: ResourceClocks, *, fleet_id: str, token_secret: bytes, one_sequence: bool = True
    ) -> None:
        self._clock = clock
        self._one_sequence = one_sequence
        self._codec = TokenCodec(fleet_id, token_secret)

    def _form(self, call: Call) -> Negotiated:
        headers = call.request.headers
        return negotiate(headers.get("Accept", ""), query=call.query, user_agent=headers.get("User-Agent", ""))

    async def get(self, call: Call) -> web.StreamResponse:
        """One object."""
        form = self._form(call)
        for key, obj in self._objects(call.info.namespace):
            if key[1] == call.info.name:
                body = table.shape(obj, form, call.query.get("includeObject", ""))
                return await whole(call, form, msgspec.json.encode(body))
        raise not_found(RESOURCE, call.info.name, GROUP)

    async def list(self, call: Call) -> web.StreamResponse:
        """All objects, by namespace and name."""
        options = decode_list(call.query, call.info, TYPE)
        form = self._form(call)
        scope = scope_of(RESOURCE, call.info.namespace, options.labels.text, options.fields.text)
        token = self._codec.decode(options.continued, scope) if options.continued else Token(scope, "")
        version = token.version or self._head()
        rows = sorted(
            ((key, obj) for key, obj in self._objects(call.info.namespace)
             if f"{key[0]}/{key[1]}" > token.after and selected(options, obj)),
            key=lambda row: row[0],
        )  # fmt: skip
        metadata: Object = {"resourceVersion": str(version)}
        if options.limit and len(rows) > options.limit:
            last = rows[options.limit - 1][0]
            metadata["continue"] = self._codec.encode(Token(scope, f"{last[0]}/{last[1]}", version))
            if not options.selects:
                metadata["remainingItemCount"] = len(rows) - options.limit
            rows = rows[: options.limit]
        return await self._send(call, form, options, metadata, [obj for _, obj in rows])

    async def _send(
        self, call: Call, form: Negotiated, options: ReadOptions, metadata: Object, objects: Objects
    ) -> web.StreamResponse:
        head, field = table.list_head(form, metadata)
        text = msgspec.json.encode(head)
        out = Outgoing(call, form)
        parts = [text[:-1] + b',"' + field + b'":[']
        for start in range(0, len(objects), STEP):
            items = [table.item(obj, form, options.include) for obj in objects[start : start + STEP]]
            parts.append((b"," if start else b"") + b",".join(msgspec.json.encode(item) for item in items))
            if not form.pretty:
                await out.add(parts)
                parts = []
            await asyncio.sleep(0)
        parts.append(b"]}")
        await out.add([pretty(b"".join(parts))] if form.pretty else parts)
        return await out.finish()

    async def watch(self, call: Call) -> web.StreamResponse:
        """Changes of markers; positions change with nearly every event and are told by get and list only."""
        options = decode_watch(call.query, call.info, TYPE)
        form = self._form(call)
        if not self._one_sequence:
            raise method_not_allowed(
                "versionmarkers cannot be watched here: they lie on several etcds (etcdOverrides), whose versions are"
                " no one sequence"
            )
        response = web.StreamResponse()
        response.content_type = form.content_type
        response.enable_chunked_encoding()
        await response.prepare(call.request)
        try:
            await self._watch(call, form, options, response)
        except StatusError as error:
            await response.write(error_event(error))
        await response.write_eof()
        return response

    async def _watch(
        self, call: Call, form: Negotiated, options: ReadOptions, response: web.StreamResponse
    ) -> None:
        deadline = time.monotonic() + options.timeout
        position = options.number or self._head()
        if options.initial_events:
            position = self._head()
            for _, obj in sorted(self._objects(call.info.namespace), key=lambda row: row[0]):
                if selected(options, obj):
                    await response.write(self._frame("ADDED", obj, form, options))
        if options.mark_initial_end:
            await response.write(table.bookmark(form, position, initial_end=True))
        cursors = {clock: clock.cursor(position) for clock in self._clock.resources.values()}
        waiting: list[tuple[int, ResourceClock, Marker]] = []
        while time.monotonic() < deadline:
            bound = await self._bound(list(cursors))
            for clock, cursor in cursors.items():
                while entries := cursor.take():
                    waiting += [(entry.fleet, clock, entry) for entry in entries]
            waiting.sort(key=lambda row: row[0])
            ready = [row for row in waiting if row[0] <= bound]
            waiting = waiting[len(ready) :]
            for _, clock, entry in ready:
                if call.info.namespace in ("", home(entry)):
                    obj = marker_object(clock, entry)
                    if selected(options, obj):
                        await response.write(self._frame(change_of(entry), obj, form, options))
            if waiting:
                continue  # the other resources' logs are asked again how far they are
            waits = [asyncio.ensure_future(cursor.wait(WAIT)) for cursor in cursors.values()]
            await asyncio.wait(waits, timeout=max(0.0, min(WAIT, deadline - time.monotonic())),
                               return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
            for wait in waits:
                wait.cancel()
        if options.bookmarks:
            await response.write(table.bookmark(form, await self._bound(list(cursors))))

    async def _bound(self, clocks: Clocks) -> int:
        """Up to here no resource's log can get anything new: versions of all of them are one sequence."""
        snapshots = await asyncio.gather(*(clock.snapshot(linearizable=True) for clock in clocks))
        return min((one.version for one in snapshots), default=0)

    @staticmethod
    def _frame(type_: str, obj: Object, form: Negotiated, options: ReadOptions) -> bytes:
        return event(type_, msgspec.json.encode(table.shape(obj, form, options.include)))

    def _head(self) -> int:
        heads = [clock.head for clock in self._clock.resources.values()]
        if not heads:
            raise unavailable("no version clock is running yet")
        return max(heads)

    def _objects(self, namespace: str) -> Iterator[tuple[tuple[str, str], Object]]:
        for clock in self._clock.resources.values():
            for marker in self._markers(clock, namespace):
                yield (home(marker), marker_name(clock, marker)), marker_object(clock, marker)
            if namespace in ("", "default"):
                for cluster, position in positions_of(clock):
                    obj = bookmark_object(clock, cluster, position)
                    yield ("default", obj["metadata"]["name"]), obj

    @staticmethod
    def _markers(clock: ResourceClock, namespace: str) -> Iterable[Marker]:
        if clock.aggregated.namespaced:
            return clock.iter_markers(namespace)
        return clock.iter_markers() if namespace in ("", "default") else ()


def positions_of(clock: ResourceClock) -> list[tuple[str, Position]]:
    """Positions of the members that have one."""
    return [(name, member.position) for name, member in clock.members.items() if member.position is not None]


def selected(options: ReadOptions, obj: Object) -> bool:
    """Do the selectors want it?"""
    metadata = obj["metadata"]
    values = {"metadata.name": metadata["name"], "metadata.namespace": metadata["namespace"]}
    return options.labels.matches(metadata["labels"]) and options.fields.matches(values)


def change_of(entry: Marker) -> str:
    """What happened to a marker (not to the merged view of its key)."""
    if entry.deleted:
        return "DELETED"
    return "ADDED" if entry.since == entry.fleet else "MODIFIED"
