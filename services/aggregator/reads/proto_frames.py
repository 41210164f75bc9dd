"""Watch events and list envelopes in protobuf."""

from __future__ import annotations

from collections.abc import Mapping

from _fastpath import proto
from _fastpath.marker import Marker
from _fastpath.splice import CLUSTER_ANNOTATION
from services.aggregator.reads.codec import type_meta
from services.aggregator.reads.frames import INITIAL_END
from services.aggregator.reads.negotiate import Negotiated
from services.common.errors import StatusError
from services.common.kube import status_pb


def object_meta(
    *, version: int, name: str = "", namespace: str = "", uid: str = "", labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> bytes:  # fmt: skip
    """A message with nothing but metadata (meta/v1 ObjectMeta, field 1 of every type)."""
    texts = ((1, name), (3, namespace), (5, uid), (6, str(version)))
    out = b"".join(proto.field(number, text.encode()) for number, text in texts if text)
    return proto.field(1, out + proto.strings_field(11, labels or {}) + proto.strings_field(12, annotations or {}))


def list_meta(version: int, token: str, remaining: int | None) -> bytes:
    """A list's field 1 (meta/v1 ListMeta), as kube-apiserver writes it."""
    out = proto.field(1, b"") + proto.field(2, b"%d" % version) + proto.field(3, token.encode())
    if token and remaining is not None:
        out += proto.number_field(4, remaining)
    return proto.field(1, out)


def error_event(error: StatusError) -> bytes:
    """The frame that ends a watch midway."""
    return proto.event(b"ERROR", type_meta("v1", "Status"), status_pb.message(error.to_dict()))


class ProtoFrames:
    """Makes one watch's frames; the counterpart of `frames.Frames`. Never of Tables."""

    layout = None
    told = True

    def __init__(self, form: Negotiated, kind: str, api_version: str) -> None:
        if form.kind == "partial":
            kind, api_version = "PartialObjectMetadata", f"meta.k8s.io/{form.version}"
        self._type_meta = type_meta(api_version, kind)

    def object(self, type_: str, version: int, body: bytes) -> bytes:
        """The frame of an object."""
        return proto.event(type_.encode(), self._type_meta, body)

    def bookmark(self, version: int, *, initial_end: bool = False) -> bytes:
        """BOOKMARK: all up to `version` was sent."""
        notes = {INITIAL_END: "true"} if initial_end else None
        return self.object("BOOKMARK", version, object_meta(version=version, annotations=notes))

    def gone(self, marker: Marker, version: int, labels: Mapping[str, str]) -> bytes:
        """DELETED with what the marker tells: the object's bytes cannot be had any more."""
        body = object_meta(
            version=version, name=marker.name, namespace=marker.namespace, uid=marker.uid, labels=labels,
            annotations={CLUSTER_ANNOTATION: marker.cluster},
        )  # fmt: skip
        return self.object("DELETED", version, body)

    @staticmethod
    def with_labels(body: bytes, labels: Mapping[str, str]) -> bytes:
        """The object with other labels."""
        return proto.put_labels(body, labels)
