"""Reads a `metav1.Status` in Kubernetes' protobuf encoding, in which members answer who asked for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("varint too long")


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (field number, value) of varint and length-delimited fields; fixed-size ones are passed over."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
        elif kind == 2:
            length, at = _varint(data, at)
            if at + length > len(data):
                raise ValueError("field is cut off")
            yield tag >> 3, data[at : at + length]
            at += length
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise ValueError("unknown wire type")


def _text(value: int | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _bytes(value: int | bytes | None) -> bytes:
    return value if isinstance(value, bytes) else b""


def _cause(data: bytes) -> dict[str, str]:
    names = {1: "reason", 2: "message", 3: "field"}
    return {names[number]: _text(value) for number, value in _fields(data) if number in names and value}


def _details(data: bytes) -> dict[str, Any]:
    names = {1: "name", 2: "group", 3: "kind", 6: "uid"}
    details: dict[str, Any] = {}
    for number, value in _fields(data):
        if number in names and value:
            details[names[number]] = _text(value)
        elif number == 4 and isinstance(value, bytes):
            details.setdefault("causes", []).append(_cause(value))
        elif number == 5 and value:
            details["retryAfterSeconds"] = value
    return details


def decode(body: bytes) -> dict[str, Any] | None:
    """Return the Status in `body` (`k8s\\0` and a `runtime.Unknown`), or None where it holds another kind."""
    try:
        unknown = dict(_fields(body[4:]))
        type_meta = dict(_fields(_bytes(unknown.get(1))))
        if _text(type_meta.get(2, b"")) != "Status":
            return None
        status: dict[str, Any] = {"kind": "Status", "apiVersion": "v1"}
        names = {2: "status", 3: "message", 4: "reason"}
        for number, value in _fields(_bytes(unknown.get(2))):
            if number in names:
                status[names[number]] = _text(value)
            elif number == 5 and isinstance(value, bytes):
                status["details"] = _details(value)
            elif number == 6:
                status["code"] = value
    except (ValueError, IndexError, TypeError):
        return None
    return status


# Writing.


def _number(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, value: str | bytes) -> bytes:
    payload = value if isinstance(value, bytes) else value.encode("utf-8", "replace")
    return _number(number << 3 | 2) + _number(len(payload)) + payload


def _details_message(details: dict[str, Any]) -> bytes:
    out = b"".join(_field(n, str(details.get(key, ""))) for n, key in ((1, "name"), (2, "group"), (3, "kind")))
    for cause in details.get("causes") or []:
        texts = ((1, "reason"), (2, "message"), (3, "field"))
        out += _field(4, b"".join(_field(n, str(cause.get(key, ""))) for n, key in texts))
    out += _number(5 << 3) + _number(max(int(details.get("retryAfterSeconds") or 0), 0))
    return out + _field(6, str(details.get("uid", "")))


def message(status: dict[str, Any]) -> bytes:
    """A Status (as JSON has it) as its message, without an envelope."""
    metadata = status.get("metadata") or {}
    texts = ((1, ""), (2, str(metadata.get("resourceVersion", ""))), (3, str(metadata.get("continue", ""))))
    out = _field(1, b"".join(_field(n, text) for n, text in texts))
    for number, key in ((2, "status"), (3, "message"), (4, "reason")):
        out += _field(number, str(status.get(key, "")))
    if status.get("details"):
        out += _field(5, _details_message(status["details"]))
    return out + _number(6 << 3) + _number(max(int(status.get("code") or 0), 0))


def encode(status: dict[str, Any]) -> bytes:
    """A Status as an answer: `k8s\\0` and a `runtime.Unknown`."""
    head = _field(1, _field(1, "v1") + _field(2, "Status"))
    return b"k8s\x00" + head + _field(2, message(status)) + _field(3, "") + _field(4, "")
