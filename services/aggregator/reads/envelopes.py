"""What stands around the items of a list, in JSON and in protobuf."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from _fastpath import proto
from services.aggregator.reads.codec import type_meta
from services.aggregator.reads.member_list import MemberList
from services.aggregator.reads.negotiate import Negotiated
from services.aggregator.reads.proto_frames import list_meta
from services.aggregator.reads.respond import pretty
from services.aggregator.reads.walk import Walk

if TYPE_CHECKING:
    from services.aggregator.reads.lister import Request


class Envelope:
    """The list's own JSON around its items, in Kubernetes' order of fields."""

    def __init__(self, request: Request, walk: Walk) -> None:
        self._version = walk.plan.version
        self._indent = request.form.pretty
        self._drop_objects = request.options.include == "None" and request.form.kind == "table"
        self._layout = walk.layout
        self._field = b"rows" if walk.layout is not None else b"items"
        self.kind, self.api_version = names_of(request, [source.current for source in walk.sources])

    def begin(self, token: str, remaining: int | None, size: int = 0) -> bytes:
        """Up to the array's bracket."""
        metadata: dict[str, object] = {"resourceVersion": str(self._version)}
        if token:
            metadata["continue"] = token
        if token and remaining is not None:
            metadata["remainingItemCount"] = remaining
        head: dict[str, object] = {"kind": self.kind, "apiVersion": self.api_version, "metadata": metadata}
        if self._layout is not None:
            head["columnDefinitions"] = msgspec.Raw(self._layout.definitions)
        text = msgspec.json.encode(head)
        if self._indent:
            return pretty(text)[:-2] + b',\n  "' + self._field + b'": ['
        return text[:-1] + b',"' + self._field + b'":['

    def items(self, bodies: list[bytes], first: bool) -> list[bytes]:
        """The objects with commas between (and before, unless `first`)."""
        if self._drop_objects:
            bodies = [without_object(body) for body in bodies]
        if self._indent:
            bodies = [b"\n    " + pretty(body).replace(b"\n", b"\n    ") for body in bodies]
        text = b",".join(bodies)
        return [text] if first else [b",", text]

    def end(self, empty: bool) -> bytes:
        """Behind the last item."""
        if self._indent:
            return b"]\n}" if empty else b"\n  ]\n}"
        return b"]}\n"


class ProtoEnvelope:
    """The list's message and its envelope around the items."""

    def __init__(self, request: Request, walk: Walk) -> None:
        self._version = walk.plan.version
        kind, api_version = names_of(request, [source.current for source in walk.sources])
        self._type_meta = type_meta(api_version, kind)

    def begin(self, token: str, remaining: int | None, size: int = 0) -> bytes:
        """Up to the items, which take `size` bytes."""
        metadata = list_meta(self._version, token, remaining)
        return proto.envelope_head(self._type_meta, len(metadata) + size) + metadata

    @staticmethod
    def items(bodies: list[bytes], first: bool) -> list[bytes]:
        """The objects, each behind its tag and length."""
        parts: list[bytes] = []
        for body in bodies:
            parts += (proto.field_head(2, len(body)), body)
        return parts

    @staticmethod
    def end(empty: bool) -> bytes:
        """Behind the last item."""
        return proto.ENVELOPE_TAIL


def without_object(row: bytes) -> bytes:
    """A Table's row whose object is not wanted."""
    fields = msgspec.json.decode(row, type=dict[str, msgspec.Raw])
    return msgspec.json.encode({**fields, "object": None})


def names_of(request: Request, lists: list[MemberList]) -> tuple[str, str]:
    """kind and apiVersion of the answer: as a member says, else as the type's are by convention."""
    if request.form.kind == "table":
        return "Table", f"meta.k8s.io/{request.form.version}"
    for source in lists:
        kind, api_version = source.names
        if kind and api_version:
            return kind, api_version
    if request.form.kind == "partial":
        return "PartialObjectMetadataList", f"meta.k8s.io/{request.form.version}"
    aggregated = request.aggregated
    return f"{aggregated.kind}List", aggregated.at(request.call.info.version).group_version


def whole_list(form: Negotiated, kind: str, api_version: str, version: int, items: list[bytes]) -> bytes:
    """A list whose objects are all there (no Table)."""
    if form.protobuf:
        body = list_meta(version, "", None) + b"".join(proto.field(2, item) for item in items)
        return proto.envelope(type_meta(api_version, kind), body)
    head = {"kind": kind, "apiVersion": api_version, "metadata": {"resourceVersion": str(version)}}
    return msgspec.json.encode(head)[:-1] + b',"items":[' + b",".join(items) + b"]}"
