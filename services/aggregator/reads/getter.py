"""One object: routed by its marker, answered under the fleet version of exactly the bytes that are sent."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from _fastpath.listing import version_of
from _fastpath.splice import SpliceError, list_items, scan, table_row_object
from services.aggregator.away import require_answering
from services.aggregator.reads.codec import AnyMeta, codec_of, names_of
from services.aggregator.reads.negotiate import Negotiated
from services.aggregator.reads.presenter import Presenter
from services.aggregator.reads.query import ReadOptions
from services.aggregator.reads.scope import Scope
from services.aggregator.reads.table import Columns, columns_in
from services.aggregator.types import Aggregated, Call
from services.common.errors import MemberUnreachable, StatusError, not_found, unavailable
from services.common.kube.client import MAX_OBJECT, KubeClient, Response

if TYPE_CHECKING:
    from services.aggregator.clock.clock import ResourceClock

SETTLE = 5.0  # seconds for the log to catch up with a member
MEMBER_TIMEOUT = 6.0
ROUTES = 6  # times that an object may move between members while it is read
NUMBERINGS = 10  # times that a body may be passed over by a diff


@dataclass(slots=True)
class Found:
    """A member's answer and where its object stands in it."""

    cluster: str
    body: bytes
    meta: AnyMeta
    end: int
    version: int = 0
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """A Table of one row, taken apart: what stands around the row, and the row."""

    head: bytes
    row: bytes
    tail: bytes


def locate(body: bytes, cluster: str, table: bool) -> tuple[Found, Row | None]:
    """The object in an answer; MemberUnreachable when it is none."""
    try:
        if not table:
            meta = codec_of(body).scan_answer(body)
            version_of(meta.version)
            return Found(cluster, body, meta, -1), None
        head, spans, tail = list_items(body, b"rows")
        if len(spans) != 1:
            raise SpliceError(f"a Table of {len(spans)} rows")
        row = Row(head, body[slice(*spans[0])], tail)
        start, end = table_row_object(row.row)
        meta = scan(row.row, start)
        version_of(meta.version)
        return Found(cluster, row.row, meta, end), row
    except SpliceError as error:
        raise MemberUnreachable(f"cluster {cluster}: its answer is no object: {error}") from error


class Getter:
    """Reads one object."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    async def get(
        self, call: Call, aggregated: Aggregated, form: Negotiated, version: str, include: str,
        presenter: Presenter, sub: str = "",
    ) -> tuple[bytes, tuple[str, ...]]:  # fmt: skip
        """The body for the client and the member's Warning headers; StatusError 404, 503, 504."""
        clock = self._scope.resource(aggregated)
        if version and version != "0":
            await clock.snapshot(linearizable=False, minimum=int(version))
        # The log is brought up to date beside the call to the member: both take about as long. Where the log is
        # written here and one member alone holds the key, the member's own answer is as good: no other sequencer can
        # have numbered anything, and what our own has under way, which another replica may have shown, is waited for.
        alone = clock.certain and not clock.is_clash(call.info.namespace, call.info.name)
        known = alone and clock.shown(call.info.namespace, call.info.name) is not None
        barrier: asyncio.Future[Any] | None = None
        if not version and not known:
            barrier = asyncio.ensure_future(clock.snapshot(linearizable=True))
        elif not version and clock.committing:
            barrier = asyncio.ensure_future(clock.settled())
        try:
            found, row = await self._find(call, aggregated, clock, form, include, sub, barrier)
        finally:
            if barrier is not None and not barrier.done():
                barrier.cancel()
        shown = await presenter.show(found.cluster, found.body, found.meta, found.version, found.end)
        if row is None:
            return codec_of(found.body).rewrap(found.body, shown), found.warnings
        return table_of(found, row, shown, form, include), found.warnings

    async def _find(
        self, call: Call, aggregated: Aggregated, clock: ResourceClock, form: Negotiated, include: str,
        sub: str, barrier: asyncio.Future[Any] | None,
    ) -> tuple[Found, Row | None]:  # fmt: skip
        namespace, name = call.info.namespace, call.info.name
        for _ in range(ROUTES):
            marker = clock.shown(namespace, name)
            if marker is None:
                # The object went meanwhile: what the log says now must be of now.
                await (barrier if barrier is not None else clock.snapshot(linearizable=True))
                marker = clock.shown(namespace, name)
            if marker is None:
                raise not_found(aggregated.resource, name, aggregated.group)
            cluster, uid = marker.cluster, marker.uid
            client = await self._client(clock, cluster)
            answer = await self._ask(call, aggregated, client, cluster, form, include, sub)
            if barrier is not None:
                await barrier
            if answer is None:
                if await self._scope.lacking(call, aggregated, clock, [cluster]):
                    raise not_found(aggregated.resource, name, aggregated.group)
                # The member has no such object: its deletion is on its way into the log.
                await self._deleted(clock, cluster, namespace, name, uid)
                continue
            found, row = locate(answer.body, cluster, form.kind == "table")
            found.warnings = tuple(answer.headers.getall("Warning", []))
            if await self._number(clock, namespace, name, found):
                now = clock.shown(namespace, name)
                if now is None or now.cluster == cluster:
                    return found, row
        raise unavailable(f'{aggregated.resource} "{name}" moves between clusters, try again')

    async def _number(self, clock: ResourceClock, namespace: str, name: str, found: Found) -> bool:
        """Wait for the body's fleet version; False when it was passed over and must be read again."""
        version = version_of(found.meta.version)
        try:
            marker = await clock.wait_version(
                found.cluster, namespace, name, found.meta.uid, version, timeout=SETTLE
            )
        except StatusError as error:
            if error.code != 504:
                raise
            raise unavailable(f"cluster {found.cluster}: its events lag behind, try again") from error
        if marker is None or marker.deleted:
            return False
        found.version = marker.fleet
        return True

    async def _deleted(self, clock: ResourceClock, cluster: str, namespace: str, name: str, uid: str) -> None:
        """Wait until the log shows something else than the object that its member has no more."""

        def gone() -> bool | None:
            marker = clock.marker(cluster, namespace, name)
            return True if marker is None or marker.deleted or marker.uid != uid else None

        if await clock.until(cluster, gone, SETTLE) is None:
            raise unavailable(f"cluster {cluster}: its events lag behind, try again")

    async def _client(self, clock: ResourceClock, cluster: str) -> KubeClient:
        member = clock.members.get(cluster)
        if member is None:
            raise unavailable(f"cluster {cluster} is leaving the fleet, try again")
        await require_answering(member)
        return member.client

    async def _ask(
        self, call: Call, aggregated: Aggregated, client: KubeClient, cluster: str, form: Negotiated,
        include: str, sub: str,
    ) -> Response | None:  # fmt: skip
        """The member's answer; None where it has no such object."""
        path = aggregated.at(call.info.version).path(call.info.namespace or None, call.info.name, sub or None)
        headers = {"Accept": form.accept(many=False)}
        if cluster:
            headers.update(self._scope.access.headers(call, aggregated))
        query = {"includeObject": "Metadata" if include == "None" else include} if include else None
        try:
            return await client.request(
                "GET", path, query=query, headers=headers, timeout=MEMBER_TIMEOUT, longest=MAX_OBJECT
            )
        except StatusError as error:
            if error.code == 404:
                return None
            raise


def table_of(found: Found, row: Row, shown: bytes, form: Negotiated, include: str) -> bytes:
    """The Table of one object: the version stands in its metadata and in the row's object."""
    columns = Columns()
    columns.learn(found.cluster, columns_in(row.head, row.tail))
    layout = columns.layout()
    obj = b"null" if include == "None" else shown
    text = row.row[: found.meta.start] + obj + row.row[found.end :]
    return b"".join((
        b'{"kind":"Table","apiVersion":"meta.k8s.io/', form.version.encode(),
        b'","metadata":{"resourceVersion":"', b"%d" % found.version, b'"},"columnDefinitions":',
        layout.definitions, b',"rows":[', layout.row(found.cluster, columns.places(found.cluster), text), b"]}\n",
    ))  # fmt: skip


def is_status(body: bytes) -> bool:
    """Is an answer a Status and no object?"""
    try:
        return names_of(body) == ("v1", "Status")
    except SpliceError:
        return False


__all__ = ["Found", "Getter", "ReadOptions", "is_status", "locate"]
