"""HTTP between clients and a replica's front without sockets: the real server protocol on a pipe in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

from aiohttp import web

BUFFER = 16 * 1024
"""Bytes on the way to a client that does not read; then the server has to wait."""


class Broken(Exception):
    """No answer, or half of one."""


class Refused(Exception):
    """A Status: `code`."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message[:300]}")
        self.code = code


class _Pipe(asyncio.Transport):
    """The server's side of a connection; `data` is what came and was not read yet."""

    def __init__(self, protocol: Any) -> None:
        super().__init__()
        self.data = bytearray()
        self.ended = False
        self.most = 0
        self._protocol = protocol
        self._paused = False
        self._wake = asyncio.Event()

    def write(self, data: Any) -> None:
        if self.ended:
            return
        self.data += data
        self.most = max(self.most, len(self.data))
        if len(self.data) > BUFFER and not self._paused:
            self._paused = True
            self._protocol.pause_writing()
        self._wake.set()

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def take(self) -> bytes:
        data = bytes(self.data)
        self.data.clear()
        if self._paused and not self.ended:
            self._paused = False
            self._protocol.resume_writing()
        return data

    async def more(self) -> bytes:
        """What came; b"" at the end."""
        while not self.data and not self.ended:
            self._wake.clear()
            await self._wake.wait()
        return self.take()

    def close(self) -> None:
        if not self.ended:
            self.ended = True
            self._wake.set()
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self.ended

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def get_write_buffer_size(self) -> int:
        return len(self.data)

    def get_protocol(self) -> Any:
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def pause_reading(self) -> None:
        """Requests are small."""

    def resume_reading(self) -> None:
        """As above."""

    def is_reading(self) -> bool:
        return True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """They are BUFFER."""


class Connection:
    """One request on a connection of its own. `close` at any time."""

    def __init__(self, server: web.Server, method: str, path: str, query: dict[str, str], body: Any, kind: str) -> None:
        protocol = server()
        self.pipe = _Pipe(protocol)
        protocol.connection_made(self.pipe)
        data = b"" if body is None else json.dumps(body).encode()
        target = f"{path}?{urlencode(query)}" if query else path
        head = (
            f"{method} {target} HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\nConnection: close\r\n"
            f"Content-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        protocol.data_received(head.encode() + data)
        self.status = 0
        self.headers: dict[str, str] = {}
        self._rest = b""

    def close(self) -> None:
        self.pipe.close()

    async def _fill(self) -> None:
        data = await self.pipe.more()
        if not data:
            raise Broken("the connection ended")
        self._rest += data

    async def _until(self, mark: bytes) -> bytes:
        while mark not in self._rest:
            await self._fill()
        found, _, self._rest = self._rest.partition(mark)
        return found

    async def _exactly(self, count: int) -> bytes:
        while len(self._rest) < count:
            await self._fill()
        found, self._rest = self._rest[:count], self._rest[count:]
        return found

    async def head(self) -> None:
        first, *lines = (await self._until(b"\r\n\r\n")).decode().split("\r\n")
        self.status = int(first.split()[1])
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body; Broken when it ends too early."""
        if self.headers.get("transfer-encoding") != "chunked":
            yield await self._exactly(int(self.headers.get("content-length", 0)))
            return
        while size := int(await self._until(b"\r\n"), 16):
            yield await self._exactly(size)
            await self._exactly(2)


async def ask(
    server: web.Server, method: str, path: str, query: dict[str, str] | None = None, body: Any = None,
    *, kind: str = "application/json", timeout: float = 60,
) -> tuple[dict[str, Any], dict[str, str]]:  # fmt: skip
    """One call: (object, headers). Refused, Broken."""
    connection = Connection(server, method, path, query or {}, body, kind)
    try:
        async with asyncio.timeout(timeout):
            await connection.head()
            text = b"".join([chunk async for chunk in connection.chunks()])
    except TimeoutError:
        raise Broken("no answer in time") from None
    finally:
        connection.close()
    if connection.status == 500:
        raise Refused(500, text.decode(errors="replace"))
    found = json.loads(text)
    if connection.status >= 400:
        raise Refused(connection.status, str(found.get("message", "")))
    return found, connection.headers
