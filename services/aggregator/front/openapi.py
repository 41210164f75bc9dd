"""Merges types into OpenAPI documents: JSON of version 2 and 3, protobuf by concatenation.

Protobuf messages that are concatenated merge: repeated fields append, so that a document of a few definitions
behind the host's adds them (client-go reads nothing but protobuf of version 2).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from services.aggregator.front import own_types
from services.aggregator.front.discovery import Added

log = logging.getLogger(__name__)

Document = dict[str, Any]

_PATHS, _DEFINITIONS = 8, 9  # of Document, version 2
_NAMED_PATH, _NAMED_SCHEMA = 2, 1  # of Paths, of Definitions


def prefixes(added: Iterable[Added]) -> tuple[str, ...]:
    """Paths (with a slash at the end) under which added types of members live."""
    return tuple({f"/apis/{one.group}/{one.version}/" if one.group else f"/api/{one.version}/" for one in added})


def merge_v2(document: Document, members: Iterable[tuple[Document, tuple[str, ...]]]) -> Document:
    """Add our own type, and what members' documents have under their prefixes, to the host's document."""
    definitions = dict(document.get("definitions") or {})
    paths = dict(document.get("paths") or {})
    for other, under in members:
        for name, definition in (other.get("definitions") or {}).items():
            definitions.setdefault(name, definition)
        for path, item in (other.get("paths") or {}).items():
            if path.startswith(under):
                paths.setdefault(path, item)
    definitions[own_types.DEFINITION] = own_types.schema("#/definitions/")
    paths.update(own_types.paths(2))
    return {**document, "definitions": definitions, "paths": paths}


def merge_v3(document: Document, others: Iterable[Document], *, own: bool) -> Document:
    """Add members' documents of the same group and version, and our own type where it belongs."""
    components = dict(document.get("components") or {})
    schemas = dict(components.get("schemas") or {})
    paths = dict(document.get("paths") or {})
    for other in others:
        for name, definition in ((other.get("components") or {}).get("schemas") or {}).items():
            schemas.setdefault(name, definition)
        for path, item in (other.get("paths") or {}).items():
            paths.setdefault(path, item)
    if own:
        schemas[own_types.DEFINITION] = own_types.schema("#/components/schemas/")
        paths.update(own_types.paths(3))
    return {**document, "components": {**components, "schemas": schemas}, "paths": paths}


def merge_v3_index(
    index: Document, members: Iterable[tuple[Mapping[str, Any], Iterable[Added]]], own_hash: str
) -> Document:
    """Add the group versions of added types to `/openapi/v3`; a merged document's hash differs from the host's."""
    paths = {key: dict(value) for key, value in (index.get("paths") or {}).items()}
    ours = f"apis/{own_types.GROUP}/{own_types.VERSION}"
    for key in [ours] if ours in paths else []:
        paths[key]["serverRelativeURL"] = _url(key, _hash(paths[key]) + own_hash)
    for other, added in members:
        for one in added:
            key = f"apis/{one.group}/{one.version}" if one.group else f"api/{one.version}"
            theirs = (other.get("paths") or {}).get(key)
            if theirs is not None:
                before = _hash(paths[key]) if key in paths else ""
                paths[key] = {"serverRelativeURL": _url(key, before + _hash(theirs))}
    return {**index, "paths": paths}


def _hash(entry: Mapping[str, Any]) -> str:
    return str(entry.get("serverRelativeURL", "")).partition("hash=")[2]


def _url(key: str, value: str) -> str:
    return f"/openapi/v3/{key}?hash={value}"


# Protobuf: only what concatenation needs.


def merge_v2_protobuf(document: bytes, members: Iterable[tuple[bytes, tuple[str, ...]]]) -> bytes:
    """Append our own definition, and what members' documents have that the host's has not."""
    known = set(_named(document, _DEFINITIONS, _NAMED_SCHEMA))
    known_paths = set(_named(document, _PATHS, _NAMED_PATH))
    definitions = [_field(_NAMED_SCHEMA, _own_schema())]
    paths: list[bytes] = []
    for other, under in members:
        try:
            theirs, their_paths = _named(other, _DEFINITIONS, _NAMED_SCHEMA), _named(other, _PATHS, _NAMED_PATH)
        except ValueError as error:
            log.warning("a member's OpenAPI document is left out: %s", error)
            continue
        for name, raw in theirs.items():
            if name not in known:
                known.add(name)
                definitions.append(_field(_NAMED_SCHEMA, raw))
        for name, raw in their_paths.items():
            if name.startswith(under) and name not in known_paths:
                known_paths.add(name)
                paths.append(_field(_NAMED_PATH, raw))
    tail = _field(_DEFINITIONS, b"".join(definitions))
    if paths:
        tail += _field(_PATHS, b"".join(paths))
    return document + tail


def _own_schema() -> bytes:
    return _field(1, own_types.DEFINITION.encode()) + _field(2, _schema(own_types.schema("#/definitions/")))


def _schema(schema: Mapping[str, Any]) -> bytes:
    """A gnostic `Schema` of the few keywords that `own_types` uses."""
    out = b""
    if reference := schema.get("$ref"):
        out += _field(1, reference.encode())
    if description := schema.get("description"):
        out += _field(4, description.encode())
    if kind := schema.get("type"):
        out += _field(22, _field(1, kind.encode()))
    if properties := schema.get("properties"):
        named = (_field(1, name.encode()) + _field(2, _schema(value)) for name, value in properties.items())
        out += _field(25, b"".join(_field(1, one) for one in named))
    for gvk in schema.get("x-kubernetes-group-version-kind") or ():
        yaml = "".join(f"{'- ' if key == 'group' else '  '}{key}: {value}\n" for key, value in gvk.items())
        any_value = _field(2, yaml.encode())
        out += _field(31, _field(1, b"x-kubernetes-group-version-kind") + _field(2, any_value))
    return out


def _named(document: bytes, outer: int, inner: int) -> dict[str, bytes]:
    """The named entries (`Named…{name = 1}`) of one map of a document: name -> the entry's bytes."""
    found: dict[str, bytes] = {}
    for number, value in _fields(document):
        if number == outer:
            for part, raw in _fields(value):
                if part == inner:
                    name = next((text for key, text in _fields(raw) if key == 1), b"")
                    found[name.decode("utf-8", "replace")] = raw
    return found


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The length-delimited fields of a message; others are passed over. ValueError when it is cut off."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 2:
            size, at = _varint(data, at)
            if at + size > len(data):
                raise ValueError("message is cut off")
            yield tag >> 3, data[at : at + size]
            at += size
        elif kind == 0:
            _, at = _varint(data, at)
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise ValueError("unknown wire type")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("varint is cut off")


def _field(number: int, payload: bytes) -> bytes:
    return _encode_varint(number << 3 | 2) + _encode_varint(len(payload)) + payload


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
