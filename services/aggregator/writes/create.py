"""POST of an object, and server-side apply of one that is not there yet."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass

import grpc
from aiohttp import web

from _fastpath.splice import SpliceError, unsplice
from reclock.scheduler.v1 import scheduler_pb2
from services.aggregator.clock.clock import ResourceClock
from services.aggregator.types import HOST, Aggregated, Call
from services.aggregator.writes.body import (
    PROTOBUF_TYPE,
    Envelope,
    as_json,
    envelope,
    is_protobuf,
    join,
    raw,
    split,
)
from services.aggregator.writes.context import WriteContext
from services.aggregator.writes.namespaces import ensure_namespace, post_when_namespace_is_ready
from services.aggregator.writes.references import fixed_clusters, take_in
from services.aggregator.writes.send import send, show
from services.aggregator.writes.target import client_of, clock_of, member_path
from services.common import errors
from services.common.errors import StatusError, from_rpc
from services.common.kube.client import Response

log = logging.getLogger(__name__)

PLACE_TIMEOUT = 10.0
APPLY = "application/apply-patch+yaml"
ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # of Kubernetes' generated names: no vowels, nothing mistaken
SUFFIX = 5
MAX_PREFIX = 58


@dataclass(slots=True)
class New:
    """An object on its way to a member."""

    call: Call
    aggregated: Aggregated
    head: Envelope
    namespace: str
    name: str
    body: bytes
    by_apply: bool


async def create(context: WriteContext, call: Call, aggregated: Aggregated) -> web.Response:
    """Create the object where the aggregation says: on the host, or on the member that the scheduler picks."""
    if aggregated.create == "Host" and is_protobuf(call.request.headers.get("Content-Type", "")):
        return await _pass_to_host(context, call, aggregated)
    body = as_json(await call.request.read(), call.request.headers.get("Content-Type", ""))
    head = envelope(body, aggregated.kind)
    namespace = _namespace(call, aggregated, head)
    if head.metadata.resource_version:
        raise errors.bad_request("resourceVersion should not be set on objects to be created")
    name = head.metadata.name or generate_name(head.metadata.generate_name)
    if not name:
        raise errors.invalid(
            f'{aggregated.kind} "" is invalid: metadata.name: Required value: name or generateName is required'
        )
    if not head.metadata.name:
        body = _named(body, name)
    return await _create(context, New(call, aggregated, head, namespace, name, body, by_apply=False))


async def _pass_to_host(context: WriteContext, call: Call, aggregated: Aggregated) -> web.Response:
    """Controllers write events in protobuf: on the host nothing of a new object is to be translated."""
    clock = clock_of(context, aggregated)
    path, body = member_path(call, call.info.namespace), await call.request.read()
    answer = await send(context, call, aggregated, context.host, "POST", path, body, PROTOBUF_TYPE)
    return await show(context, call, clock, HOST, answer)


async def create_by_apply(
    context: WriteContext, call: Call, aggregated: Aggregated, body: bytes
) -> web.Response:
    """Create by a server-side apply patch of an object that no cluster has."""
    head = envelope(body, aggregated.kind)
    return await _create(
        context, New(call, aggregated, head, call.info.namespace, call.info.name, body, by_apply=True)
    )


def generate_name(prefix: str) -> str:
    """Name for `generateName`; "" when there is none."""
    return prefix[:MAX_PREFIX] + "".join(random.choices(ALPHABET, k=SUFFIX)) if prefix else ""


async def _create(context: WriteContext, new: New) -> web.Response:
    aggregated = new.aggregated
    if aggregated.create == "Reject":
        raise errors.method_not_allowed(
            f"{aggregated.key} are created by their clusters, not through the fleet (APIAggregation {aggregated.name!r})"
        )
    clock = clock_of(context, aggregated)
    if aggregated.create == "Host":
        return await _create_on(context, new, clock, HOST)
    await clock.snapshot(timeout=5)
    if clock.shown(new.namespace, new.name) is not None:
        raise errors.already_exists(aggregated.resource, new.name, aggregated.group)
    cluster = await _pick(context, new)
    if new.call.query.get("dryRun"):
        return await _create_on(context, new, clock, cluster)
    claim = await clock.claim(new.namespace, new.name, cluster)
    # A claim that is still held is an earlier try of the same create: it goes where that one went.
    try:
        response = await _create_on(context, new, clock, claim.cluster)
    except StatusError as error:
        if error.code not in (503, 504):
            await claim.release()  # the member has answered: nothing is under way there
        raise
    await claim.release()
    return response


async def _pick(context: WriteContext, new: New) -> str:
    """Ask the scheduler for a member, unless an owner that lives on one fixes it."""
    references = new.head.metadata.owner_references or []
    fixed = fixed_clusters(context, new.namespace, references)
    if len(fixed) > 1:
        raise errors.invalid(
            f"metadata.ownerReferences: the owners live on different clusters ({', '.join(sorted(fixed))})"
        )
    if fixed:
        return fixed.pop()
    await _require_namespace(context, new)
    request = scheduler_pb2.PlaceObjectRequest(
        api_version=new.head.api_version or new.aggregated.at(new.call.info.version).group_version,
        kind=new.head.kind or new.aggregated.kind,
        namespace=new.namespace,
        name=new.name,
        manifest=new.body,
        candidates=context.aggregations.served_by(new.aggregated),
    )
    try:
        answer = await context.placement.PlaceObject(request, timeout=PLACE_TIMEOUT)
    except grpc.aio.AioRpcError as error:
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            raise errors.unavailable(
                "the scheduler is away: new objects wait for it, try again", retry_after=2
            ) from error
        raise from_rpc(error, "placing the object") from error
    if not answer.fits:
        reasons = "; ".join(f"{verdict.cluster}: {verdict.message}" for verdict in answer.verdicts)
        new.call.warnings.append(
            f"fits no cluster now and stays pending on {answer.cluster} ({reasons})"[:900]
        )
    return str(answer.cluster)


async def _require_namespace(context: WriteContext, new: New) -> None:
    if not new.aggregated.namespaced:
        return
    try:
        answer = await context.host.request("GET", f"/api/v1/namespaces/{new.namespace}", timeout=10)
    except StatusError as error:
        if error.code == 404:
            raise errors.not_found("namespaces", new.namespace) from error
        raise
    if answer.json()["metadata"].get("deletionTimestamp"):
        raise errors.forbidden(
            f'{new.aggregated.resource} "{new.name}" is forbidden: unable to create new content in namespace {new.namespace} because it is being terminated'
        )


async def _create_on(context: WriteContext, new: New, clock: ResourceClock, cluster: str) -> web.Response:
    client = client_of(clock, cluster)
    body = _inside(context, cluster, new)
    path = member_path(new.call, new.namespace, new.name if new.by_apply else "")

    async def post() -> Response:
        if new.by_apply:
            return await send(context, new.call, new.aggregated, client, "PATCH", path, body, APPLY)
        return await send(context, new.call, new.aggregated, client, "POST", path, body)

    if not cluster or not new.namespace:
        answer = await post()
    else:
        made = await ensure_namespace(context, client, new.namespace)
        answer = await post_when_namespace_is_ready(post, just_made=made)
    return await show(context, new.call, clock, cluster, answer)


def _inside(context: WriteContext, cluster: str, new: New) -> bytes:
    body = take_in(context, cluster, new.namespace, new.body) if cluster else new.body
    try:
        return unsplice(body, None, None, context.owners.incoming(cluster))
    except SpliceError as error:
        raise errors.bad_request(f"the object provided cannot be read: {error}") from error


def _namespace(call: Call, aggregated: Aggregated, head: Envelope) -> str:
    if not aggregated.namespaced:
        return ""
    sent, asked = head.metadata.namespace, call.info.namespace
    if sent and sent != asked:
        raise errors.bad_request(
            f"the namespace of the provided object does not match the namespace sent on the request: {sent} is not {asked}"
        )
    return asked


def _named(body: bytes, name: str) -> bytes:
    """The claim needs the name before the member would make one."""
    fields = split(body)
    metadata = split(fields["metadata"])
    metadata["name"] = raw(name)
    fields["metadata"] = raw(metadata)
    return join(fields)
