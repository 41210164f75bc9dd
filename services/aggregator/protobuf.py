"""Bodies in Kubernetes' protobuf, as JSON: client-go's typed clients (since 0.33) write built-in types so.

Members are written to in JSON, because what is changed on the way (owners, annotations, versions) is changed
there. `protobuf.json` tells the fields of each message; a field that it does not know cannot be translated, and
dropping it would lose what the client asked for, so the body is refused then.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from services.common import errors

MAGIC = b"k8s\x00"
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_MAX_DEPTH = 64  # JSON schemas and the like nest; deeper is an attack

Field = tuple[str, str, str]
Message = dict[int, Field]
Wire = int | bytes


class Types(msgspec.Struct):
    """`protobuf.json`: "<group>/<version>/<kind>" -> message; message -> number -> [JSON name, kind, form].

    Kinds: s string, b bool, i integer, d double, y bytes; Q quantity, T time, M time with fractions, R raw JSON,
    I integer or string; else the name of a message. Forms: "" plain (zero is as absent), * optional, [] repeated,
    {} map by string, [[]] map of lists, ~ fields of the message around it.
    """

    roots: dict[str, str]
    types: dict[str, Message]


@cache
def types() -> Types:
    """The table, read once."""
    data = resources.files(__package__).joinpath("protobuf.json").read_bytes()
    return msgspec.json.decode(data, type=Types)


def has_type(group: str, version: str, kind: str) -> bool:
    """Is it one of Kubernetes' own types, which have protobuf?"""
    return f"{group}/{version}/{kind}" in types().roots


def to_json(body: bytes) -> bytes:
    """Translate an object's body. 400 when it is no protobuf of Kubernetes, 415 when its type is not known."""
    try:
        return msgspec.json.encode(_object(body))
    except (IndexError, struct.error, ValueError, OverflowError, RecursionError) as error:
        raise errors.bad_request(f"the body of the request is no valid protobuf object: {error}") from error


def _object(body: bytes) -> dict[str, Any]:
    if not body.startswith(MAGIC):
        raise ValueError("it does not begin as Kubernetes' protobuf does")
    envelope: dict[int, Wire] = {}
    for number, value in _fields(body[len(MAGIC) :]):
        if number in envelope:
            raise ValueError(f"field {number} of its envelope is there twice")
        envelope[number] = value
    if envelope.get(3):
        raise ValueError("its content is encoded")
    head = {number: _text(value) for number, value in _fields(_bytes(envelope.get(1, b"")))}
    api_version, kind = head.get(1, ""), head.get(2, "")
    group, _, version = api_version.rpartition("/")
    known = types()
    name = known.roots.get(kind) or known.roots.get(f"{group}/{version}/{kind}")
    if name is None:
        raise _untranslatable(f"{api_version} {kind}")
    return {"apiVersion": api_version, "kind": kind, **_message(_bytes(envelope.get(2, b"")), name, 0)}


def _untranslatable(what: str) -> errors.StatusError:
    return errors.unsupported_media_type(
        f"protobuf bodies with {what} cannot be translated here: send application/json instead"
    )


# The wire.


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
            raise ValueError("a number is too long")


def _fields(data: bytes) -> Iterator[tuple[int, Wire]]:
    """(field number, value) of one message, in order."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        wire = tag & 7
        if wire == VARINT:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if wire == BYTES:
            size, at = _varint(data, at)
        elif wire in (FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire} is not used by Kubernetes")
        if at + size > end:
            raise ValueError("it is cut off")
        yield tag >> 3, data[at : at + size]
        at += size


def _bytes(value: Wire) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where a message or text belongs")
    return value


def _integer(value: Wire) -> int:
    if not isinstance(value, int):
        raise ValueError("no number where one belongs")
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _text(value: Wire) -> str:
    return _bytes(value).decode()


# Values.


def _message(data: bytes, name: str, depth: int) -> dict[str, Any]:
    if depth > _MAX_DEPTH:
        raise ValueError("it is nested too deeply")
    fields = types().types[name]
    out: dict[str, Any] = {}
    single = set[int]()
    for number, value in _fields(data):
        field = fields.get(number)
        if field is None:
            raise _untranslatable(f"field {number} of {name}")
        key, kind, form = field
        if form in ("", "*", "~"):
            # Valid protobuf (its readers merge the two), and nobody writes it: what it means is not guessed.
            if number in single:
                raise ValueError(f"field {number} of {name} is there twice")
            single.add(number)
        if form == "[]":
            out.setdefault(key, []).extend(_elements(value, kind, depth))
        elif form in ("{}", "[[]]"):
            _entry(out.setdefault(key, {}), _bytes(value), kind, form, depth)
        else:
            made = _value(value, kind, depth)
            if form == "~":
                out.update(made)
            elif made is not None and (made or form == "*" or kind == "I"):
                out[key] = made
    return out


def _elements(value: Wire, kind: str, depth: int) -> list[Any]:
    if kind == "i" and isinstance(value, bytes):
        numbers, at = [], 0
        while at < len(value):
            number, at = _varint(value, at)
            numbers.append(_integer(number))
        return numbers
    return [_value(value, kind, depth)]


def _entry(into: dict[str, Any], data: bytes, kind: str, form: str, depth: int) -> None:
    entry = dict(_fields(data))
    key = _text(entry.get(1, b""))
    if form == "[[]]":
        into[key] = [
            _value(one, kind, depth) for number, one in _fields(_bytes(entry.get(2, b""))) if number == 1
        ]
    else:
        into[key] = _value(entry.get(2, b"" if kind not in ("i", "b") else 0), kind, depth)


def _value(value: Wire, kind: str, depth: int) -> Any:
    made = _SCALARS.get(kind)
    return made(value) if made is not None else _message(_bytes(value), kind, depth + 1)


def _double(value: Wire) -> float:
    return float(struct.unpack("<d", _bytes(value))[0])


def _quantity(value: Wire) -> str:
    return _text(dict(_fields(_bytes(value))).get(1, b"")) or "0"


def _moment(value: Wire) -> tuple[datetime, int] | None:
    parts = dict(_fields(_bytes(value)))
    if not parts:
        return None
    return datetime.fromtimestamp(_integer(parts.get(1, 0)), UTC), _integer(parts.get(2, 0))


def _time(value: Wire) -> str | None:
    moment = _moment(value)
    return moment[0].strftime("%Y-%m-%dT%H:%M:%SZ") if moment else None


def _micro_time(value: Wire) -> str | None:
    moment = _moment(value)
    return (
        moment[0].replace(microsecond=moment[1] // 1000).strftime("%Y-%m-%dT%H:%M:%S.%fZ") if moment else None
    )


def _raw_json(value: Wire) -> Any:
    raw = _bytes(dict(_fields(_bytes(value))).get(1, b""))
    if raw.startswith(MAGIC):
        return _object(raw)
    if not raw:
        return None
    msgspec.json.decode(raw, type=msgspec.Raw)
    return msgspec.Raw(raw)


def _integer_or_string(value: Wire) -> int | str:
    parts = dict(_fields(_bytes(value)))
    return _text(parts.get(3, b"")) if parts.get(1, 0) else _integer(parts.get(2, 0))


_SCALARS: dict[str, Callable[[Wire], Any]] = {
    "s": _text,
    "b": lambda value: bool(_integer(value)),
    "i": _integer,
    "d": _double,
    "y": lambda value: base64.b64encode(_bytes(value)).decode(),
    "Q": _quantity,
    "T": _time,
    "M": _micro_time,
    "R": _raw_json,
    "I": _integer_or_string,
}
