"""Header blocks (HPACK, RFC 7541) of calls and answers, without any state between two of them.

We tell the server that its table of headers has no room (`SETTINGS_HEADER_TABLE_SIZE` 0), and use none ourselves. So
equal headers are equal bytes, and each block is understood by itself: most are found in a dict.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpack import Decoder
from hpack.exceptions import HPACKError

KEEP = 256
"""Different header blocks whose meaning is kept; errors of servers have texts of many kinds."""
_POST, _HTTP, _HTTPS = b"\x83", b"\x86", b"\x87"  # whole fields of the static table
_AUTHORITY, _PATH = b"\x01", b"\x04"  # names of the static table, values follow
_FIXED = (("te", "trailers"), ("content-type", "application/grpc"), ("user-agent", "reclock"))


class BadHeaders(Exception):
    """What came is no header block."""


def _text(value: bytes) -> bytes:
    size = len(value)
    if size < 127:
        return bytes((size,)) + value
    out = bytearray((127,))
    size -= 127
    while size >= 128:
        out.append(size & 127 | 128)
        size >>= 7
    out.append(size)
    return bytes(out) + value


def encode(path: str, authority: str, metadata: Iterable[tuple[str, str]], *, tls: bool) -> bytes:
    """The header block of a call. `metadata` may be secret: no proxy may keep it in a table."""
    parts = [_POST, _HTTPS if tls else _HTTP, _PATH, _text(path.encode()), _AUTHORITY, _text(authority.encode())]
    for name, value in _FIXED:
        parts += (b"\x00", _text(name.encode()), _text(value.encode()))
    for name, value in metadata:
        parts += (b"\x10", _text(name.encode()), _text(value.encode()))
    return b"".join(parts)


class Headers:
    """Understands the blocks of one connection."""

    def __init__(self) -> None:
        self._known: dict[bytes, dict[str, str]] = {}

    def decode(self, block: bytes) -> dict[str, str]:
        """Names and values; of a name that comes twice the last one. BadHeaders."""
        found = self._known.get(block)
        if found is None:
            decoder = Decoder()
            decoder.header_table_size = decoder.max_allowed_table_size = 0
            try:
                found = {str(name): str(value) for name, value in decoder.decode(block)}
            except HPACKError as error:
                raise BadHeaders(f"headers that are none: {error}") from error
            if len(self._known) >= KEEP:
                self._known.clear()
            self._known[block] = found
        return found
