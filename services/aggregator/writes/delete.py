"""DELETE of one object."""

from __future__ import annotations

from aiohttp import web

from services.aggregator.types import Aggregated, Call
from services.aggregator.writes.body import Raw, as_json, join, raw, split, value
from services.aggregator.writes.context import SETTLE, WriteContext
from services.aggregator.writes.send import head_of, respond, send, show, show_settled
from services.aggregator.writes.target import Target, find
from services.common.kube.client import Response


async def delete(context: WriteContext, call: Call, aggregated: Aggregated) -> web.Response:
    """Delete the object; the answer comes when the log has its deletion, or its deletionTimestamp."""
    target = await find(context, call, aggregated)
    body = await read_options(call)
    if body is not None:
        body = await _translate_preconditions(target, body)
    answer = await send(context, call, aggregated, target.client, "DELETE", target.path(call), body)
    if is_dry(call, body):
        return await show(context, call, target.clock, target.cluster, answer, dry=True)
    # The member may have had another object of that name by now: what went is what it says.
    head = head_of(answer.body)
    place, uid = (target.cluster, target.namespace, target.name), head.uid or target.marker.uid
    await target.clock.wait_deleted(*place, uid, timeout=SETTLE, version=number(head.version))
    return await _answer(context, call, target, answer, head.version)


def number(version: str) -> int:
    """A member's version; 0 where there is none: what was done is not to fail on it."""
    return int(version) if version.isdecimal() else 0


def is_dry(call: Call, options: bytes | None) -> bool:
    """Whether nothing is to be deleted; kube-apiserver does not look at the query where there is a body."""
    return bool(call.query.get("dryRun") if options is None else value(split(options).get("dryRun")))


async def _answer(context: WriteContext, call: Call, target: Target, answer: Response, version: str) -> web.Response:
    """A Status passes; of an object the log need not have just that state any more, and nothing is left to wait for.

    What is deleted at once is answered under the version of its deletion, which is its tombstone's.
    """
    if not version:
        return respond(call, answer, answer.body)
    call.audit["memberVersion"] = version
    return respond(call, answer, await show_settled(context, target.clock, target.cluster, answer.body))


async def read_options(call: Call) -> bytes | None:
    """The DeleteOptions as JSON; None where there are none."""
    body = await call.request.read()
    return await as_json(body, call.request.headers.get("Content-Type", "")) if body else None


async def _translate_preconditions(target: Target, body: bytes) -> bytes:
    fields = split(body)
    if value(fields.get("preconditions")) is None:
        return body
    fields["preconditions"] = raw(await preconditions(target, split(fields["preconditions"])))
    return join(fields)


async def preconditions(target: Target, conditions: Raw) -> Raw:
    """Translate the version in `Preconditions`, and tie it to the object's uid."""
    native = await target.member_version(str(value(conditions.get("resourceVersion")) or ""))
    if native is not None:
        conditions["resourceVersion"] = raw(native.decode())
        conditions.setdefault("uid", raw(target.marker.uid))
    return conditions
