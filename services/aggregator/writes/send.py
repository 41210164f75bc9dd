"""Sends a write to a member, and shows its answer under fleet versions."""

from __future__ import annotations

import msgspec
from aiohttp import web

from _fastpath.splice import scan, splice
from services.aggregator.clock.clock import ResourceClock
from services.aggregator.types import Aggregated, Call
from services.aggregator.writes.body import join, raw, split
from services.aggregator.writes.context import MEMBER_TIMEOUT, WriteContext
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
PARTIAL = "as=PartialObjectMetadata"


def query(call: Call) -> list[tuple[str, str]]:
    """The query parameters that mean the same on a member."""
    return [(key, value) for key, value in call.request.rel_url.query.items() if key in PASSED_QUERY]


def accept(call: Call) -> str:
    """Writes answer JSON, whole or metadata only: Kubernetes answers no Table to a write either."""
    asked = call.request.headers.get("Accept", "")
    return (
        "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
        if PARTIAL in asked
        else "application/json"
    )


async def send(
    context: WriteContext,
    call: Call,
    aggregated: Aggregated,
    client: KubeClient,
    method: str,
    path: str,
    body: bytes | None,
    content_type: str = "application/json",
    timeout: float = MEMBER_TIMEOUT,
    asked: list[tuple[str, str]] | None = None,
) -> Response:
    """One call to a member, as the caller where the aggregation says so. `asked`: other query parameters than the
    caller's."""
    headers = {"Accept": accept(call), **context.identity(call, aggregated)}
    if body is not None:
        headers["Content-Type"] = content_type
    if agent := call.request.headers.get("User-Agent"):
        headers["User-Agent"] = agent  # members name field managers after it
    call.audit["cluster"] = client.name
    return await client.request(
        method, path, query=query(call) if asked is None else asked, body=body, headers=headers, timeout=timeout
    )


def respond(call: Call, answer: Response, body: bytes) -> web.Response:
    """Pass a member's answer on, with a translated body."""
    response = web.Response(status=answer.status, body=body, content_type="application/json")
    for header in PASSED_HEADERS:
        if value := answer.headers.get(header):
            response.headers[header] = value
    for warning in answer.headers.getall("Warning", []):
        response.headers.add("Warning", warning)
    return response


class _Metadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    namespace: str = ""
    name: str = ""


class _Head(msgspec.Struct, rename="camel"):
    kind: str = ""
    api_version: str = ""
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


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
    head = msgspec.json.decode(answer.body, type=_Head)
    if dry or call.query.get("dryRun"):
        if head.kind == "Status" and head.api_version == "v1":
            return respond(call, answer, answer.body)
        return respond(call, answer, await show_settled(context, clock, cluster, answer.body))
    if not head.metadata.resource_version:
        return respond(call, answer, answer.body)
    shown = await context.reads.show(clock, cluster, answer.body, accept(call), path=path)
    call.audit.update(memberVersion=head.metadata.resource_version, fleetVersion=scan(shown).version)
    return respond(call, answer, shown)


async def show_settled(context: WriteContext, clock: ResourceClock, cluster: str, body: bytes) -> bytes:
    """Show an object without waiting: under its number if the log has just this state, else without any.

    A number never stands beside a body of another member version.
    """
    metadata = msgspec.json.decode(body, type=_Head).metadata
    marker = clock.marker(cluster, metadata.namespace, metadata.name)
    known = marker is not None and str(marker.version) == metadata.resource_version
    meta = scan(body)
    owners = await context.owners.resolve(cluster, meta.owners, metadata.namespace)
    uids = context.owners.object_uids(cluster)
    version = str(marker.fleet) if marker is not None and known else "0"
    shown = splice(body, meta, version.encode(), cluster.encode(), owners, object_uids=uids)
    return shown if known else _without_version(shown)


def _without_version(body: bytes) -> bytes:
    fields = split(body)
    metadata = split(fields["metadata"])
    metadata.pop("resourceVersion", None)  # a dry run of a create has none
    fields["metadata"] = raw(metadata)
    return join(fields)
