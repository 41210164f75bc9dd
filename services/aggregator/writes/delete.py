"""DELETE of one object, and of a collection on every member at once."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from aiohttp import web

from services.aggregator.clock.clock import ResourceClock
from services.aggregator.types import Aggregated, Call
from services.aggregator.writes.body import Raw, as_json, join, raw, split, value
from services.aggregator.writes.context import SETTLE, WriteContext
from services.aggregator.writes.send import respond, send, show, show_settled
from services.aggregator.writes.target import Target, clock_of, find, member_path
from services.common import errors
from services.common.errors import StatusError
from services.common.kube.client import KubeClient, Response


async def delete(context: WriteContext, call: Call, aggregated: Aggregated) -> web.Response:
    """Delete the object; the answer comes when the log has its deletion, or its deletionTimestamp."""
    target = await find(context, call, aggregated)
    body = await _options(call)
    if body is not None:
        body = await _translate_preconditions(target, body)
    uid = target.marker.uid
    answer = await send(context, call, aggregated, target.client, "DELETE", target.path(call), body)
    if call.query.get("dryRun"):
        return await show(context, call, target.clock, target.cluster, answer)
    await target.clock.wait_deleted(target.cluster, target.namespace, target.name, uid, timeout=SETTLE)
    return await _answer(context, call, target, answer)


async def _answer(context: WriteContext, call: Call, target: Target, answer: Response) -> web.Response:
    """A Status passes; an object that is still terminating is shown under the version it has now."""
    obj = msgspec.json.decode(answer.body)
    version = (obj.get("metadata") or {}).get("resourceVersion", "") if obj.get("kind") != "Status" else ""
    if not version:
        return respond(call, answer, answer.body)
    marker = target.clock.marker(target.cluster, target.namespace, target.name)
    if marker is not None and marker.uid == obj["metadata"].get("uid") and str(marker.version) == version:
        return await show(context, call, target.clock, target.cluster, answer)
    # Deleted meanwhile: its last state has a number only if the log saw it; without one, none is shown.
    return respond(call, answer, await show_settled(context, target.clock, target.cluster, answer.body))


async def _options(call: Call) -> bytes | None:
    body = await call.request.read()
    return as_json(body, call.request.headers.get("Content-Type", "")) if body else None


async def _translate_preconditions(target: Target, body: bytes) -> bytes:
    fields = split(body)
    if "preconditions" not in fields:
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


async def delete_collection(context: WriteContext, call: Call, aggregated: Aggregated) -> web.Response:
    """Delete what matches on every member, all at once; one member's failure is the answer's, after the others' end.

    The answer lists what was deleted; it comes when the log has all of it.
    """
    clock = clock_of(context, aggregated)
    body = await _options(call)
    if body is not None and "preconditions" in split(body):
        raise errors.bad_request(
            "preconditions of a deletecollection cannot hold for objects of several clusters"
        )
    path = member_path(call, call.info.namespace)
    states = [state for state in clock.members.values() if state.serves]
    results = await asyncio.gather(
        *(
            _delete_on(context, call, aggregated, clock, state.cluster, state.client, path, body)
            for state in states
        ),
        return_exceptions=True,
    )
    items: list[Any] = []
    failure: BaseException | None = None
    first: Response | None = None
    for result in results:
        if isinstance(result, BaseException):
            failure = failure or result
            continue
        first = first or result[0]
        items.extend(result[1])
    if failure is not None:
        raise failure
    if first is None:
        raise errors.unavailable(f"no cluster serves {aggregated.key} now", retry_after=5)
    snapshot = await clock.snapshot(timeout=SETTLE)
    answer = {
        "kind": f"{aggregated.kind}List",
        "apiVersion": aggregated.at(call.info.version).group_version,
        "metadata": {"resourceVersion": str(snapshot.version)},
        "items": items,
    }
    return respond(call, first, msgspec.json.encode(answer))


async def _delete_on(
    context: WriteContext,
    call: Call,
    aggregated: Aggregated,
    clock: ResourceClock,
    cluster: str,
    client: KubeClient,
    path: str,
    body: bytes | None,
) -> tuple[Response, list[msgspec.Raw]]:
    answer = await send(context, call, aggregated, client, "DELETE", path, body)
    fields = split(answer.body)
    deleted = [] if call.query.get("dryRun") else _items(fields)
    for item in deleted:
        metadata = msgspec.json.decode(item)["metadata"]
        try:
            await clock.wait_deleted(
                cluster, metadata.get("namespace", ""), metadata["name"], metadata["uid"], timeout=SETTLE
            )
        except StatusError as error:
            raise errors.timeout(f"deleted on {cluster}, but not seen in time: {error.message}") from error
    shown = [msgspec.Raw(await show_settled(context, clock, cluster, bytes(item))) for item in _items(fields)]
    return answer, shown


def _items(fields: Raw) -> list[msgspec.Raw]:
    if "items" not in fields or bytes(fields["items"]) == b"null":
        return []
    return msgspec.json.decode(fields["items"], type=list[msgspec.Raw])
