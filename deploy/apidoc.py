"""Describes the gRPC APIs as OpenAPI 3.1, from their descriptors: `python -m deploy.apidoc` writes `docs/api.json`.

A path is an RPC's HTTP/2 path, schemas are the messages in protobuf's JSON form (as grpcurl takes and prints them).
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as _Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto as _File

from deploy.stubs import ROOT, protoc

TARGET = ROOT / "docs" / "api.json"
_SCALARS: dict[int, dict[str, str]] = {
    _Field.TYPE_DOUBLE: {"type": "number", "format": "double"},
    _Field.TYPE_FLOAT: {"type": "number", "format": "float"},
    _Field.TYPE_INT64: {"type": "string", "format": "int64"},
    _Field.TYPE_UINT64: {"type": "string", "format": "uint64"},
    _Field.TYPE_INT32: {"type": "integer", "format": "int32"},
    _Field.TYPE_UINT32: {"type": "integer", "format": "uint32"},
    _Field.TYPE_BOOL: {"type": "boolean"},
    _Field.TYPE_STRING: {"type": "string"},
    _Field.TYPE_BYTES: {"type": "string", "format": "byte"},
}
_WELL_KNOWN = {
    ".google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    ".google.protobuf.Duration": {"type": "string", "pattern": r"^-?[0-9]+(\.[0-9]+)?s$"},
}


def descriptors() -> descriptor_pb2.FileDescriptorSet:
    """All contracts, with their comments."""
    with tempfile.NamedTemporaryFile(suffix=".binpb") as out:
        protoc(f"--descriptor_set_out={out.name}", "--include_source_info")
        return descriptor_pb2.FileDescriptorSet.FromString(Path(out.name).read_bytes())


def describe(files: descriptor_pb2.FileDescriptorSet) -> dict[str, Any]:
    """The whole document."""
    paths: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    for file in files.file:
        comments = _comments(file)
        for place, service in enumerate(file.service):
            for number, method in enumerate(service.method):
                path = f"/{file.package}.{service.name}/{method.name}"
                paths[path] = {"post": _operation(service.name, method, comments.get((6, place, 2, number), ""))}
        schemas.update(_messages(file, comments))
    info = {
        "title": "Reclock's gRPC APIs",
        "version": "v1",
        "description": "HTTP/2 with gRPC framing (content-type application/grpc); the schemas are protobuf's JSON form.",
    }
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


def _comments(file: _File) -> dict[tuple[int, ...], str]:
    return {tuple(one.path): " ".join(one.leading_comments.split()) for one in file.source_code_info.location}


def _operation(service: str, method: descriptor_pb2.MethodDescriptorProto, comment: str) -> dict[str, Any]:
    return {
        "operationId": f"{service}_{method.name}",
        "tags": [service],
        "description": comment,
        "x-client-streaming": method.client_streaming,
        "x-server-streaming": method.server_streaming,
        "requestBody": {"content": {"application/grpc": {"schema": _reference(method.input_type)}}},
        "responses": {
            "200": {"description": method.output_type.rpartition(".")[2],
                    "content": {"application/grpc": {"schema": _reference(method.output_type)}}}
        },
    }  # fmt: skip


def _messages(file: _File, comments: dict[tuple[int, ...], str]) -> Iterator[tuple[str, Any]]:
    for place, enum in enumerate(file.enum_type):
        yield f"{file.package}.{enum.name}", _enum(enum, comments.get((5, place), ""))
    for place, message in enumerate(file.message_type):
        yield from _message(f"{file.package}.{message.name}", message, (4, place), comments)


def _message(
    name: str, message: descriptor_pb2.DescriptorProto, path: tuple[int, ...], comments: dict[tuple[int, ...], str]
) -> Iterator[tuple[str, Any]]:
    entries = {f".{name}.{one.name}": one for one in message.nested_type if one.options.map_entry}
    properties = {}
    for place, field in enumerate(message.field):
        schema = _schema(field, entries)
        comment = comments.get((*path, 2, place), "")
        properties[field.json_name] = {**schema, "description": comment} if comment else schema
    yield name, {"type": "object", "description": comments.get(path, ""), "properties": properties}
    for place, nested in enumerate(message.nested_type):
        if not nested.options.map_entry:
            yield from _message(f"{name}.{nested.name}", nested, (*path, 3, place), comments)
    for place, enum in enumerate(message.enum_type):
        yield f"{name}.{enum.name}", _enum(enum, comments.get((*path, 4, place), ""))


def _schema(field: _Field, entries: dict[str, descriptor_pb2.DescriptorProto]) -> dict[str, Any]:
    if field.type_name in entries:
        return {"type": "object", "additionalProperties": _schema(entries[field.type_name].field[1], {})}
    one = _SCALARS.get(field.type) or _reference(field.type_name)
    return {"type": "array", "items": one} if field.label == _Field.LABEL_REPEATED else dict(one)


def _reference(type_name: str) -> dict[str, Any]:
    return _WELL_KNOWN.get(type_name) or {"$ref": f"#/components/schemas/{type_name.lstrip('.')}"}


def _enum(enum: descriptor_pb2.EnumDescriptorProto, comment: str) -> dict[str, Any]:
    return {"type": "string", "description": comment, "enum": [value.name for value in enum.value]}


def text() -> str:
    """What the file is to hold."""
    return json.dumps(describe(descriptors()), indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    """Write it."""
    TARGET.write_text(text())
    print(f"wrote {TARGET.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
