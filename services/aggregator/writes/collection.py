"""DELETE of a collection: on every member at once, but never of what the merged view does not show."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from aiohttp import web

from _fastpath.splice import SpliceError
from services.aggregator.clock.clock import ResourceClock
from services.aggregator.clock.membership import MemberState
from services.aggregator.reads.codec import AnyMeta, codec_of, items_of
from services.aggregator.reads.envelopes import whole_list
from services.aggregator.reads.query import EXACT, integer
from services.aggregator.types import Aggregated, Call
from services.aggregator.writes.body import join, raw, split, value
from services.aggregator.writes.context import SETTLE, WriteContext
from services.aggregator.writes.delete import is_dry, number, read_options
from services.aggregator.writes.send import after_write, head_of, query, respond, send, show_item
from services.aggregator.writes.target import clock_of, member_path
from services.common import errors
from services.common.errors import StatusError
from services.common.kube.client import Response

AT_ONCE = 8  # single deletions under way on one member
OF_LISTS = ("labelSelector", "fieldSelector")

Item = tuple[bytes, AnyMeta]


async def delete_collection(context: WriteContext, call: Call, aggregated: Aggregated) -> web.Response:
    """Delete what matches on every member, all at once; one member's failure is the answer's, after the others' end.

    The answer lists what was deleted; it comes when the log has all of it. Objects that are hidden behind an older
    one of another member stay: whoever asks has not seen them.
    """
    clock = clock_of(context, aggregated)
    clock.require_writable()
    _require_whole(call)
    body = await read_options(call)
    if body is not None and value(split(body).get("preconditions")) is not None:
        raise errors.bad_request(
            "preconditions of a deletecollection cannot hold for objects of several clusters"
        )
    states = [state for state in clock.members.values() if state.serves]
    results = await asyncio.gather(
        *(_delete_on(context, call, clock, state, body) for state in states), return_exceptions=True
    )
    failure = next((result for result in results if isinstance(result, BaseException)), None)
    if failure is not None:
        raise failure
    if not results:
        raise errors.MemberAway(f"no cluster serves {aggregated.key} now")
    done = [result for result in results if not isinstance(result, BaseException)]
    with after_write(call):
        snapshot = await clock.snapshot(timeout=SETTLE)
    items = [item for _, items in done for item in items]
    form = context.reads.write_form(call, aggregated)
    kind, api_version = f"{aggregated.kind}List", aggregated.at(call.info.version).group_version
    if form.kind == "partial":
        kind, api_version = "PartialObjectMetadataList", f"meta.k8s.io/{form.version}"
    response = respond(call, done[0][0], whole_list(form, kind, api_version, snapshot.version, items))
    said = [text for answer, _ in done for text in answer.headers.getall("Warning", [])]
    response.headers.popall("Warning", None)
    for text in dict.fromkeys(said):
        response.headers.add("Warning", text)
    return response


def _require_whole(call: Call) -> None:
    """400 for what asks for a part of the collection: each member would delete such a part, or all if it was not told."""
    asked = call.query
    if integer(asked, "limit") > 0 or asked.get("continue") or asked.get("resourceVersionMatch") == EXACT:
        raise errors.bad_request("limit, continue and an exact resourceVersion are not supported when objects of several clusters are deleted")


async def _delete_on(
    context: WriteContext, call: Call, clock: ResourceClock, state: MemberState, body: bytes | None
) -> tuple[Response, list[bytes]]:
    """One member's share: its answer, and what it deleted as shown."""
    cluster = state.cluster
    hidden = hidden_on(clock, cluster, call.info.namespace)
    if hidden:
        answer, items = await _one_by_one(context, call, clock, state, body, hidden)
    else:
        path = member_path(call, call.info.namespace)
        asked = _query(context, call, cluster)
        answer = await send(
            context, call, clock.aggregated, state.client, "DELETE", path, body, asked=asked, many=True
        )
        items = _items(answer.body)
    if not is_dry(call, body):
        for _, meta in items:
            place = (cluster, meta.namespace, meta.name, meta.uid)
            try:
                await clock.wait_deleted(*place, timeout=SETTLE, version=number(meta.version))
            except StatusError as error:
                raise errors.timeout(f"deleted on {cluster}, but not seen in time: {error.message}") from error
    shown = []
    for item, meta in items:
        one, known = await show_item(context, clock, cluster, item, meta)
        shown.append(one if known else codec_of(answer.body).without_version(one))
    return answer, shown


def hidden_on(clock: ResourceClock, cluster: str, namespace: str) -> set[tuple[str, str]]:
    """Keys whose object on this cluster is hidden behind another cluster's; O(1) without clashes."""
    if not clock.counts().clashes:
        return set()
    hidden = set()
    for marker in clock.iter_markers(namespace):
        if marker.cluster == cluster and clock.is_clash(marker.namespace, marker.name):
            shown = clock.shown(marker.namespace, marker.name)
            if shown is not None and shown.cluster != cluster:
                hidden.add((marker.namespace, marker.name))
    return hidden


async def _one_by_one(
    context: WriteContext,
    call: Call,
    clock: ResourceClock,
    state: MemberState,
    body: bytes | None,
    hidden: set[tuple[str, str]],
) -> tuple[Response, list[Item]]:
    """List what matches and delete each that is not hidden, by its uid."""
    selectors = [(key, text) for key, text in _query(context, call, state.cluster) if key in OF_LISTS]
    options = body or options_in(call.query)
    path = member_path(call, call.info.namespace)
    listed = await send(context, call, clock.aggregated, state.client, "GET", path, None, asked=selectors, many=True)
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(item: Item) -> Item | None:
        meta = item[1]
        if (meta.namespace, meta.name) in hidden:
            return None
        async with limit:
            try:
                await send(
                    context, call, clock.aggregated, state.client, "DELETE", member_path(call, meta.namespace, meta.name),
                    with_uid(options, meta.uid), asked=[],
                )  # fmt: skip
            except StatusError as error:
                if error.code not in (404, 409):  # gone, or another object by now
                    raise
                return None
        return item

    done = await asyncio.gather(*(one(item) for item in _items(listed.body)))
    return listed, [item for item in done if item is not None]


def options_in(asked: dict[str, str]) -> bytes:
    """The query's options as a body: kube-apiserver does not look at the query where there is one."""
    options: dict[str, Any] = {}
    if asked.get("gracePeriodSeconds", "").isdigit():
        options["gracePeriodSeconds"] = int(asked["gracePeriodSeconds"])
    if asked.get("propagationPolicy"):
        options["propagationPolicy"] = asked["propagationPolicy"]
    if asked.get("orphanDependents"):
        options["orphanDependents"] = asked["orphanDependents"] == "true"
    if asked.get("dryRun"):
        options["dryRun"] = [asked["dryRun"]]
    return msgspec.json.encode(options)


def with_uid(options: bytes, uid: str) -> bytes:
    """DeleteOptions that hold for this object only."""
    fields = split(options)
    fields["preconditions"] = raw({"uid": uid})
    return join(fields)


def _query(context: WriteContext, call: Call, cluster: str) -> list[tuple[str, str]]:
    """The caller's query for one member: uids of copies in field selectors are the member's."""
    return [
        (key, translate_uids(text, context.owners.incoming(cluster)) if key == "fieldSelector" else text)
        for key, text in query(call)
    ]


def translate_uids(selector: str, uids: dict[str, str]) -> str:
    """Put the member's uids into a field selector."""
    terms = selector.split(",")
    for at, term in enumerate(terms):
        field, sign, wanted = term.partition("=")
        if field.rstrip("!") in ("involvedObject.uid", "regarding.uid"):
            uid = wanted.lstrip("=")
            terms[at] = field + sign + wanted.replace(uid, uids.get(uid, uid)) if uid else term
    return ",".join(terms)


def _items(body: bytes) -> list[Item]:
    try:
        return items_of(body)
    except SpliceError as error:
        if head_of(body).is_status:
            return []
        raise errors.MemberUnreachable(f"a cluster's answer is no list: {error}") from error
