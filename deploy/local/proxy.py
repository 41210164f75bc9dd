"""A TCP proxy that misbehaves on request: one Link between one client and one server of a fleet.

| fault | what the two ends see |
| --- | --- |
| `cut` | connections break (RST), new ones are refused |
| `reset` | connections break once; new ones work |
| `hang` | connections stay and new ones are accepted; not one byte passes |
| `half-open` | what the client sends arrives, no answer comes back |
| `slow` | each byte arrives `latency` seconds later, at most `bandwidth` bytes a second each way |
| `heal` | all is well again; what a `hang` held back arrives |
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass

from deploy.local.ask import FAULTS
from deploy.local.commands import LOOPBACK

CHUNK = 64 * 1024
HELD = 64
"""Chunks on their way each way: a sender that is faster waits."""


@dataclass(frozen=True, slots=True)
class Speed:
    """`latency` in seconds; `bandwidth` in bytes a second, 0: as fast as it goes."""

    latency: float = 0.0
    bandwidth: int = 0


class Link:
    """Listens on `port` of the loopback address and connects to `target`; starts without a fault."""

    def __init__(self, name: str, port: int, target: int) -> None:
        self.name, self.port, self.target = name, port, target
        self.fault = "heal"
        self.speed = Speed()
        self.passed = 0
        """Bytes in both directions."""
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._open = {"up": asyncio.Event(), "down": asyncio.Event()}
        self._gates()

    async def start(self) -> None:
        """Listen. OSError where the port is taken."""
        self._server = await asyncio.start_server(self._accepted, LOOPBACK, self.port)

    async def stop(self) -> None:
        """End all connections, and listen no more."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self._break()

    def set(self, fault: str, *, latency: float = 0.2, bandwidth: int = 0) -> None:
        """Begin a fault, or `heal`; the figures are those of `slow`. ValueError for an unknown one."""
        if fault not in FAULTS:
            raise ValueError(f"unknown fault {fault!r}; allowed: {', '.join(FAULTS)}")
        self.speed = Speed(latency, bandwidth) if fault == "slow" else Speed()
        self.fault = "heal" if fault == "reset" else fault
        self._gates()
        if fault in ("cut", "reset"):
            self._break()

    @property
    def listening(self) -> bool:
        """Was it started?"""
        return self._server is not None

    @property
    def connections(self) -> int:
        """Open now."""
        return len(self._connections)

    async def gate(self, way: str) -> None:
        """Wait until bytes may pass `up` (to the server) or `down`."""
        await self._open[way].wait()

    def _gates(self) -> None:
        shut = {"hang": ("up", "down"), "half-open": ("down",)}.get(self.fault, ())
        for way, event in self._open.items():
            if way in shut:
                event.clear()
            else:
                event.set()

    def _break(self) -> None:
        for one in list(self._connections):
            one.reset()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.fault == "cut":
            _reset(writer)
            return
        connection = _Connection(self, reader, writer)
        self._connections.add(connection)
        connection.task.add_done_callback(lambda _: self._connections.discard(connection))


class _Connection:
    """Two ends, two ways; when one way breaks both ends do, when one is closed in order only that way is."""

    def __init__(self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._link = link
        self._client = reader, writer
        self._server: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.task = asyncio.create_task(self._run(), name=f"link {link.name}")

    async def _run(self) -> None:
        writers = [self._client[1]]
        try:
            await self._link.gate("up")
            self._server = await asyncio.open_connection(LOOPBACK, self._link.target)
            writers.append(self._server[1])
            ways = (
                self._pump(self._client[0], self._server[1], "up"),
                self._pump(self._server[0], self._client[1], "down"),
            )
            async with asyncio.TaskGroup() as group:
                for way in ways:
                    group.create_task(way)
            for writer in writers:
                writer.close()
        except* (OSError, asyncio.IncompleteReadError):
            self.reset()
        finally:
            for writer in writers:
                writer.transport.abort()

    def reset(self) -> None:
        """Break both ends at once."""
        for _, writer in filter(None, (self._client, self._server)):
            _reset(writer)
        if self.task is not asyncio.current_task():
            self.task.cancel()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(HELD)
        sender = asyncio.create_task(self._send(queue, writer, way))
        try:
            while data := await reader.read(CHUNK):
                await _put(queue, (asyncio.get_running_loop().time() + self._link.speed.latency, data), sender)
            await _put(queue, (0.0, b""), sender)
            await sender
        finally:
            sender.cancel()

    async def _send(self, queue: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter, way: str) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await queue.get()
            if (left := due - loop.time()) > 0:
                await asyncio.sleep(left)
            await self._link.gate(way)
            if not data:
                with contextlib.suppress(OSError):
                    writer.write_eof()
                return
            if rate := self._link.speed.bandwidth:
                await asyncio.sleep(len(data) / rate)
            writer.write(data)
            await writer.drain()
            self._link.passed += len(data)


async def _put(queue: asyncio.Queue[tuple[float, bytes]], item: tuple[float, bytes], sender: asyncio.Task[None]) -> None:
    """Put, or raise what the sender ended with: nobody would take it."""
    if not queue.full() and not sender.done():
        queue.put_nowait(item)
        return
    put = asyncio.ensure_future(queue.put(item))
    await asyncio.wait({put, sender}, return_when=asyncio.FIRST_COMPLETED)
    if not put.done():
        put.cancel()
        sender.result()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST, as a firewall or a dead host's kernel does."""
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
