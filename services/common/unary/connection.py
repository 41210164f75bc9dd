"""One HTTP/2 connection (RFC 9113) as a client of unary gRPC calls needs it. Owned by one loop; nothing here waits.

Each call is a stream of its own: headers and one message out, headers, messages and trailers back. What the server may
ask for meanwhile is answered: settings, pings, windows, its wish to go away.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import cast

from services.common.unary.headers import BadHeaders, Headers

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM = ACK = 1
END_HEADERS, PADDED, PRIORITY = 4, 8, 32
TABLE_SIZE, ENABLE_PUSH, INITIAL_WINDOW, MAX_FRAME = 1, 2, 4, 5
CANCEL = 8
SILENCE = 4.0
"""Seconds in which calls waited and nothing at all came, after which the connection counts as dead."""
PONG_AFTER = 0.1
"""Seconds after which a ping is answered. Go's gRPC pings after whatever it receives, while no answer is outstanding, to
measure how much it may take at once: answered at once, each call would cost both sides one more packet each way."""
FRAME = 16_384
"""Longest frame that is taken: what every peer keeps to unless it is told otherwise."""
DEFAULT_WINDOW = 65_535
MASK = (1 << 31) - 1
LAST_ID = MASK
WINDOW = MASK
"""Bytes that the server may send ahead of us: an answer is kept as it comes anyway, so windows would only hold it up."""

_HEAD = struct.Struct(">HBBBI")
_SETTING = struct.Struct(">HI")


class ConnectionBroken(Exception):
    """No answer will come. `unprocessed`: the server has not looked at the call, and will not."""

    def __init__(self, message: str, *, unprocessed: bool = False) -> None:
        super().__init__(message)
        self.unprocessed = unprocessed


class StreamReset(Exception):
    """The server broke the call off; `code` is HTTP/2's."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the server broke the call off (HTTP/2 error {code})")
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    size = len(payload)
    return _HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


class Exchange:
    """One call under way. `done` gives its headers (trailers' among them) and its messages' bytes."""

    __slots__ = ("body", "done", "headers", "id", "received", "unsent", "window")

    def __init__(
        self, number: int, done: asyncio.Future[tuple[dict[str, str], bytes]], window: int, received: int
    ) -> None:
        self.id, self.done, self.window, self.received = number, done, window, received
        self.headers: dict[str, str] = {}
        self.body: list[bytes] = []
        self.unsent = b""


class Connection(asyncio.Protocol):
    """Usable from `connection_made` on; `lost` is called once, when it is usable no more."""

    def __init__(self, lost: Callable[[Connection], None]) -> None:
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._headers = Headers()
        self._calls: dict[int, Exchange] = {}
        self._next_id = 1
        self._rest = b""
        self._block: tuple[int, int, list[bytes]] | None = None  # stream, flags, parts of headers that go on
        self._window = DEFAULT_WINDOW
        self._initial_window = DEFAULT_WINDOW
        self._max_frame = FRAME
        self._taken = 0
        self._received = 0  # frames
        self._mute = (-1, 0.0)  # so many had come when calls began to wait in vain, and since when they do
        self.closed = False

    # For callers.

    def start(self, headers: bytes, message: bytes) -> Exchange:
        """Send a call. Its future ends with ConnectionBroken or StreamReset where no answer comes."""
        assert self._transport is not None and not self.closed
        call = Exchange(self._next_id, self._loop.create_future(), self._initial_window, self._received)
        self._next_id += 2
        self._calls[call.id] = call
        head = frame(HEADERS, END_HEADERS, call.id, headers)
        size = len(message)
        if size <= min(self._max_frame, self._window, call.window):
            self._window -= size
            self._transport.write(head + frame(DATA, END_STREAM, call.id, message))
        else:
            call.unsent = message
            self._transport.write(head)
            self._send(call)
        if self._next_id > LAST_ID:
            self._retire()
        return call

    def late(self, call: Exchange, since: float) -> None:
        """Its time is over: TimeoutError. `since`: when it began."""
        _fail(call, TimeoutError())
        self.cancel(call)
        if call.received == self._received:
            if self._mute[0] != call.received:
                self._mute = call.received, since
            if self._loop.time() - self._mute[1] >= SILENCE:
                self.abort("no sign of life")  # half open, perhaps: others must not wait for it too

    def cancel(self, call: Exchange) -> None:
        """Its answer is not waited for any more."""
        if self._calls.pop(call.id, None) is not None and self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(RST_STREAM, 0, call.id, CANCEL.to_bytes(4, "big")))
        self._close_if_idle()

    def abort(self, reason: str) -> None:
        """End it at once; calls under way fail."""
        if self._transport is not None:
            self._transport.abort()
        self._end(ConnectionBroken(reason))

    def _retire(self) -> None:
        """No new calls; those under way end as they end."""
        if not self.closed:
            self.closed = True
            self._lost(self)
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self.closed and not self._calls and self._transport is not None:
            self._transport.close()

    def _end(self, error: ConnectionBroken) -> None:
        calls, self._calls = self._calls, {}
        self._retire()
        for call in calls.values():
            _fail(call, error)

    # For the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        wanted = ((TABLE_SIZE, 0), (ENABLE_PUSH, 0), (INITIAL_WINDOW, WINDOW))
        settings = b"".join(_SETTING.pack(name, value) for name, value in wanted)
        more = (WINDOW - DEFAULT_WINDOW).to_bytes(4, "big")
        self._transport.write(PREFACE + frame(SETTINGS, 0, 0, settings) + frame(WINDOW_UPDATE, 0, 0, more))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._end(ConnectionBroken(f"the connection broke: {exc}" if exc else "the connection was closed"))

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        at, end = 0, len(data)
        try:
            while end - at >= 9:
                high, low, kind, flags, stream = _HEAD.unpack_from(data, at)
                size = high << 8 | low
                if size > FRAME:
                    raise BadHeaders(f"a frame of {size} bytes")
                begin, at_next = at + 9, at + 9 + size
                if at_next > end:
                    break
                self._take(kind, flags, stream & MASK, data[begin:at_next])
                at = at_next
        except (BadHeaders, IndexError, struct.error) as error:
            self.abort(f"what came is no HTTP/2: {error}")
        self._rest = data[at:]

    # Frames.

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        self._received += 1
        if self._block is not None and (kind != CONTINUATION or stream != self._block[0]):
            raise BadHeaders("headers were interrupted")
        if kind == DATA:
            self._data(flags, stream, payload)
        elif kind == HEADERS:
            payload = _unpadded(flags, payload)
            self._block = (stream, flags, [payload[5:] if flags & PRIORITY else payload])
            if flags & END_HEADERS:
                self._headers_end()
        elif kind == CONTINUATION and self._block is not None:
            self._block[2].append(payload)
            if flags & END_HEADERS:
                self._headers_end()
        elif kind == WINDOW_UPDATE:
            self._widen(stream, int.from_bytes(payload, "big") & MASK)
        elif kind == SETTINGS and not flags & ACK:
            self._settings(payload)
        elif kind == PING and not flags & ACK:
            self._loop.call_later(PONG_AFTER, self._answer, frame(PING, ACK, 0, payload))
        elif kind == RST_STREAM:
            call = self._calls.pop(stream, None)
            if call is not None:
                _fail(call, StreamReset(int.from_bytes(payload, "big")))
            self._close_if_idle()
        elif kind == GOAWAY:
            self._go_away(int.from_bytes(payload[:4], "big") & MASK)

    def _answer(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _data(self, flags: int, stream: int, payload: bytes) -> None:
        self._taken += len(payload)
        if self._taken >= WINDOW // 2:
            more = self._taken.to_bytes(4, "big")
            self._answer(frame(WINDOW_UPDATE, 0, 0, more))
            self._taken = 0
        call = self._calls.get(stream)
        if call is None:
            return
        call.body.append(_unpadded(flags, payload))
        if flags & END_STREAM:
            self._finish(call)

    def _headers_end(self) -> None:
        assert self._block is not None
        stream, flags, parts = self._block
        self._block = None
        found = self._headers.decode(parts[0] if len(parts) == 1 else b"".join(parts))
        call = self._calls.get(stream)
        if call is None:
            return
        call.headers = {**call.headers, **found} if call.headers else found
        if flags & END_STREAM:
            self._finish(call)

    def _finish(self, call: Exchange) -> None:
        del self._calls[call.id]
        if not call.done.done():
            call.done.set_result((call.headers, b"".join(call.body)))
        self._close_if_idle()

    def _settings(self, payload: bytes) -> None:
        for name, value in _SETTING.iter_unpack(payload):
            if name == INITIAL_WINDOW:
                for call in self._calls.values():
                    call.window += value - self._initial_window
                self._initial_window = value
            elif name == MAX_FRAME:
                self._max_frame = value
        self._answer(frame(SETTINGS, ACK, 0))
        self._send_all()

    def _go_away(self, last: int) -> None:
        gone = [call for call in self._calls.values() if call.id > last]
        for call in gone:
            del self._calls[call.id]
            _fail(call, ConnectionBroken("the server goes away", unprocessed=True))
        self._retire()

    # Sending what is longer than the server's window.

    def _widen(self, stream: int, more: int) -> None:
        if not stream:
            self._window += more
            self._send_all()
        elif (call := self._calls.get(stream)) is not None:
            call.window += more
            if call.unsent:
                self._send(call)

    def _send_all(self) -> None:
        for call in [call for call in self._calls.values() if call.unsent]:
            self._send(call)

    def _send(self, call: Exchange) -> None:
        """As much as fits now; the message of a call is never empty, so its last frame ends the stream."""
        while call.unsent and (size := min(len(call.unsent), self._max_frame, self._window, call.window)) > 0:
            part, call.unsent = call.unsent[:size], call.unsent[size:]
            call.window -= size
            self._window -= size
            self._answer(frame(DATA, 0 if call.unsent else END_STREAM, call.id, part))


def _fail(call: Exchange, error: Exception) -> None:
    if not call.done.done():
        call.done.set_exception(error)
        call.done.exception()  # who called may be gone


def _unpadded(flags: int, payload: bytes) -> bytes:
    if not flags & PADDED:
        return payload
    padding = payload[0]
    if padding >= len(payload):
        raise BadHeaders("more padding than frame")
    return payload[1 : len(payload) - padding]
