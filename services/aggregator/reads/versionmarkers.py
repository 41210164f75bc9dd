"""`reclock.dev/v1alpha1 versionmarkers`: the clock's markers and positions as Kubernetes objects, read-only.

Objects without a namespace, and positions (`type: Bookmark`), stand in the namespace `default`, as Kubernetes
does it with events. Costs O(markers) a list: it is for people and tools, not for controllers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from _fastpath.marker import Marker
from services.aggregator.reads import markers_table as table
from services.aggregator.reads.frames import error_event, event
from services.aggregator.reads.marker_objects import home, labels_of, marker_name
from services.aggregator.reads.marker_rows import Clocks, Merged, Row, Rows
from services.aggregator.reads.negotiate import Negotiated, negotiate
from services.aggregator.reads.query import ReadOptions, decode_list, decode_watch
from services.aggregator.reads.respond import Outgoing, pretty, whole
from services.aggregator.reads.tokens import Token, TokenCodec, scope_of
from services.aggregator.types import Aggregated, Call
from services.common.errors import StatusError, expired, method_not_allowed, not_found, unavailable

if TYPE_CHECKING:
    from services.aggregator.clock.clocks import ResourceClocks

log = logging.getLogger(__name__)

GROUP, VERSION, RESOURCE, KIND = "reclock.dev", "v1alpha1", "versionmarkers", "VersionMarker"
TYPE = Aggregated(RESOURCE, GROUP, VERSION, RESOURCE, KIND, namespaced=True)
STEP = 500  # objects per write; the loop serves others between
WAIT = 10.0

Object = dict[str, Any]


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
        async for row in Rows(self._clocks(), call.info.namespace, 0):
            if row.name == call.info.name:
                body = table.shape(row.object(), form, call.query.get("includeObject", ""))
                return await whole(call, form, msgspec.json.encode(body))
        raise not_found(RESOURCE, call.info.name, GROUP)

    async def list(self, call: Call) -> web.StreamResponse:
        """All objects, by namespace and name."""
        options = decode_list(call.query, call.info, TYPE)
        form = self._form(call)
        scope = scope_of(RESOURCE, call.info.namespace, options.labels.text, options.fields.text)
        token = self._codec.decode(options.continued, scope) if options.continued else Token(scope, "")
        clocks = self._clocks()
        version, at = (token.version, token.version) if token.version else await self._complete(clocks)
        if any(at and at < clock.floor for clock in clocks):
            raise expired("the continue parameter is too old: start a new list")
        rows = Rows(clocks, call.info.namespace, at if self._one_sequence else 0, token.after)
        metadata: Object = {"resourceVersion": str(version)}
        if not options.limit:
            return await self._send(call, form, options, metadata, self._selected(rows, options))
        page: list[Row] = []
        left = 0
        for number, namespace in enumerate(rows.namespaces):
            wanted = [row for row in await rows.of(namespace) if selected(options, row)]
            left = max(len(page) + len(wanted) - options.limit, 0)
            page += wanted[: options.limit - len(page)]
            if left or len(page) == options.limit:
                left += await rows.count(rows.namespaces[number + 1 :])
                break
        if left:
            metadata["continue"] = self._codec.encode(Token(scope, page[-1].key, version))
            if not options.selects:
                metadata["remainingItemCount"] = left
        return await self._send(call, form, options, metadata, _each(page))

    @staticmethod
    async def _selected(rows: Rows, options: ReadOptions) -> AsyncIterator[Row]:
        async for row in rows:
            if selected(options, row):
                yield row

    async def _send(
        self, call: Call, form: Negotiated, options: ReadOptions, metadata: Object, rows: AsyncIterator[Row]
    ) -> web.StreamResponse:
        head, field = table.list_head(form, metadata)
        text = msgspec.json.encode(head)
        out = Outgoing(call, form)
        parts = [text[:-1] + b',"' + field + b'":[']
        count = 0
        async for row in rows:
            item = msgspec.json.encode(table.item(row.object(), form, options.include))
            parts.append(b"," + item if count else item)
            count += 1
            if count % STEP == 0 and not form.pretty:
                await out.add(parts)
                parts = []
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
        clocks = self._clocks()
        response = web.StreamResponse()
        response.content_type = form.content_type
        response.enable_chunked_encoding()
        await response.prepare(call.request)
        try:
            await self._watch(call, form, options, clocks, response)
        except StatusError as error:
            await response.write(error_event(error))
        await response.write_eof()
        return response

    async def _watch(
        self, call: Call, form: Negotiated, options: ReadOptions, clocks: Clocks, response: web.StreamResponse
    ) -> None:
        deadline = time.monotonic() + options.timeout
        position = at = options.number
        if options.initial_events or not position:
            position, at = await self._complete(clocks)
        # Made first: what is dropped while the state is sent is found out.
        cursors = {clock: clock.cursor(position) for clock in clocks}
        if options.initial_events:
            async for row in self._selected(Rows(clocks, call.info.namespace, at), options):
                await response.write(self._frame("ADDED", row.object(), form, options))
        if options.mark_initial_end:
            await response.write(table.bookmark(form, position, initial_end=True))
        merged = Merged(cursors)
        while time.monotonic() < deadline:
            bound = await self._bound(clocks)
            for clock, entry in merged.upto(bound):
                if call.info.namespace in ("", home(entry)):
                    row = Row(home(entry), marker_name(clock, entry), clock, entry)
                    if selected(options, row):
                        await response.write(self._frame(change_of(entry), row.object(), form, options))
            if merged.waiting:
                continue  # the other resources' logs are asked again how far they are
            waits = [asyncio.ensure_future(cursor.wait(WAIT)) for cursor in cursors.values()]
            await asyncio.wait(waits, timeout=max(0.0, min(WAIT, deadline - time.monotonic())),
                               return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
            for wait in waits:
                wait.cancel()
        if options.bookmarks:
            await response.write(table.bookmark(form, await self._bound(clocks)))

    async def _bound(self, clocks: Clocks) -> int:
        """Up to here no resource's log can get anything new: versions of all of them are one sequence."""
        snapshots = await asyncio.gather(*(clock.snapshot(linearizable=True) for clock in clocks))
        return min(one.version for one in snapshots)

    async def _complete(self, clocks: Clocks) -> tuple[int, int]:
        """(version to begin at, version to show the state of): the newest one up to which every log is complete; 0,
        whatever is here, while etcd is away."""
        if self._one_sequence:
            try:
                bound = await self._bound(clocks)
                return bound, bound
            except StatusError as error:
                log.info("version markers are shown as they are here: %s", error.message)
        return max(clock.head for clock in clocks), 0

    @staticmethod
    def _frame(type_: str, obj: Object, form: Negotiated, options: ReadOptions) -> bytes:
        return event(type_, msgspec.json.encode(table.shape(obj, form, options.include)))

    def _clocks(self) -> Clocks:
        if not self._clock.resources:
            raise unavailable("no version clock is running yet")
        return list(self._clock.resources.values())


async def _each(rows: Sequence[Row]) -> AsyncIterator[Row]:
    for row in rows:
        yield row


def selected(options: ReadOptions, row: Row) -> bool:
    """Do the selectors want it?"""
    values = {"metadata.name": row.name, "metadata.namespace": row.namespace}
    return options.labels.matches(labels_of(row.clock, row.cluster)) and options.fields.matches(values)


def change_of(entry: Marker) -> str:
    """What happened to a marker (not to the merged view of its key)."""
    if entry.deleted:
        return "DELETED"
    return "ADDED" if entry.since == entry.fleet else "MODIFIED"
