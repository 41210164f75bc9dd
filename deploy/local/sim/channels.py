"""The WebSocket channels of exec and attach: one byte of channel number, then data.

Source: k8s.io/apimachinery pkg/util/remotecommand (v4.channel.k8s.io, v5.channel.k8s.io with its close signal).
"""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
from aiohttp import WSMsgType, web

STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")


class Channels:
    """One session's channels. `closed` is set when the client is gone."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self._socket = socket
        self.closed = asyncio.Event()
        self.resized: tuple[int, int] | None = None
        """(columns, rows) of the client's terminal, once it said so."""
        self._input: asyncio.Queue[bytes | None] = asyncio.Queue(64)
        self._reader = asyncio.create_task(self._read(), name="exec input")

    async def input(self) -> bytes | None:
        """The next piece of the client's input; None when it ended."""
        return await self._input.get()

    async def send(self, channel: int, data: bytes) -> None:
        """Raises ConnectionError when the client is gone."""
        await self._socket.send_bytes(bytes([channel]) + data)

    async def finish(self, code: int, message: str = "") -> None:
        """Tells the client how the command ended."""
        status: dict[str, object] = {"metadata": {}, "status": "Success"}
        if code or message:
            status = {
                "metadata": {},
                "status": "Failure",
                "message": message or f"command terminated with non-zero exit code: exit status {code}",
                "reason": "InternalError" if message else "NonZeroExitCode",
                "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]} if not message else {},
            }
        with contextlib.suppress(ConnectionError):
            await self.send(ERROR, msgspec.json.encode(status))

    async def close(self) -> None:
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        with contextlib.suppress(ConnectionError):
            await self._socket.close()

    async def _read(self) -> None:
        try:
            async for message in self._socket:
                if message.type is not WSMsgType.BINARY or not message.data:
                    continue
                channel, data = message.data[0], message.data[1:]
                if channel == STDIN:
                    if data:
                        await self._input.put(data)
                elif channel == CLOSE and data[:1] == bytes([STDIN]):
                    await self._input.put(None)
                elif channel == RESIZE:
                    self._resize(data)
        finally:
            self.closed.set()
            with contextlib.suppress(asyncio.QueueFull):
                self._input.put_nowait(None)

    def _resize(self, data: bytes) -> None:
        with contextlib.suppress(msgspec.DecodeError, KeyError, TypeError):
            size = msgspec.json.decode(data)
            self.resized = (int(size["Width"]), int(size["Height"]))
