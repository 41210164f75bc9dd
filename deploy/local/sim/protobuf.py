"""Bodies in Kubernetes' protobuf, which client-go's typed clients write built-in types in: decoded to JSON objects.

Answers are JSON always, which every client takes. The fields come from the table of Reclock's own front; a field or type
that it does not know is refused rather than dropped.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from deploy.local.sim.errors import bad_request, unsupported_media_type

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_TABLE = Path(__file__).resolve().parents[3] / "services" / "aggregator" / "protobuf.json"
_Wire = int | bytes


class _Table(msgspec.Struct):
    """`roots`: "<group>/<version>/<kind>" -> message; `types`: message -> number -> (JSON name, kind, form)."""

    roots: dict[str, str]
    types: dict[str, dict[int, tuple[str, str, str]]]


@cache
def _table() -> _Table:
    return msgspec.json.decode(_TABLE.read_bytes(), type=_Table)


def decode(body: bytes) -> dict[str, Any]:
    """The object, with apiVersion and kind. Raises Refused: 400 for what is no such body, 415 for unknown types."""
    try:
        return _object(body)
    except (IndexError, struct.error, ValueError, TypeError, OverflowError) as error:
        raise bad_request(f"the body is no protobuf of Kubernetes: {error}") from None


def _object(body: bytes) -> dict[str, Any]:
    if not body.startswith(_MAGIC):
        raise ValueError("it begins otherwise")
    envelope = dict(_fields(body[len(_MAGIC) :]))
    head = {number: bytes(value).decode() for number, value in _fields(_bytes(envelope[1]))}
    version, kind = head.get(1, ""), head.get(2, "")
    known, group = _table(), version.rpartition("/")
    name = known.roots.get(kind) or known.roots.get(f"{group[0]}/{group[2]}/{kind}")
    if name is None:
        raise unsupported_media_type(("application/json", "application/yaml"))
    return {"apiVersion": version, "kind": kind, **_message(_bytes(envelope.get(2, b"")), name)}


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        wire = tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if at + size > len(data):
            raise ValueError("it is cut off")
        yield tag >> 3, data[at : at + size]
        at += size


def _bytes(value: _Wire) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where a message belongs")
    return value


def _message(data: bytes, name: str) -> dict[str, Any]:
    fields = _table().types[name]
    found: dict[str, Any] = {}
    for number, value in _fields(data):
        if number not in fields:
            raise unsupported_media_type(("application/json", "application/yaml"))
        key, kind, form = fields[number]
        if form == "[]":
            found.setdefault(key, []).extend(_elements(value, kind))
        elif form in ("{}", "[[]]"):
            entry = dict(_fields(_bytes(value)))
            default: _Wire = 0 if kind in ("i", "b") else b""
            inner = entry.get(2, default)
            into = found.setdefault(key, {})
            into[_bytes(entry.get(1, b"")).decode()] = (
                [_value(one, kind) for _, one in _fields(inner)] if form == "[[]]" else _value(inner, kind)
            )
        else:
            made = _value(value, kind)
            if form == "~":
                found.update(made)
            elif made is not None and (made or form == "*" or kind == "I"):
                found[key] = made
    return found


def _elements(value: _Wire, kind: str) -> list[Any]:
    if kind != "i" or isinstance(value, int):
        return [_value(value, kind)]
    numbers, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        numbers.append(_integer(number))
    return numbers


def _value(value: _Wire, kind: str) -> Any:
    scalar = _SCALARS.get(kind)
    return scalar(value) if scalar is not None else _message(_bytes(value), kind)


def _integer(value: _Wire) -> int:
    number = int(value) & (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number


def _time(value: _Wire, fraction: bool = False) -> str | None:
    parts = dict(_fields(_bytes(value)))
    if not parts:
        return None
    moment = datetime.fromtimestamp(_integer(parts.get(1, 0)), UTC)
    text = moment.strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{parts.get(2, 0) // 1000:06d}Z" if fraction else f"{text}Z"


def _int_or_string(value: _Wire) -> int | str:
    parts = dict(_fields(_bytes(value)))
    return _bytes(parts.get(3, b"")).decode() if parts.get(1) else _integer(parts.get(2, 0))


def _raw(value: _Wire) -> Any:
    raw = dict(_fields(_bytes(value))).get(1, b"")
    if raw.startswith(_MAGIC):
        return _object(raw)
    return msgspec.json.decode(raw) if raw else None


_SCALARS: dict[str, Callable[[Any], Any]] = {
    "s": lambda value: _bytes(value).decode(),
    "b": bool,
    "i": _integer,
    "d": lambda value: struct.unpack("<d", value)[0],
    "y": lambda value: base64.b64encode(_bytes(value)).decode(),
    "Q": lambda value: _bytes(dict(_fields(_bytes(value))).get(1, b"")).decode() or "0",
    "T": _time,
    "M": lambda value: _time(value, True),
    "I": _int_or_string,
    "R": _raw,
}
