"""Unary calls to one server: the connection is made when it is first needed, and again when it broke.

Errors are those that grpc.aio would raise (AioRpcError), so callers need not know whose call it was.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from typing import Any, Protocol
from urllib.parse import unquote

import grpc
from grpc.aio import Metadata
from hpack import NeverIndexedHeaderTuple

from services.common.config import split_address
from services.common.unary.connection import Connection, ConnectionBroken, Header, StreamReset

CONNECT_TIMEOUT = 5.0
CALLS_KEPT = 64
"""Lists of headers that are kept: one for each method, and again for each token."""
_FIXED = ((b"te", b"trailers"), (b"content-type", b"application/grpc"), (b"user-agent", b"reclock"))
_REFUSED_STREAM = 7
_CODES: dict[bytes, grpc.StatusCode] = {b"%d" % code.value[0]: code for code in grpc.StatusCode}
Code = grpc.StatusCode


class Message(Protocol):
    """A protobuf message, or what stands for one."""

    def SerializeToString(self) -> bytes: ...


class Answer(Protocol):
    """A type of protobuf messages."""

    @staticmethod
    def FromString(data: bytes) -> Any: ...


def rpc_error(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    """What grpc.aio raises."""
    return grpc.aio.AioRpcError(code, Metadata(), Metadata(), details=details)


class UnaryChannel:
    """One server, `host:port`; with `tls` it must offer HTTP/2. Safe for any number of calls at once in one loop."""

    def __init__(self, address: str, tls: ssl.SSLContext | None = None) -> None:
        self.address = address
        self._tls = tls
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        self._heads: dict[tuple[str, tuple[tuple[str, str], ...]], list[Header]] = {}

    def method(self, path: str, answer: type[Answer]) -> Method:
        """A callable for `/package.Service/Method`."""
        return Method(self, path, answer)

    async def close(self) -> None:
        """Break all calls; another call would connect again."""
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait({self._connecting})
        if self._connection is not None:
            self._connection.abort("closed")

    async def call(
        self, path: str, message: bytes, timeout: float | None, metadata: Iterable[tuple[str, str]] = ()
    ) -> bytes:
        """Send one message and return the one that is answered. AioRpcError."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        deadline = None if timeout is None else begin + timeout
        connection = self._connection
        if connection is None:
            connection = await self._connected(deadline)
        framed = b"\x00" + len(message).to_bytes(4, "big") + message
        call = connection.start(self._head(path, tuple(metadata)), framed)
        timer = None if deadline is None else loop.call_at(deadline, connection.late, call, begin)
        try:
            headers, body = await call.done
        except asyncio.CancelledError:
            connection.cancel(call)
            raise
        except TimeoutError:
            raise rpc_error(Code.DEADLINE_EXCEEDED, "Deadline Exceeded") from None
        except ConnectionBroken as error:
            what = f"failed to connect: {error}" if error.unprocessed else str(error)
            raise rpc_error(Code.UNAVAILABLE, what) from error
        except StreamReset as error:
            raise rpc_error(Code.UNAVAILABLE if error.code == _REFUSED_STREAM else Code.INTERNAL, str(error)) from error
        finally:
            if timer is not None:
                timer.cancel()
        return _message(headers, body)

    def _head(self, path: str, metadata: tuple[tuple[str, str], ...]) -> list[Header]:
        key = (path, metadata)
        found = self._heads.get(key)
        if found is None:
            if len(self._heads) >= CALLS_KEPT:
                self._heads.clear()  # tokens of before
            found = self._heads[key] = [
                (b":method", b"POST"), (b":scheme", b"https" if self._tls is not None else b"http"),
                (b":path", path.encode()), (b":authority", self.address.encode()), *_FIXED,
                # They may be secret: no proxy may keep them in a table.
                *(NeverIndexedHeaderTuple(name.encode(), value.encode()) for name, value in metadata),
            ]  # fmt: skip
        return found

    # Connecting.

    async def _connected(self, deadline: float | None) -> Connection:
        """The connection, made by one task for all who wait."""
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.get_running_loop().create_task(self._connect(), name=f"connect {self.address}")
            self._connecting.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            async with asyncio.timeout_at(deadline):
                connection = await asyncio.shield(self._connecting)
            if connection.closed:
                raise ConnectionError("it closed the connection at once")
        except TimeoutError:
            raise rpc_error(Code.UNAVAILABLE, f"failed to connect to {self.address} in time") from None
        except OSError as error:
            raise rpc_error(Code.UNAVAILABLE, f"failed to connect to {self.address}: {error}") from error
        return connection

    async def _connect(self) -> Connection:
        host, port = split_address(self.address)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_TIMEOUT):
            transport, connection = await loop.create_connection(
                lambda: Connection(self._gone), host, port, ssl=self._tls,
                server_hostname=host if self._tls is not None else None,
            )  # fmt: skip
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            transport.abort()
            raise ConnectionError("it does not speak HTTP/2")
        if not connection.closed:
            self._connection = connection
        return connection

    def _gone(self, connection: Connection) -> None:
        if self._connection is connection:
            self._connection = None


class Method:
    """One method of a service, called as grpc.aio's are."""

    __slots__ = ("_answer", "_channel", "_path")

    def __init__(self, channel: UnaryChannel, path: str, answer: type[Answer]) -> None:
        self._channel, self._path, self._answer = channel, path, answer

    async def __call__(
        self, request: Message, *, timeout: float | None = None, metadata: Iterable[tuple[str, str]] = ()
    ) -> Any:
        return self._answer.FromString(
            await self._channel.call(self._path, request.SerializeToString(), timeout, metadata)
        )


def _message(headers: dict[bytes, bytes], body: bytes) -> bytes:
    """The one message of an answer whose status is OK."""
    status = headers.get(b"grpc-status")
    if status is None:
        http = headers.get(b":status", b"").decode(errors="replace")
        code = Code.UNAVAILABLE if http in ("429", "502", "503", "504") else Code.UNKNOWN
        raise rpc_error(code, f"the answer is none of gRPC (HTTP status {http})")
    if status != b"0":
        raise rpc_error(_CODES.get(status, Code.UNKNOWN), unquote(headers.get(b"grpc-message", b"")))
    if len(body) < 5 or body[0] or len(body) - 5 != int.from_bytes(body[1:5], "big"):
        raise rpc_error(Code.INTERNAL, "the answer is not one message as it was asked for")
    return body[5:]
