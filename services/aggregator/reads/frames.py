"""Watch events as bytes: objects, Tables of one row, bookmarks, errors, and objects of which only a marker is left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from _fastpath.marker import Marker
from _fastpath.splice import CLUSTER_ANNOTATION
from services.aggregator.reads.negotiate import Negotiated
from services.aggregator.reads.table import Layout
from services.common.errors import StatusError

INITIAL_END = "k8s.io/initial-events-end"
_Members = dict[str, msgspec.Raw]


def event(type_: str, obj: bytes) -> bytes:
    """One frame."""
    return b'{"type":"' + type_.encode() + b'","object":' + obj + b"}\n"


def error_event(error: StatusError) -> bytes:
    """The frame that ends a watch midway."""
    status = {"kind": "Status", "apiVersion": "v1", **error.to_dict()}
    return event("ERROR", msgspec.json.encode(status))


def with_type(body: bytes, kind: str, api_version: str) -> bytes:
    """An element of a typed list, which lacks kind and apiVersion, with both; others as they are."""
    if not body.startswith(b'{"metadata"'):
        return body
    head = msgspec.json.encode({"kind": kind, "apiVersion": api_version})
    return head[:-1] + b"," + body[1:]


class Frames:
    """Makes one watch's frames. A Table's columns go out once, with the first event of the watch."""

    def __init__(self, form: Negotiated, kind: str, api_version: str, layout: Layout | None, include: str) -> None:
        self._kind, self._api_version = kind, api_version
        if form.kind == "partial":
            self._kind, self._api_version = "PartialObjectMetadata", f"meta.k8s.io/{form.version}"
        self.layout, self._include = layout, include
        self._meta_version = form.version or "v1"
        self.told = layout is None  # columns were sent
        self.indent = form.pretty

    def object(self, type_: str, version: int, body: bytes) -> bytes:
        """The frame of an object, or with a layout of a row."""
        if self.layout is None:
            return event(type_, with_type(body, self._kind, self._api_version))
        return event(type_, self._table(version, body))

    def _table(self, version: int, row: bytes) -> bytes:
        assert self.layout is not None
        columns = b"null" if self.told else self.layout.definitions
        self.told = True
        return b"".join((
            b'{"kind":"Table","apiVersion":"meta.k8s.io/', self._meta_version.encode(),
            b'","metadata":{"resourceVersion":"', b"%d" % version, b'"},"columnDefinitions":', columns,
            b',"rows":[', row, b"]}",
        ))  # fmt: skip

    def bookmark(self, version: int, *, initial_end: bool = False) -> bytes:
        """BOOKMARK: all up to `version` was sent."""
        metadata: dict[str, Any] = {"resourceVersion": str(version), "creationTimestamp": None}
        if initial_end:
            metadata["annotations"] = {INITIAL_END: "true"}
        return self._bare("BOOKMARK", version, metadata)

    def gone(self, marker: Marker, version: int, labels: Mapping[str, str]) -> bytes:
        """DELETED with what the marker tells: the object's bytes cannot be had any more."""
        metadata: dict[str, Any] = {"name": marker.name}
        if marker.namespace:
            metadata["namespace"] = marker.namespace
        metadata |= {"uid": marker.uid, "resourceVersion": str(version), "creationTimestamp": None}
        if labels:
            metadata["labels"] = dict(labels)
        metadata["annotations"] = {CLUSTER_ANNOTATION: marker.cluster}
        return self._bare("DELETED", version, metadata)

    def _bare(self, type_: str, version: int, metadata: dict[str, Any]) -> bytes:
        if self.layout is None:
            names = {"kind": self._kind, "apiVersion": self._api_version}
            return event(type_, msgspec.json.encode({**names, "metadata": metadata}))
        if self._include == "Object":
            names = {"kind": self._kind, "apiVersion": self._api_version}
        else:
            names = {"kind": "PartialObjectMetadata", "apiVersion": f"meta.k8s.io/{self._meta_version}"}
        obj = msgspec.json.encode({**names, "metadata": metadata})
        return event(type_, self._table(version, self.layout.blank_row(obj)))

    @staticmethod
    def with_labels(body: bytes, labels: Mapping[str, str]) -> bytes:
        """The object with other labels; all else keeps its bytes."""
        fields = msgspec.json.decode(body, type=_Members)
        metadata = msgspec.json.decode(fields["metadata"], type=_Members)
        metadata.pop("labels", None)
        if labels:
            metadata["labels"] = msgspec.Raw(msgspec.json.encode(dict(labels)))
        fields["metadata"] = msgspec.Raw(msgspec.json.encode(metadata))
        return msgspec.json.encode(fields)
