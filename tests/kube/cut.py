"""A link that can be cut: a TCP forwarder in the test's own loop."""

from __future__ import annotations

import asyncio


class Link:
    """Forwards `port` of this machine to `target`; `cut` ends every connection and lets no new one through.

    `freeze`: connections stay, and no byte passes; `mend` lets what came meanwhile through, late.
    """

    def __init__(self, host: str, target: int, port: int) -> None:
        self.host, self.target, self.port = host, target, port
        self.whole = True
        self._flows = asyncio.Event()
        self._flows.set()
        self._server: asyncio.Server | None = None
        self._running: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, self.host, self.port)

    def cut(self) -> None:
        """No byte passes from now on."""
        self.whole = False
        for task in self._running:
            task.cancel()

    def freeze(self) -> None:
        """No byte passes from now on, and nobody is told."""
        self._flows.clear()

    def mend(self) -> None:
        """New connections pass again."""
        self.whole = True
        self._flows.set()

    async def stop(self) -> None:
        """Stop listening."""
        self.cut()
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            if not self.whole:
                return
            await self._flows.wait()
            there, back = await asyncio.open_connection(self.host, self.target)
            try:
                await asyncio.gather(self._pipe(reader, back), self._pipe(there, writer))
            finally:
                back.transport.abort()
        except (OSError, asyncio.CancelledError):
            pass  # Cut, or the other side is away: the connection ends either way.
        finally:
            self._running.discard(task)
            writer.transport.abort()

    async def _pipe(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            await self._flows.wait()
            sink.write(data)
            await sink.drain()
        sink.close()
