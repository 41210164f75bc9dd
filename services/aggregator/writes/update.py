"""PUT of an object, or of one of its subresources."""

from __future__ import annotations

from aiohttp import web

from _fastpath.splice import SpliceError, unsplice
from services.aggregator.types import Aggregated, Call
from services.aggregator.writes.body import as_json, envelope, join, raw, split
from services.aggregator.writes.context import WriteContext
from services.aggregator.writes.references import mark_routed, take_in
from services.aggregator.writes.send import after_write, send, show
from services.aggregator.writes.target import ASK_TIMEOUT, METADATA, Target, find
from services.common import errors
from services.common.errors import StatusError
from services.common.kube.client import Response


async def update(context: WriteContext, call: Call, aggregated: Aggregated) -> web.Response:
    """Replace the object; its version, where sent, must be the current one."""
    body = await as_json(await call.request.read(), call.request.headers.get("Content-Type", ""))
    head = envelope(body, aggregated.kind)
    _check_names(call, head.metadata.name, head.metadata.namespace)
    target = await find(context, call, aggregated)
    return await put(context, call, target, body, head.metadata.resource_version, head.metadata.uid)


async def put(
    context: WriteContext, call: Call, target: Target, body: bytes, version: str, uid: str
) -> web.Response:
    """PUT a body that carries fleet `version` ("" for an unconditional update) to the object's member."""
    native = await target.member_version(version)
    inside = await take_in(context, target.cluster, target.namespace, body) if target.cluster else body
    if target.is_routed:
        inside = mark_routed(inside, context.fleet_id)
    try:
        # After take_in: the references that this restores are the member's own.
        inside = unsplice(inside, native, None, context.owners.incoming(target.cluster))
    except SpliceError as error:
        raise errors.bad_request(f"the object provided cannot be read: {error}") from error
    if native is not None and not uid:
        inside = with_uid(inside, target.marker.uid)
    answer = await send(context, call, target.aggregated, target.client, "PUT", target.path(call), inside)
    return await show_changed(context, call, target, answer)


async def show_changed(context: WriteContext, call: Call, target: Target, answer: Response) -> web.Response:
    """Show what a PUT or PATCH made of the object.

    One that was being deleted may have ended by it (the last finalizer): kube-apiserver answers the version before that, and
    the log must have the end, or who lists next sees it still.
    """
    if target.marker.deleting and not call.query.get("dryRun") and await _ended(target):
        with after_write(call):
            await target.clock.wait_gone(target.marker)
    return await show(context, call, target.clock, target.cluster, answer, path=target.path(call))


async def _ended(target: Target) -> bool:
    path = target.aggregated.at(target.version).path(target.namespace or None, target.name)
    try:
        answer = await target.client.request("GET", path, headers=METADATA, timeout=ASK_TIMEOUT)
        found = (answer.json().get("metadata") or {}).get("uid", target.marker.uid)
    except StatusError as error:
        return error.code == 404  # who cannot be asked now: the write was done, and is answered
    return bool(found != target.marker.uid)


def with_uid(body: bytes, uid: str) -> bytes:
    """Add the uid as a precondition: a version alone could mean another object of the same name."""
    fields = split(body)
    metadata = split(fields["metadata"])
    metadata["uid"] = raw(uid)
    fields["metadata"] = raw(metadata)
    return join(fields)


def _check_names(call: Call, name: str, namespace: str) -> None:
    if name and name != call.info.name:
        raise errors.bad_request(
            f"the name of the object ({name}) does not match the name on the URL ({call.info.name})"
        )
    if namespace and call.info.namespace and namespace != call.info.namespace:
        raise errors.bad_request(
            f"the namespace of the provided object does not match the namespace sent on the request: {namespace} is not {call.info.namespace}"
        )
