"""Raw bytes between a client's connection and a member's, both ways, with back-pressure and half-close."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from services.aggregator.front.server import FrontProtocol

HIGH_WATER = 256 * 1024
LOW_WATER = 64 * 1024
CHUNK = 64 * 1024


class ClientPipe:
    """The client's side of a connection taken over from HTTP. Reading is paused above HIGH_WATER bytes waiting."""

    def __init__(self, protocol: FrontProtocol, transport: asyncio.Transport) -> None:
        self._protocol = protocol
        self._transport = transport
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._eof = False
        self._paused = False
        self._wake: asyncio.Future[None] | None = None

    def feed(self, data: bytes) -> None:
        """Take bytes that came from the client."""
        self._chunks.append(data)
        self._size += len(data)
        if self._size > HIGH_WATER and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._notify()

    def feed_eof(self) -> bool:
        """The client has ended its direction; True keeps ours open."""
        self._eof = True
        self._notify()
        return self._transport.can_write_eof()

    def lost(self) -> None:
        """The connection is gone."""
        self._eof = True
        self._notify()

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def read(self) -> bytes:
        """Return what came; b"" at the end."""
        while not self._chunks:
            if self._eof:
                return b""
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        data = self._chunks.popleft()
        self._size -= len(data)
        if self._paused and self._size <= LOW_WATER and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()
        return data

    async def write(self, data: bytes) -> None:
        """Send; waits while the client does not read. ConnectionError when it has left."""
        if self._transport.is_closing():
            raise ConnectionResetError("the client has left")
        self._transport.write(data)
        await self._protocol._drain_helper()

    def write_eof(self) -> bool:
        """End our direction; False where only closing says that (TLS)."""
        if self._transport.is_closing() or not self._transport.can_write_eof():
            return False
        self._transport.write_eof()
        return True

    def close(self) -> None:
        """Close once everything written has been sent."""
        if not self._transport.is_closing():
            self._transport.close()


async def pipe(client: ClientPipe, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[int, int]:
    """Pass bytes until both directions have ended, or one has and cannot end alone (TLS).

    Returns the numbers of bytes that came from the client and that went to it. Closes neither side.
    """
    up = asyncio.create_task(_upward(client, writer), name="tunnel/up")
    down = asyncio.create_task(_downward(client, reader), name="tunnel/down")
    try:
        done, pending = await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        first = done.pop()
        alone = first.exception() is None and first.result()[1]
        if pending and alone:
            await asyncio.wait(pending)
    finally:
        for task in (up, down):
            task.cancel()
        outcomes = await asyncio.gather(up, down, return_exceptions=True)
    sizes = [outcome[0] if isinstance(outcome, tuple) else 0 for outcome in outcomes]
    for outcome in outcomes:
        # A side that broke off ends the tunnel, which is no error of ours; anything else is.
        if isinstance(outcome, Exception) and not isinstance(outcome, OSError | EOFError):
            raise outcome
    return sizes[0], sizes[1]


async def _upward(client: ClientPipe, writer: asyncio.StreamWriter) -> tuple[int, bool]:
    """Client to member; returns the bytes, and whether the other direction may go on alone."""
    size = 0
    while data := await client.read():
        writer.write(data)
        size += len(data)
        await writer.drain()
    transport = cast(asyncio.Transport, writer.transport)
    if transport.is_closing() or not transport.can_write_eof():
        return size, False
    writer.write_eof()
    return size, True


async def _downward(client: ClientPipe, reader: asyncio.StreamReader) -> tuple[int, bool]:
    size = 0
    while data := await reader.read(CHUNK):
        await client.write(data)
        size += len(data)
    return size, client.write_eof()
