"""JSON and protobuf behind one face: what is cut, found and put together is the same, the bytes are not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from _fastpath import proto, splice
from _fastpath.splice import SpliceError
from services.common.kube.client import MAX_OBJECT

AnyMeta = splice.Meta | proto.Meta


class Scanner(Protocol):
    """Cuts a list's objects out of its chunks."""

    @property
    def head(self) -> bytes | None: ...
    @property
    def list_version(self) -> str: ...
    @property
    def continue_token(self) -> str: ...
    @property
    def remaining(self) -> int | None: ...
    def feed(self, chunk: bytes) -> list[bytes]: ...
    def finish(self) -> bytes: ...


class Splitter(Protocol):
    """Cuts a watch's frames out of its chunks."""

    @property
    def pending(self) -> int: ...
    def feed(self, chunk: bytes) -> list[bytes]: ...


@dataclass(frozen=True, slots=True)
class Codec:
    """One encoding's functions."""

    scan: Callable[[bytes], AnyMeta]  # an element of a list
    scan_answer: Callable[[bytes], AnyMeta]  # an answer that is one object
    scan_frame: Callable[[bytes], tuple[str, AnyMeta]]
    scanner: Callable[[bool], Scanner]  # True: of a Table's rows
    splitter: Callable[[], Splitter]
    rewrap: Callable[[bytes, bytes], bytes]  # (an answer, what its object became) -> the answer
    without_version: Callable[[bytes], bytes]  # of an object, without what stands around it


class _Names(msgspec.Struct, rename="camel"):
    kind: str = ""
    api_version: str = ""


def type_meta(api_version: str, kind: str) -> bytes:
    """A TypeMeta's message."""
    return proto.field(1, api_version.encode()) + proto.field(2, kind.encode())


def _rewrap_proto(answer: bytes, body: bytes) -> bytes:
    api_version, kind, _, _ = proto.unwrap(answer)
    return proto.envelope(type_meta(api_version, kind), body)


def _without_version(body: bytes) -> bytes:
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    metadata = msgspec.json.decode(fields["metadata"], type=dict[str, msgspec.Raw])
    metadata.pop("resourceVersion", None)
    fields["metadata"] = msgspec.Raw(msgspec.json.encode(metadata))
    return msgspec.json.encode(fields)


JSON = Codec(
    scan=splice.scan,
    scan_answer=lambda body: splice.scan(body, 0, True),
    scan_frame=splice.scan_frame,
    scanner=lambda table: splice.ListScanner(b"rows" if table else b"items", MAX_OBJECT),
    splitter=lambda: splice.FrameSplitter(MAX_OBJECT),
    rewrap=lambda answer, body: body,
    without_version=_without_version,
)
PROTOBUF = Codec(
    scan=proto.scan,
    scan_answer=proto.scan_answer,
    scan_frame=proto.scan_frame,
    scanner=lambda table: proto.ListScanner(b"items", MAX_OBJECT),
    splitter=lambda: proto.FrameSplitter(MAX_OBJECT),
    rewrap=_rewrap_proto,
    without_version=proto.without_version,
)


def codec_of(body: bytes) -> Codec:
    """Of a whole answer: protobuf says so itself."""
    return PROTOBUF if body.startswith(proto.MAGIC) else JSON


def splice_object(
    buf: bytes, meta: AnyMeta, version: bytes, cluster: bytes | None, owners: Mapping[str, str | None] | None,
    end: int, object_uids: Mapping[str, str] | None, references: Sequence[int],
) -> bytes:  # fmt: skip
    """The object as clients see it; `references` number the fields of an event in protobuf that `object_uids` maps."""
    if isinstance(meta, proto.Meta):
        return proto.splice(buf, meta, version, cluster, owners, end, object_uids, references)
    return splice.splice(buf, meta, version, cluster, owners, end, object_uids)


def list_names(scanner: Scanner) -> tuple[str, str]:
    """kind and apiVersion of a list as far as it was read; "" where they did not come first."""
    if isinstance(scanner, proto.ListScanner):
        return scanner.kind, scanner.api_version
    head = (scanner.head or b"").rstrip().rstrip(b"[").rstrip()
    if not head.endswith(b":"):
        return "", ""
    found = msgspec.json.decode(head + b"[]}", type=_Names)
    return found.kind, found.api_version


def names_of(body: bytes) -> tuple[str, str]:
    """apiVersion and kind of an answer; SpliceError when it is none."""
    if body.startswith(proto.MAGIC):
        return proto.unwrap(body)[:2]
    try:
        found = msgspec.json.decode(body, type=_Names)
    except msgspec.DecodeError as error:
        raise SpliceError("not JSON") from error
    return found.api_version, found.kind


def items_of(body: bytes) -> list[tuple[bytes, AnyMeta]]:
    """The objects of a whole list; SpliceError when it is none."""
    codec = codec_of(body)
    scanner = codec.scanner(False)
    found = scanner.feed(body)
    scanner.finish()
    return [(raw, codec.scan(raw)) for raw in found]


