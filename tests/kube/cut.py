"""A link that can be cut: a TCP forwarder in the test's own loop."""

from __future__ import annotations

import asyncio


class Link:
    """Forwards `port` of this machine to `target`; `cut` ends every connection and lets no new one through.

    `freeze`: connections stay, and no byte passes; `mend` lets what came meanwhile through, late. `forget`: the same for
    some connections only, as a firewall does that has lost them.
    """

    def __init__(self, host: str, target: int, port: int) -> None:
        self.host, self.target, self.port = host, target, port
        self.whole = True
        self._flows = asyncio.Event()
        self._flows.set()
        self._server: asyncio.Server | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._came: dict[asyncio.Task[None], int] = {}
        """Bytes that the target has sent on each connection since `count`."""
        self._forgotten: set[asyncio.Task[None]] = set()

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

    def count(self) -> None:
        """Count from now on what the target sends."""
        self._came.clear()

    def forget(self, least: int) -> int:
        """No byte passes any more on connections on which at least so many have come since `count`: how many are they?"""
        lost = {task for task, size in self._came.items() if size >= least and task in self._running}
        self._forgotten |= lost
        return len(lost)

    def mend(self) -> None:
        """All connections pass again."""
        self.whole = True
        self._forgotten.clear()
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
                await asyncio.gather(self._pipe(reader, back, task), self._pipe(there, writer, task, counted=True))
            finally:
                back.transport.abort()
        except (OSError, asyncio.CancelledError):
            pass  # Cut, or the other side is away: the connection ends either way.
        finally:
            self._running.discard(task)
            self._came.pop(task, None)
            self._forgotten.discard(task)
            writer.transport.abort()

    async def _pipe(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, task: asyncio.Task[None], *, counted: bool = False
    ) -> None:
        while data := await source.read(65536):
            if counted:
                self._came[task] = self._came.get(task, 0) + len(data)
            await self._flows.wait()
            while task in self._forgotten:  # noqa: ASYNC110 - a set, not one event for each connection
                await asyncio.sleep(0.05)
            sink.write(data)
            await sink.drain()
        sink.close()
