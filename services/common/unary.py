"""Unary gRPC calls over one HTTP/2 connection, for calls so frequent that grpc.aio's cost per call shows.

Only what such a call needs: requests and answers of one message each, flow control, TLS. Headers are sent
without a dynamic table and the peer is told to do the same, so equal header blocks mean the same.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Mapping
from typing import cast
from urllib.parse import unquote

import grpc
from hpack import Decoder, HPACKError

from services.common.http2 import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Frames,
    ProtocolError,
    frame,
    request_block,
)  # fmt: skip

CODES = {code.value[0]: code for code in grpc.StatusCode}
WINDOW = 2**31 - 1
"""What the peer may send before it hears of us: answers are as long as they are."""
CREDIT = 1024 * 1024
"""Bytes received after which the connection's window is filled up."""
KNOWN = 64
PONG = 0.05
"""Seconds that the answer to a ping may wait for a request to go with."""
CANCEL = 8
HEADER_TABLE_SIZE, ENABLE_PUSH, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 1, 2, 4, 5
DEFAULT_WINDOW = 65535


class UnaryError(Exception):
    """A call that failed: `code()` and `details()` as grpc.aio.AioRpcError has them."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        """gRPC's status code; UNAVAILABLE and DEADLINE_EXCEEDED do not tell whether the call was carried out."""
        return self._code

    def details(self) -> str:
        """What the server said."""
        return self._details


def unavailable(details: str) -> UnaryError:
    """The connection failed."""
    return UnaryError(grpc.StatusCode.UNAVAILABLE, details)


def late(timeout: float) -> UnaryError:
    """There was no answer in time."""
    return UnaryError(grpc.StatusCode.DEADLINE_EXCEEDED, f"no answer within {timeout:g} s")


class _Call:
    """One stream. `unsent` is what the windows did not let out yet."""

    __slots__ = ("answer", "done", "unsent", "window")

    def __init__(self, window: int, done: asyncio.Future[bytes]) -> None:
        self.window, self.done = window, done
        self.unsent = memoryview(b"")
        self.answer = bytearray()


class _Connection(asyncio.Protocol):
    """One HTTP/2 connection; used up when `usable` is False."""

    def __init__(self) -> None:
        self.usable = True
        self.heard = 0
        """Grows with everything that comes."""
        self._transport: asyncio.Transport | None = None
        self._frames = Frames()
        self._decoder = Decoder()
        self._decoder.max_allowed_table_size = self._decoder.header_table_size = 0
        self._known: dict[bytes, Mapping[str, str]] = {}
        self._calls: dict[int, _Call] = {}
        self._waiting: dict[int, _Call] = {}
        self._next = 1
        self._window = self._initial = DEFAULT_WINDOW
        self._max_frame = 16384
        self._received = 0
        self._owed = b""

    # Calls.

    async def call(self, headers: bytes, message: bytes, timeout: float) -> bytes:
        """Send one message, return the answer's. UnaryError; cancelling it cancels the call."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bytes] = loop.create_future()
        stream, self._next = self._next, self._next + 2
        if self._next >= 2**31 - 1:
            self.usable = False
        call = self._calls[stream] = _Call(self._initial, done)
        head = frame(HEADERS, END_HEADERS, stream, headers)
        size = len(message) + 5
        body = struct.pack(">BI", 0, len(message)) + message
        if size <= min(self._window, call.window, self._max_frame) and not self._waiting:
            self._window -= size
            self._write(head + frame(DATA, END_STREAM, stream, body))
        else:
            self._write(head)
            call.unsent = memoryview(body)
            self._waiting[stream] = call
            self._pump()
        timer = loop.call_later(timeout, self._late, call, timeout, self.heard)
        try:
            return await done
        finally:
            timer.cancel()
            self._waiting.pop(stream, None)
            if self._calls.pop(stream, None) is not None and self.usable:
                self._write(frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL)))

    def _late(self, call: _Call, timeout: float, heard: int) -> None:
        """No answer in time; after no sign of life either, the next call tries another connection."""
        if not call.done.done():
            call.done.set_exception(late(timeout))
        if self.heard == heard:
            self.close()

    def _pump(self) -> None:
        """Send what the windows allow."""
        for stream, call in list(self._waiting.items()):
            while call.unsent and (size := min(self._window, call.window, self._max_frame, len(call.unsent))) > 0:
                part, call.unsent = call.unsent[:size], call.unsent[size:]
                self._window -= size
                call.window -= size
                self._write(frame(DATA, 0 if call.unsent else END_STREAM, stream, bytes(part)))
            if not call.unsent:
                del self._waiting[stream]

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        if self._owed:
            data, self._owed = self._owed + data, b""
        self._transport.write(data)

    def _pong(self, payload: bytes) -> None:
        """Go's servers measure with a ping at every request: the answer goes with the next one, if that is soon."""
        if not self._owed:
            asyncio.get_running_loop().call_later(PONG, self._pay)
        self._owed += frame(PING, ACK, 0, payload)

    def _pay(self) -> None:
        if self._owed and self.usable:
            self._write(b"")

    def fail(self, error: UnaryError, above: int = 0) -> None:
        """No more calls here; those of streams above `above` have failed."""
        self.usable = False
        for stream, call in list(self._calls.items()):
            if stream > above:
                self._end(stream, call, error)
        if not self._calls:
            self.close()

    def close(self) -> None:
        """Close the connection."""
        self.usable = False
        if self._transport is not None:
            self._transport.close()

    def _end(self, stream: int, call: _Call, outcome: bytes | UnaryError) -> None:
        self._calls.pop(stream, None)
        self._waiting.pop(stream, None)
        if call.done.done():
            return
        if isinstance(outcome, bytes):
            call.done.set_result(outcome)
        else:
            call.done.set_exception(outcome)
        if not self.usable and not self._calls:
            self.close()

    # What asyncio tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        settings = ((HEADER_TABLE_SIZE, 0), (ENABLE_PUSH, 0), (INITIAL_WINDOW_SIZE, WINDOW))
        self._write(PREFACE + frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *one) for one in settings)))
        self._write(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", WINDOW - DEFAULT_WINDOW)))

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(unavailable(f"the connection was lost: {exc}" if exc else "the connection was closed"))

    def data_received(self, data: bytes) -> None:
        self.heard += len(data)
        try:
            for kind, flags, stream, payload in self._frames.feed(data):
                self._take(kind, flags, stream, payload)
        except (ProtocolError, HPACKError, struct.error) as error:
            self.fail(unavailable(f"not HTTP/2: {error or type(error).__name__}"))
            self.close()

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == DATA:
            self._data(flags, stream, payload)
        elif kind == HEADERS:
            self._headers(flags, stream, payload)
        elif kind == PING:
            if not flags & ACK:
                self._pong(payload)
        elif kind == WINDOW_UPDATE:
            self._more_window(stream, struct.unpack(">I", payload)[0] & WINDOW)
        elif kind == SETTINGS:
            if not flags & ACK:
                self._settings(payload)
        elif kind == RST_STREAM:
            if (call := self._calls.get(stream)) is not None:
                code = struct.unpack(">I", payload)[0]
                self._end(stream, call, unavailable(f"the server reset the call (HTTP/2 code {code})"))
        elif kind == GOAWAY:
            self.fail(unavailable("the server is going away"), above=struct.unpack_from(">I", payload)[0] & WINDOW)

    def _data(self, flags: int, stream: int, payload: bytes) -> None:
        self._received += len(payload)
        if self._received >= CREDIT:
            self._write(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._received)))
            self._received = 0
        call = self._calls.get(stream)
        if call is None:
            return
        call.answer += payload
        if flags & END_STREAM:
            self._end(stream, call, unavailable("an answer without a status"))

    def _headers(self, flags: int, stream: int, block: bytes) -> None:
        fields = self._known.get(block)
        if fields is None:
            decoded = self._decoder.decode(block)
            fields = {str(name): str(value) for name, value in decoded}
            if len(self._known) < KNOWN:
                self._known[block] = fields
        call = self._calls.get(stream)
        if call is not None and flags & END_STREAM:
            self._end(stream, call, outcome(fields, call.answer))

    def _more_window(self, stream: int, size: int) -> None:
        if not stream:
            self._window += size
        elif (call := self._calls.get(stream)) is not None:
            call.window += size
        self._pump()

    def _settings(self, payload: bytes) -> None:
        for name, value in struct.iter_unpack(">HI", payload):
            if name == INITIAL_WINDOW_SIZE:
                for call in self._calls.values():
                    call.window += value - self._initial
                self._initial = value
            elif name == MAX_FRAME_SIZE:
                self._max_frame = value
        self._write(frame(SETTINGS, ACK, 0, b""))
        self._pump()


def outcome(fields: Mapping[str, str], answer: bytes | bytearray) -> bytes | UnaryError:
    """What trailers and the bytes before them amount to: the message, or why there is none."""
    status = fields.get("grpc-status")
    if status is None:
        return unavailable(f"no gRPC server: it answered with HTTP {fields.get(':status', 'headers alone')}")
    if status != "0":
        code = CODES.get(int(status), grpc.StatusCode.UNKNOWN) if status.isdigit() else grpc.StatusCode.UNKNOWN
        return UnaryError(code, unquote(fields.get("grpc-message", "")))
    if len(answer) < 5 or answer[0] or int.from_bytes(answer[1:5], "big") != len(answer) - 5:
        return unavailable("the answer is not one message")
    return bytes(answer[5:])


class Unary:
    """Calls to one server (`host:port`), on a connection that is made when it is needed."""

    def __init__(self, address: str, tls: ssl.SSLContext | None = None) -> None:
        self._address, self._tls = address, tls
        self._connection: _Connection | None = None
        self._lock = asyncio.Lock()
        self._heads: dict[str, bytes] = {}

    async def call(self, path: str, message: bytes, timeout: float) -> bytes:
        """Call a method (`/package.Service/Method`) with a serialized message. UnaryError."""
        headers = self._heads.get(path)
        if headers is None:
            headers = self._heads[path] = request_block(path, self._address, secure=self._tls is not None)
        connection = self._connection
        if connection is None or not connection.usable:
            begin = asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(timeout):
                    connection = await self._connect()
            except TimeoutError:
                raise late(timeout) from None
            timeout -= asyncio.get_running_loop().time() - begin
        return await connection.call(headers, message, timeout)

    async def _connect(self) -> _Connection:
        async with self._lock:
            if self._connection is not None and self._connection.usable:
                return self._connection
            host, _, port = self._address.rpartition(":")
            host = host.strip("[]")
            try:
                _, self._connection = await asyncio.get_running_loop().create_connection(
                    _Connection, host, int(port), ssl=self._tls, server_hostname=host if self._tls else None
                )
            except (OSError, ValueError) as error:
                raise unavailable(f"{self._address}: {error}") from error
            return self._connection

    async def close(self) -> None:
        """Close the connection; calls under way fail."""
        if self._connection is not None:
            self._connection.fail(unavailable("closed"))
            self._connection.close()
