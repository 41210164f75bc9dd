"""HTTP/2 frames (RFC 9113) as far as a client of unary gRPC calls needs them. Pure: bytes in, bytes out."""

from __future__ import annotations

from collections.abc import Iterator

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, PRIORITY = 0x4, 0x8, 0x20
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_FRAME = 16384
MAX_BLOCK = 256 * 1024

Frame = tuple[int, int, int, bytes]
"""Type, flags, stream, payload."""


class ProtocolError(Exception):
    """The peer does not speak HTTP/2."""


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One frame."""
    return b"%b%c%c%b%b" % (len(payload).to_bytes(3, "big"), kind, flags, stream.to_bytes(4, "big"), payload)


class Frames:
    """Cuts what comes into frames: without padding, a header block whole in one."""

    def __init__(self) -> None:
        self._rest = b""
        self._block: Frame | None = None

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that `data` completes; ProtocolError."""
        data = self._rest + data if self._rest else data
        at, end = 0, len(data)
        while end - at >= 9:
            size = int.from_bytes(data[at : at + 3], "big")
            if size > MAX_FRAME:
                raise ProtocolError(f"a frame of {size} bytes")
            if end - at < 9 + size:
                break
            kind, flags = data[at + 3], data[at + 4]
            stream = int.from_bytes(data[at + 5 : at + 9], "big") & 0x7FFFFFFF
            payload = data[at + 9 : at + 9 + size]
            at += 9 + size
            whole = self._whole(kind, flags, stream, payload)
            if whole is not None:
                yield whole
        self._rest = data[at:]

    def _whole(self, kind: int, flags: int, stream: int, payload: bytes) -> Frame | None:
        if self._block is not None:
            if kind != CONTINUATION or stream != self._block[2]:
                raise ProtocolError("a header block is not continued")
            kind, first, _, head = self._block
            flags, payload = first | flags, head + payload
        elif kind == CONTINUATION:
            raise ProtocolError("a continuation of nothing")
        elif kind in (DATA, HEADERS):
            payload = _bare(kind, flags, payload)
        if kind != HEADERS:
            return kind, flags, stream, payload
        if len(payload) > MAX_BLOCK:
            raise ProtocolError(f"a header block of {len(payload)} bytes")
        self._block = None if flags & END_HEADERS else (kind, flags, stream, payload)
        return (kind, flags, stream, payload) if self._block is None else None


def _bare(kind: int, flags: int, payload: bytes) -> bytes:
    """Without padding and priority."""
    start, end = 0, len(payload)
    if flags & PADDED:
        if not payload:
            raise ProtocolError("padding without a length")
        start, end = 1, end - payload[0]
    if kind == HEADERS and flags & PRIORITY:
        start += 5
    if start > end:
        raise ProtocolError("more padding than payload")
    return payload[start:end]


def _number(value: int, bits: int, first: int = 0) -> bytes:
    """An integer of RFC 7541, 5.1, in the low `bits` of a byte that begins with `first`."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([first | value])
    out = [first | most]
    value -= most
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _text(text: str) -> bytes:
    data = text.encode()
    return _number(len(data), 7) + data


def request_block(path: str, authority: str, *, secure: bool) -> bytes:
    """The header block of a gRPC request: nothing in it refers to a dynamic table."""
    method_post, scheme = b"\x83", b"\x87" if secure else b"\x86"
    named = [(4, path), (1, authority), (31, "application/grpc"), (58, "reclock")]  # :path, :authority, …, user-agent
    fields = b"".join(_number(index, 4) + _text(value) for index, value in named)
    return method_post + scheme + fields + b"\x00" + _text("te") + _text("trailers")
