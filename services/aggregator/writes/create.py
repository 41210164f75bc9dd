"""POST of an object, and server-side apply of one that is not there yet."""

from __future__ import annotations

import logging
import random
import time
from dataclasses import dataclass
from typing import Any

import grpc
from aiohttp import web

from _fastpath.splice import SpliceError, unsplice
from reclock.scheduler.v1 import scheduler_pb2
from services.aggregator.clock.claims import Claim
from services.aggregator.clock.clock import ResourceClock
from services.aggregator.types import HOST, Aggregated, Call
from services.aggregator.writes.bare_pods import warn_of_missing
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
from services.aggregator.writes.namespaces import (
    ensure_namespace,
    hold_namespace,
    host_namespace_of,
    lacks_namespace,
    when_namespace_is_ready,
)
from services.aggregator.writes.references import fixed_clusters, mark_routed, take_in
from services.aggregator.writes.send import send, show
from services.aggregator.writes.target import METADATA, client_of, clock_of, member_path
from services.common import errors
from services.common.errors import StatusError, from_rpc
from services.common.etcd import EtcdError
from services.common.kube.client import KubeClient, Response

log = logging.getLogger(__name__)

PLACE_TIMEOUT = 10.0
APPLY = "application/apply-patch+yaml"
ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # of Kubernetes' generated names: no vowels, nothing mistaken
SUFFIX = 5
MAX_PREFIX = 58
NAMES = 8  # generated names that are tried, as kube-apiserver does
LANDED = 120.0  # seconds after which a create that was sent cannot take effect any more (apiservers give up after 60)


@dataclass(slots=True)
class New:
    """An object on its way to a member."""

    call: Call
    aggregated: Aggregated
    head: Envelope
    namespace: str
    name: str
    body: bytes
    by_apply: bool = False
    generated: bool = False  # the name was made here: nobody will ask for it again
    sent: bool = False  # a member may have made it

    @property
    def dry(self) -> bool:
        return bool(self.call.query.get("dryRun"))


async def create(context: WriteContext, call: Call, aggregated: Aggregated) -> web.Response:
    """Create the object where the aggregation says: on the host, or on the member that the scheduler picks."""
    if aggregated.create == "Host" and is_protobuf(call.request.headers.get("Content-Type", "")):
        return await _pass_to_host(context, call, aggregated)
    body = await as_json(await call.request.read(), call.request.headers.get("Content-Type", ""))
    head = envelope(body, aggregated.kind)
    namespace = _namespace(call, aggregated, head)
    if head.metadata.resource_version:
        raise errors.bad_request("resourceVersion should not be set on objects to be created")
    new = New(call, aggregated, head, namespace, head.metadata.name, body)
    if new.name or aggregated.create == "Host":
        return await _create(context, new)  # the host makes names itself
    if not head.metadata.generate_name:
        raise errors.invalid(
            f'{aggregated.kind} "" is invalid: metadata.name: Required value: name or generateName is required'
        )
    for attempt in range(1, NAMES + 1):
        name = generate_name(head.metadata.generate_name)
        named = New(call, aggregated, head, namespace, name, _named(body, name), generated=True)
        try:
            return await _create(context, named)
        except StatusError as error:
            if error.reason != "AlreadyExists" or attempt == NAMES:
                raise
    raise AssertionError("unreachable")


async def _pass_to_host(context: WriteContext, call: Call, aggregated: Aggregated) -> web.Response:
    """Controllers write events in protobuf: on the host nothing of a new object is to be translated."""
    clock = clock_of(context, aggregated)
    clock.require_writable()
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
    clock.require_writable()
    if aggregated.create == "Host":
        return await show(context, new.call, clock, HOST, await _post(context, new, context.host, HOST))
    await _must_be_free(context, new, clock)
    host_namespace = await host_namespace_of(context, new.namespace, aggregated, new.name) if new.namespace else {}
    cluster = await _pick(context, new, clock)
    if new.dry:
        return await _rehearse(context, new, clock, cluster)
    claim = await clock.claim(new.namespace, new.name, cluster)
    try:
        # A claim that is still held is an earlier try of the same create: it goes where that one went.
        await settle_earlier(context, new, clock, claim, cluster)
        response = await _create_on(context, new, clock, claim.cluster, host_namespace)
    except StatusError as error:
        if new.generated or is_settled(new, claim, error):
            await claim.release()
        raise
    else:
        await claim.release()
        return response
    finally:
        claim.leave()


async def _must_be_free(context: WriteContext, new: New, clock: ResourceClock) -> None:
    """409 where an object of the name exists.

    One that is being deleted may be gone on its member already, when the answer to its deletion came before the
    member told of its end: the member is asked, and the log waited for.
    """
    shown = clock.shown(new.namespace, new.name)
    if shown is None:
        return
    aggregated = new.aggregated
    exists = errors.already_exists(aggregated.resource, new.name, aggregated.group)
    if not shown.deleting:
        raise exists
    path = aggregated.at(new.call.info.version).path(new.namespace or None, new.name)
    client = context.host if shown.cluster == HOST else client_of(clock, shown.cluster)
    try:
        await client.request("GET", path, headers=METADATA, timeout=10)
    except StatusError as error:
        if error.code != 404:
            raise
        await clock.wait_gone(shown)
    else:
        raise exists


async def settle_earlier(
    context: WriteContext, new: New, clock: ResourceClock, claim: Claim, picked: str
) -> None:
    """Move a claim that an earlier try left, once its cluster is known not to have the object.

    A try that is not over may still land there; a cluster that left the fleet has no say any more. 503 while the
    cluster is away.
    """
    if not claim.earlier or claim.cluster == picked:
        return
    if claim.cluster in clock.members:
        if time.time() - claim.since < LANDED:
            return
        path = new.aggregated.at(new.call.info.version).path(new.namespace or None, new.name)
        try:
            await client_of(clock, claim.cluster).request("GET", path, headers=METADATA, timeout=10)
            return
        except StatusError as error:
            if error.code != 404:
                raise errors.unavailable(
                    f"an earlier create of {new.name!r} went to cluster {claim.cluster!r}, which cannot be asked now: {error.message}"
                ) from error
    elif not context.fleet.synced.is_set():
        raise errors.unavailable(f"an earlier create of {new.name!r} went to cluster {claim.cluster!r}, which is not known yet")
    try:
        await claim.move(picked)
    except EtcdError as error:
        raise errors.unavailable(f"the store of fleet versions does not answer: {error}") from error


def is_settled(new: New, claim: Claim, error: StatusError) -> bool:
    """Whether it is known, after this error, that the claimed member made nothing and will make nothing."""
    if claim.earlier:
        # The earlier try may still take effect, unless it did, or had the time to.
        return error.reason == "AlreadyExists" or (
            new.sent and error.code < 500 and time.time() - claim.since >= LANDED
        )
    if not new.sent or error.code < 500:
        return True  # nothing was sent, or the member has said no
    return isinstance(error, errors.MemberUnreachable) and error.unsent


async def _pick(context: WriteContext, new: New, clock: ResourceClock) -> str:
    """Ask the scheduler for a member, unless an owner that lives on one fixes it."""
    references = new.head.metadata.owner_references or []
    fixed = fixed_clusters(context, new.namespace, references)
    if len(fixed) > 1:
        raise errors.invalid(
            f"metadata.ownerReferences: the owners live on different clusters ({', '.join(sorted(fixed))})"
        )
    if fixed:
        return fixed.pop()
    # Selected by the aggregation and serving the type: anywhere else nobody would see the object.
    candidates = sorted(name for name, state in clock.members.items() if name and state.serves)
    if not candidates:
        raise errors.MemberAway(f"no cluster serves {new.aggregated.key} now")
    request = scheduler_pb2.PlaceObjectRequest(
        api_version=new.head.api_version or new.aggregated.at(new.call.info.version).group_version,
        kind=new.head.kind or new.aggregated.kind,
        namespace=new.namespace,
        name=new.name,
        manifest=new.body,
        candidates=candidates,
    )
    try:
        answer = await context.placement.PlaceObject(request, timeout=PLACE_TIMEOUT)
    except grpc.aio.AioRpcError as error:
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            raise errors.unavailable("the scheduler is away: new objects wait for it, try again") from error
        raise from_rpc(error, "placing the object") from error
    if not answer.fits:
        reasons = "; ".join(f"{verdict.cluster}: {verdict.message}" for verdict in answer.verdicts)
        new.call.warnings.append(
            f"fits no cluster now and stays pending on {answer.cluster} ({reasons})"[:900]
        )
    return str(answer.cluster)


async def _rehearse(context: WriteContext, new: New, clock: ResourceClock, cluster: str) -> web.Response:
    """A dry run leaves nothing behind, no namespace either: the host judges what the member cannot yet."""
    client = client_of(clock, cluster)
    try:
        answer = await _post(context, new, client, cluster)
    except StatusError as error:
        if not lacks_namespace(error):
            raise
        new.call.warnings.append(
            f"namespace {new.namespace!r} is not on cluster {cluster!r} yet: the host judged this dry run"
        )
        answer = await _post(context, new, context.host, cluster)
    return await show(context, new.call, clock, cluster, answer)


async def _create_on(
    context: WriteContext, new: New, clock: ResourceClock, cluster: str, host_namespace: dict[str, Any]
) -> web.Response:
    client = client_of(clock, cluster)
    if new.namespace:
        host_namespace = await hold_namespace(context, host_namespace)
    await warn_of_missing(new.call, new.aggregated, client, new.namespace, new.body)
    try:
        answer = await _post(context, new, client, cluster)
    except StatusError as error:
        if not new.namespace or not lacks_namespace(error):
            raise
        new.sent = False  # refused
        await ensure_namespace(context, client, host_namespace)
        answer = await when_namespace_is_ready(lambda: _post(context, new, client, cluster))
    return await show(context, new.call, clock, cluster, answer)


async def _post(context: WriteContext, new: New, client: KubeClient, cluster: str) -> Response:
    """Send it, as an apply patch where it came as one."""
    body = await _inside(context, cluster, new)
    path = member_path(new.call, new.namespace, new.name if new.by_apply else "")
    new.sent = True
    if new.by_apply:
        return await send(context, new.call, new.aggregated, client, "PATCH", path, body, APPLY)
    return await send(context, new.call, new.aggregated, client, "POST", path, body)


async def _inside(context: WriteContext, cluster: str, new: New) -> bytes:
    body = new.body
    if cluster:
        body = mark_routed(await take_in(context, cluster, new.namespace, body), context.fleet_id)
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
