"""Plain-Python twin of `_fastpath.proto`: objects as dicts, written in protobuf by the table of field numbers."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import splice_model

from _fastpath.splice import HOST_OWNERS_ANNOTATION, MEMBER_OWNERS_ANNOTATION
from services.aggregator.protobuf import MAGIC, to_json, types


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def record(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def wire(number: int, value: Any, kind: str) -> bytes:
    """One field."""
    if kind in ("b", "i"):
        return varint(number << 3) + varint(int(value))
    if kind == "d":
        return varint(number << 3 | 1) + struct.pack("<d", value)
    return record(number, payload(value, kind))


def payload(value: Any, kind: str) -> bytes:
    if kind == "s":
        return str(value).encode("utf-8", "surrogatepass")
    if kind == "y":
        return base64.b64decode(value)
    if kind == "Q":
        return record(1, str(value).encode())
    if kind in ("T", "M"):
        moment = datetime.fromisoformat(value)
        return varint(8) + varint(int(moment.astimezone(UTC).timestamp())) + varint(16) + varint(moment.microsecond * 1000)
    if kind == "R":
        return record(1, json.dumps(value, separators=(",", ":")).encode())
    if kind == "I":
        text = isinstance(value, str)
        return varint(8) + varint(text) + varint(16) + varint(0 if text else value) + record(3, value.encode() if text else b"")
    return message(value, types().types[kind])


def message(obj: Mapping[str, Any], fields: Mapping[int, Any]) -> bytes:
    """A message, in the order of its field numbers."""
    out = b""
    for number in sorted(fields):
        key, kind, form = fields[number]
        if form == "~":
            inner = message(obj, types().types[kind])
            out += record(number, inner) if inner else b""
        elif obj.get(key) is None:
            # Kubernetes writes plain strings that are empty, too.
            out += record(number, b"") if kind == "s" and form == "" else b""
        elif form == "[]":
            out += b"".join(wire(number, one, kind) for one in obj[key])
        elif form == "{}":
            out += b"".join(record(number, wire(1, k, "s") + wire(2, v, kind)) for k, v in sorted(obj[key].items()))
        elif form == "":
            out += wire(number, obj[key], kind)
        else:
            out += wire(number, obj[key], kind)
    return out


def name_of(api_version: str, kind: str) -> str:
    group, _, version = api_version.rpartition("/")
    return types().roots[f"{group}/{version}/{kind}"]


def body_of(obj: Mapping[str, Any], api_version: str = "v1", kind: str = "Pod") -> bytes:
    """An object's message."""
    if kind == "PartialObjectMetadata":
        meta = types().types[name_of("v1", "Pod")][1][1]
        return record(1, message(obj["metadata"], types().types[meta]))
    return message(obj, types().types[name_of(api_version, kind)])


def envelope(api_version: str, kind: str, body: bytes) -> bytes:
    head = record(1, record(1, api_version.encode()) + record(2, kind.encode()))
    return MAGIC + head + record(2, body) + record(3, b"") + record(4, b"")


def event(type_: str, api_version: str, kind: str, body: bytes) -> bytes:
    inner = record(1, type_.encode()) + record(2, record(1, envelope(api_version, kind, body)))
    return struct.pack(">I", len(inner)) + inner


def list_of(api_version: str, kind: str, metadata: Mapping[str, Any], items: list[bytes]) -> bytes:
    head = record(1, b"") + record(2, str(metadata.get("resourceVersion", "")).encode())
    head += record(3, str(metadata.get("continue", "")).encode())
    if "remainingItemCount" in metadata:
        head += varint(4 << 3) + varint(metadata["remainingItemCount"])
    return envelope(api_version, kind, record(1, head) + b"".join(record(2, item) for item in items))


def decoded(body: bytes, api_version: str = "v1", kind: str = "Pod") -> dict[str, Any]:
    """A message as its JSON."""
    obj: dict[str, Any] = json.loads(to_json(envelope(api_version, kind, body)))
    return obj


def splice(
    obj: dict[str, Any], version: bytes, cluster: bytes | None, owners: Mapping[str, str | None] | None = None,
    object_uids: Mapping[str, str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """What the JSON twin makes of the same object."""
    raw = json.dumps(obj).encode()
    out: dict[str, Any] = json.loads(
        splice_model.splice(raw, splice_model.scan(raw), version, cluster, owners, -1, object_uids)
    )
    return out


def plain(obj: dict[str, Any]) -> dict[str, Any]:
    """References that an annotation keeps as text decoded: the order of their fields may differ. Absent is empty, and
    what a reference has no field for is not there."""
    notes = obj["metadata"].get("annotations") or {}
    for key in (HOST_OWNERS_ANNOTATION, MEMBER_OWNERS_ANNOTATION):
        refs = splice_model.references(notes, key)
        if refs is not None:
            notes[key] = [_reference(ref) for ref in refs]
    refs = obj["metadata"].get("ownerReferences")
    if refs:
        obj["metadata"]["ownerReferences"] = [_reference(ref) for ref in refs]
    return {k: v for k, v in obj.items() if k not in ("kind", "apiVersion")}


def _reference(ref: dict[str, Any]) -> dict[str, Any]:
    known = ("apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion")
    return {key: ref[key] for key in known if ref.get(key, "") != ""}
