"""Subresources of aggregated objects other than tunnels: status, scale, eviction, binding, resize, …"""

from __future__ import annotations

from aiohttp import web

from services.aggregator.types import Aggregated, Call
from services.aggregator.writes.body import as_json, join, raw, split, value
from services.aggregator.writes.context import SETTLE, WriteContext
from services.aggregator.writes.delete import preconditions
from services.aggregator.writes.patch import patch
from services.aggregator.writes.send import after_write, send, show
from services.aggregator.writes.target import ASK_TIMEOUT, METADATA, Target, find
from services.aggregator.writes.update import update
from services.common import errors
from services.common.errors import StatusError


async def subresource(context: WriteContext, call: Call, aggregated: Aggregated) -> web.Response:
    """Route by the object's marker; PUT and PATCH translate as for the object itself."""
    method = call.request.method
    if method == "PUT":
        return await update(context, call, aggregated)
    if method == "PATCH":
        return await patch(context, call, aggregated)
    target = await find(context, call, aggregated)
    if method == "GET":
        return await _read(context, call, target)
    if method == "POST":
        body = await _posted(call, target)
        answer = await send(context, call, aggregated, target.client, "POST", target.path(call), body)
        if not call.query.get("dryRun"):
            with after_write(call):
                await _logged(call, target, body)
        return await show(context, call, target.clock, target.cluster, answer, path=target.path(call))
    raise errors.method_not_allowed("the server does not allow this method on the requested resource")


async def _read(context: WriteContext, call: Call, target: Target) -> web.Response:
    """GET of a subresource (scale, status): numbered as the object is."""
    answer = await send(context, call, target.aggregated, target.client, "GET", target.path(call), None)
    return await show(context, call, target.clock, target.cluster, answer, path=target.path(call))


async def _logged(call: Call, target: Target, body: bytes) -> None:
    """Wait until the log has what was done: these are answered by a Status, which carries no version."""
    place = (target.cluster, target.namespace, target.name)
    if call.info.subresource == "eviction" and not is_dry(body):
        await target.clock.wait_deleted(*place, target.marker.uid, timeout=SETTLE)
    elif call.info.subresource == "binding":
        path = target.aggregated.at(target.version).path(target.namespace or None, target.name)
        try:
            answer = await target.client.request("GET", path, headers=METADATA, timeout=ASK_TIMEOUT)
        except StatusError as error:
            if error.code != 404:
                raise
            return  # bound, and deleted since
        metadata = answer.json()["metadata"]
        version = int(metadata["resourceVersion"])
        await target.clock.wait_version(*place, metadata["uid"], version, timeout=SETTLE)


def is_dry(body: bytes) -> bool:
    """Whether an Eviction's own options make it a dry run."""
    options = value(split(body).get("deleteOptions"))
    return isinstance(options, dict) and bool(options.get("dryRun"))


async def _posted(call: Call, target: Target) -> bytes:
    """Eviction, Binding, TokenRequest: versions stand in metadata and in deleteOptions."""
    body = await as_json(await call.request.read(), call.request.headers.get("Content-Type", ""))
    fields = split(body)
    if "metadata" in fields and value(fields["metadata"]):
        metadata = split(fields["metadata"])
        native = await target.member_version(str(value(metadata.get("resourceVersion")) or ""))
        if native is not None:
            metadata["resourceVersion"] = raw(native.decode())
            fields["metadata"] = raw(metadata)
    options = fields.get("deleteOptions")
    if options is not None and value(options):
        inner = split(options)
        if value(inner.get("preconditions")) is not None:
            inner["preconditions"] = raw(await preconditions(target, split(inner["preconditions"])))
            fields["deleteOptions"] = raw(inner)
    return join(fields)
