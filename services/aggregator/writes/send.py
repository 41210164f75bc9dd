"""Sends a write to a member, and shows its answer under fleet versions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from aiohttp import web

from _fastpath.splice import SpliceError
from services.aggregator.away import WhileAnswering, require_answering
from services.aggregator.clock.clock import ResourceClock
from services.aggregator.reads.codec import PROTOBUF, AnyMeta, codec_of, names_of
from services.aggregator.reads.negotiate import JSON_TYPE, PROTOBUF_TYPE
from services.aggregator.types import Aggregated, Call
from services.aggregator.writes.context import MEMBER_TIMEOUT, WriteContext
from services.common import errors
from services.common.errors import MemberUnreachable, StatusError, decode_status
from services.common.kube.client import KubeClient, Response

PASSED_QUERY = {
    "dryRun",
    "fieldManager",
    "fieldValidation",
    "force",
    "pretty",
    "gracePeriodSeconds",
    "propagationPolicy",
    "orphanDependents",
    "labelSelector",
    "fieldSelector",
    "ignoreStoreReadErrorWithClusterBreakingPotential",
}
PASSED_HEADERS = ("Audit-Id", "Retry-After")


def query(call: Call) -> list[tuple[str, str]]:
    """The query parameters that mean the same on a member."""
    return [(key, value) for key, value in call.request.rel_url.query.items() if key in PASSED_QUERY]


async def send(
    context: WriteContext,
    call: Call,
    aggregated: Aggregated,
    client: KubeClient,
    method: str,
    path: str,
    body: bytes | None,
    content_type: str = "application/json",
    asked: list[tuple[str, str]] | None = None,
    many: bool = False,
) -> Response:
    """One call to a member, as the caller where the aggregation says so. `asked`: other query parameters than the
    caller's. `many`: a list is answered."""
    headers = {"Accept": context.reads.write_form(call, aggregated).accept(many=many), **context.identity(call, aggregated)}
    if body is not None:
        headers["Content-Type"] = content_type
    if agent := call.request.headers.get("User-Agent"):
        headers["User-Agent"] = agent  # members name field managers after it
    if call.audit_id:
        headers["Audit-Id"] = call.audit_id  # it answers under this one then: its log and ours name the same
    call.audit["cluster"] = client.name
    clock = context.clock.get(aggregated.group, aggregated.resource)
    state = clock.members.get(client.name) if clock is not None else None
    if state is not None:
        await require_answering(state)
    async with WhileAnswering(client, lambda: state is not None and state.state == "Unreachable", method):
        return await client.request(
            method, path, query=query(call) if asked is None else asked, body=body, headers=headers, timeout=MEMBER_TIMEOUT
        )


def respond(call: Call, answer: Response, body: bytes) -> web.Response:
    """Pass a member's answer on, with a translated body."""
    kind = PROTOBUF_TYPE if codec_of(body) is PROTOBUF else JSON_TYPE
    response = web.Response(status=answer.status, body=body, content_type=kind)
    for header in PASSED_HEADERS:
        if value := answer.headers.get(header):
            response.headers[header] = value
    for warning in answer.headers.getall("Warning", []):
        response.headers.add("Warning", warning)
    return response


@dataclass(frozen=True, slots=True)
class Head:
    """What an answer says of itself; "" where it does not."""

    kind: str
    api_version: str
    namespace: str = ""
    name: str = ""
    uid: str = ""
    version: str = ""

    @property
    def is_status(self) -> bool:
        return self.kind == "Status" and self.api_version in ("v1", "")


def head_of(body: bytes) -> Head:
    """Of an answer in JSON or protobuf; MemberUnreachable when it is neither. A Status gives what its details name."""
    try:
        api_version, kind = names_of(body)
    except SpliceError as error:
        raise MemberUnreachable(f"a cluster's answer is no object: {error}") from error
    head = Head(kind, api_version)
    if head.is_status:
        details = (decode_status(body) or {}).get("details") or {}
        return replace(head, name=str(details.get("name", "")), uid=str(details.get("uid", "")))
    try:
        meta = codec_of(body).scan_answer(body)
    except SpliceError:
        return head  # without metadata there is nothing to translate
    return Head(kind, api_version, meta.namespace, meta.name, meta.uid, meta.version)


@contextmanager
def after_write(call: Call) -> Iterator[None]:
    """Around what follows when a cluster has done a write: an error of it is 504, and none of the write itself.

    A 404 would say that nothing was done. client-go repeats by itself what is answered with seconds to wait, and a create
    gives up its claim where there was no connection: the next one would make a second object elsewhere.
    """
    try:
        yield
    except StatusError as error:
        if call.request.method in ("GET", "HEAD"):
            raise
        raise errors.timeout(f"it was done, but what came of it cannot be shown yet: {error.message}") from error


async def show(
    context: WriteContext,
    call: Call,
    clock: ResourceClock,
    cluster: str,
    answer: Response,
    *,
    path: str = "",
    dry: bool = False,
) -> web.Response:
    """Show the object that a write answered: once the log has it, under its fleet version.

    A dry run is in no log: its object is shown with the number of the state that it would replace. What has no
    version (a Status, a token) passes. `path`: what was written, where that is a subresource.
    """
    head = head_of(answer.body)
    if dry or call.query.get("dryRun"):
        if head.is_status:
            return respond(call, answer, answer.body)
        return respond(call, answer, await show_settled(context, clock, cluster, answer.body))
    if not head.version:
        return respond(call, answer, answer.body)
    accept = context.reads.write_form(call, clock.aggregated).accept(many=False)
    with after_write(call):
        shown = await context.reads.show(clock, cluster, answer.body, accept, path=path)
    call.audit.update(memberVersion=head.version, fleetVersion=head_of(shown).version)
    return respond(call, answer, shown)


async def show_settled(context: WriteContext, clock: ResourceClock, cluster: str, body: bytes) -> bytes:
    """An answer's object without waiting: under its number if the log has just this state, else without any.

    A number never stands beside a body of another member version.
    """
    codec = codec_of(body)
    shown, known = await show_item(context, clock, cluster, body, codec.scan_answer(body))
    return codec.rewrap(body, shown if known else codec.without_version(shown))


async def show_item(
    context: WriteContext, clock: ResourceClock, cluster: str, body: bytes, meta: AnyMeta
) -> tuple[bytes, bool]:
    """An object under its number, and whether it has one: where the log has another state its version means nothing."""
    marker = clock.marker(cluster, meta.namespace, meta.name)
    # After a restore versions repeat: the same one of another object says nothing.
    known = marker is not None and str(marker.version) == meta.version and marker.uid == meta.uid
    version = marker.fleet if marker is not None and known else 0
    return await context.reads.present(clock.aggregated, cluster, body, meta, version), known
