"""A running fleet answers the commands of `deploy.local.ask`."""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import json
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

from deploy.local.ask import OPS, short_path
from deploy.local.errors import FleetFailed
from deploy.local.fleet import Fleet
from deploy.local.process import Process
from deploy.local.sim.plane import SimEngine


class Control:
    """Answers the commands; `shutdown` calls `on_shutdown`."""

    def __init__(self, fleet: Fleet, on_shutdown: Callable[[], None]) -> None:
        self._fleet = fleet
        self._on_shutdown = on_shutdown

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Listens while the block runs."""
        with short_path(self._fleet.layout.control) as path:
            server = await asyncio.start_unix_server(self._connected, path)
            os.chmod(path, 0o600)
        try:
            yield
        finally:
            server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            line = await reader.readline()
            answer: dict[str, Any]
            try:
                await self._do(json.loads(line))
                whole = self._fleet.describe()
                answer = {"ok": True, "processes": whole["processes"], "links": whole["links"]}
            except (FleetFailed, ValueError, TypeError) as error:
                answer = {"ok": False, "error": str(error)}
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()

    async def _do(self, request: dict[str, Any]) -> None:
        op, name = request.get("op"), str(request.get("name", ""))
        if op not in OPS:
            raise ValueError(f"unknown command {op!r}; allowed: {', '.join(OPS)}")
        if op == "shutdown":
            self._on_shutdown()
        elif op == "link":
            figures = {key: request[key] for key in ("latency", "bandwidth") if key in request}
            for link in self._fleet.links.matching(name):
                link.set(str(request.get("fault", "")), **figures)
            self._fleet.write_json()
        elif op == "sim":
            engine = self._fleet.engine
            if not isinstance(engine, SimEngine):
                raise ValueError("this fleet runs on real Kubernetes: its clusters cannot be told to fail")
            await engine.tell(name, str(request.get("fault", "")), request.get("given") or {})
        elif op == "add-member":
            await self._fleet.add_member(name)
        elif op == "remove-member":
            if name not in self._fleet.members:
                raise ValueError(f"no member {name!r}; there are: {', '.join(self._fleet.members)}")
            await self._fleet.remove_member(name)
        elif op != "ps":
            await asyncio.gather(*(_apply(op, process) for process in self._named(name)))
            self._fleet.write_json()

    def _named(self, pattern: str) -> list[Process]:
        found = [
            process for name, process in self._fleet.processes.items() if fnmatch.fnmatchcase(name, pattern)
        ]
        if not found:
            raise ValueError(f"no process {pattern!r}; there are: {', '.join(self._fleet.processes)}")
        return found


async def _apply(op: str, process: Process) -> None:
    if op == "start":
        await process.start()
        await process.wait_ready()
    elif op == "pause":
        process.pause()
    elif op == "resume":
        process.resume()
    else:
        await {"stop": process.stop, "kill9": process.kill9, "restart": process.restart}[op]()
