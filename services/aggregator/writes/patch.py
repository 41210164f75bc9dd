"""PATCH in its four types. What touches owners, annotations or the version is translated here, the rest passes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from services.aggregator.types import Aggregated, Call
from services.aggregator.writes import jsonpatches
from services.aggregator.writes.body import Raw, envelope, join, patch_metadata, raw, split, value
from services.aggregator.writes.context import WriteContext
from services.aggregator.writes.create import create_by_apply
from services.aggregator.writes.references import mark_routed, take_in
from services.aggregator.writes.send import send
from services.aggregator.writes.target import METADATA, Target, find
from services.aggregator.writes.update import put, show_changed
from services.common import errors
from services.common.errors import StatusError
from services.common.yaml_json import yaml_to_json

JSON_PATCH = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
SUPPORTED = (JSON_PATCH, MERGE, STRATEGIC, APPLY)
JSON = "application/json"
CLUSTER = "reclock.dev/cluster"
ORDER = "$setElementOrder/ownerReferences"
ATTEMPTS = 5


async def patch(context: WriteContext, call: Call, aggregated: Aggregated) -> web.Response:
    """Patch the object, or one of its subresources."""
    kind = call.request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind not in SUPPORTED:
        raise errors.unsupported_media_type(
            f"the body of the request was in an unknown format - accepted media types include: {', '.join(SUPPORTED)}"
        )
    body = await call.request.read()
    if kind == APPLY:
        return await _apply(context, call, aggregated, await yaml_to_json(body))
    target = await find(context, call, aggregated)
    if kind == JSON_PATCH:
        return await _json_patch(context, call, target, body)
    return await _merge_patch(context, call, target, body, kind)


async def _apply(context: WriteContext, call: Call, aggregated: Aggregated, body: bytes) -> web.Response:
    """Of several who apply what is not there one creates, and the others patch that: none is told AlreadyExists."""
    head = envelope(body, aggregated.kind)
    for number in range(ATTEMPTS):
        try:
            target = await find(context, call, aggregated)
        except StatusError as missing:
            if missing.code != 404 or call.info.subresource or head.metadata.resource_version:
                raise
        else:
            return await _apply_to(context, call, target, body)
        try:
            return await create_by_apply(context, call, aggregated, body)
        except StatusError as error:
            if error.reason != "AlreadyExists" or number + 1 == ATTEMPTS:
                raise
    raise AssertionError("unreachable")


async def _apply_to(context: WriteContext, call: Call, target: Target, body: bytes) -> web.Response:
    inside = await take_in(context, target.cluster, target.namespace, body) if target.cluster else body
    if target.is_routed and not call.info.subresource:
        # Who created it by an apply owns the label: without it here the member would take it off.
        inside = mark_routed(inside, context.fleet_id)
    fields = split(inside)
    metadata = split(fields.get("metadata", msgspec.Raw(b"{}")))
    await _translate_version(target, metadata)
    _drop_cluster(metadata)
    fields["metadata"] = raw(metadata)
    return await _send(context, call, target, join(fields), APPLY)


async def _merge_patch(
    context: WriteContext, call: Call, target: Target, body: bytes, kind: str
) -> web.Response:
    fields = split(body)
    if "metadata" not in fields or bytes(fields["metadata"]) == b"null":
        return await _send(context, call, target, body, kind)
    metadata = patch_metadata(fields["metadata"])
    if "annotations" in metadata and value(metadata["annotations"]) is None:
        # Some annotations are Reclock's own (owners on the host): only those that are shown go.
        shown = (await _shown(context, call, target))["metadata"].get("annotations") or {}
        metadata["annotations"] = raw(dict.fromkeys(shown))
    if "ownerReferences" in metadata and target.cluster:
        return await _with_references(context, call, target, fields, metadata, kind)
    await _translate_version(target, metadata)
    _drop_cluster(metadata)
    fields["metadata"] = raw(metadata)
    return await _send(context, call, target, join(fields), kind)


async def _translate_version(target: Target, metadata: Raw) -> None:
    asked = value(metadata.get("resourceVersion"))
    native = await target.member_version(str(asked or ""))
    if native is None:
        metadata.pop("resourceVersion", None)
        return
    metadata["resourceVersion"] = raw(native.decode())
    metadata.setdefault("uid", raw(target.marker.uid))


def _drop_cluster(metadata: Raw) -> None:
    """Take out the annotation that only shown objects have."""
    annotations = value(metadata.get("annotations"))
    if isinstance(annotations, dict) and CLUSTER in annotations:
        del annotations[CLUSTER]
        metadata["annotations"] = raw(annotations)


async def _send(context: WriteContext, call: Call, target: Target, body: bytes, kind: str) -> web.Response:
    answer = await send(
        context, call, target.aggregated, target.client, "PATCH", target.path(call), body, kind
    )
    return await show_changed(context, call, target, answer)


async def _shown(context: WriteContext, call: Call, target: Target) -> dict[str, Any]:
    """What is patched (the object, or its subresource) as shown now, with its fleet version."""
    path = target.path(call)
    # As the caller: what a JSON patch tests can be told from its answer.
    headers = {"Accept": JSON, **context.identity(call, target.aggregated)}
    answer = await target.client.request("GET", path, headers=headers, timeout=10)
    shown = await context.reads.show(target.clock, target.cluster, answer.body, JSON, path=path)
    obj: dict[str, Any] = msgspec.json.decode(shown)
    return obj


async def _retry(
    context: WriteContext,
    call: Call,
    target: Target,
    named: str,
    attempt: Callable[[dict[str, Any]], Awaitable[web.Response]],
) -> web.Response:
    """Read, change and write until no other write came between; at once a conflict when the caller named a version."""
    for number in range(ATTEMPTS):
        obj = await _shown(context, call, target)
        shown = target.clock.shown(target.namespace, target.name)
        if shown is not None and shown.cluster == target.cluster:
            target.marker = shown
        try:
            return await attempt(obj)
        except StatusError as error:
            if error.code != 409 or named or number + 1 == ATTEMPTS:
                raise
    raise AssertionError("unreachable")


async def _json_patch(context: WriteContext, call: Call, target: Target, body: bytes) -> web.Response:
    operations = jsonpatches.decode(body)
    if not jsonpatches.needs_translation(operations):
        return await _send(context, call, target, body, JSON_PATCH)
    named = jsonpatches.named_version(operations)

    async def attempt(obj: dict[str, Any]) -> web.Response:
        changed = jsonpatches.apply(operations, obj)
        # A patch that takes the version away must not overwrite what came after the read either.
        version = str(changed["metadata"].get("resourceVersion") or obj["metadata"]["resourceVersion"])
        encoded = msgspec.json.encode(changed)
        envelope(encoded, target.aggregated.kind)  # 400 for what is no object any more
        return await put(context, call, target, encoded, version, target.marker.uid)

    return await _retry(context, call, target, named, attempt)


async def _with_references(
    context: WriteContext, call: Call, target: Target, fields: Raw, metadata: Raw, kind: str
) -> web.Response:
    """A merge patch of ownerReferences: the list is worked out here, over the references as shown.

    References that are hidden (the member's own) stay; a reference to a host object goes to the annotation.
    """
    named = str(value(metadata.get("resourceVersion")) or "")
    patch_list = value(metadata["ownerReferences"])

    async def attempt(obj: dict[str, Any]) -> web.Response:
        before = obj["metadata"].get("ownerReferences") or []
        after = (patch_list or []) if kind == MERGE else merge_references(before, patch_list or [])
        version = named or obj["metadata"]["resourceVersion"]
        changed = await _native_references(context, call, target, after, obj)
        patched = dict(metadata) | {"resourceVersion": raw(version)}
        await _translate_version(target, patched)
        _drop_cluster(patched)
        annotations = (value(patched.get("annotations")) or {}) | changed["annotations"]
        labels = (value(patched.get("labels")) or {}) | changed["labels"]
        patched["annotations"], patched["labels"] = raw(annotations), raw(labels)
        references = changed["ownerReferences"]
        patched["ownerReferences"] = raw(
            references if kind == MERGE else [{"$patch": "replace"}, *references]
        )
        patched.pop(ORDER, None)  # the list is whole, and the order names other uids
        whole = dict(fields) | {"metadata": raw(patched)}
        return await _send(context, call, target, join(whole), kind)

    return await _retry(context, call, target, named, attempt)


def merge_references(before: list[dict[str, Any]], patch_list: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Apply a strategic merge patch list (merge key `uid`) to ownerReferences."""
    if any(entry.get("$patch") == "replace" for entry in patch_list):
        return [entry for entry in patch_list if "$patch" not in entry]
    merged = {entry["uid"]: entry for entry in before}
    for entry in patch_list:
        uid = str(entry.get("uid", ""))
        if entry.get("$patch") == "delete":
            merged.pop(uid, None)
        else:
            merged[uid] = {**merged.get(uid, {}), **entry}
    return list(merged.values())


async def _native_references(
    context: WriteContext, call: Call, target: Target, shown: list[dict[str, Any]], obj: dict[str, Any]
) -> dict[str, Any]:
    """Split shown references into the member's list (hidden ones included) and the annotation for host owners."""
    body = msgspec.json.encode({"metadata": {"ownerReferences": shown}})
    inside = msgspec.json.decode(await take_in(context, target.cluster, target.namespace, body))["metadata"]
    path = target.aggregated.at(target.version).path(target.namespace or None, target.name)
    headers = {**METADATA, **context.identity(call, target.aggregated)}
    native = (await target.client.request("GET", path, headers=headers, timeout=10)).json()["metadata"]
    shown_before = {entry["uid"] for entry in obj["metadata"].get("ownerReferences") or []}
    outgoing = context.owners.object_uids(target.cluster)
    hidden = [
        entry
        for entry in native.get("ownerReferences") or []
        if outgoing.get(entry["uid"], entry["uid"]) not in shown_before
    ]
    references = hidden + (inside.get("ownerReferences") or [])
    if inside.get("annotations"):
        return {
            "ownerReferences": references,
            "annotations": inside["annotations"],
            "labels": inside["labels"],
        }
    gone = (
        {"reclock.dev/host-owners": None}
        if "reclock.dev/host-owners" in (native.get("annotations") or {})
        else {}
    )
    unlabel = {"reclock.dev/host-owned": None} if gone else {}
    return {"ownerReferences": references, "annotations": gone, "labels": unlabel}
