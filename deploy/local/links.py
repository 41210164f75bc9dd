"""The links of a fleet that can be made to fail, by name: `services->east`, `aggregator-1->etcd-2`, `client->aggregator`."""

from __future__ import annotations

import asyncio
import fnmatch

from deploy.local.ports import Ports
from deploy.local.proxy import Link


class Links:
    """Made by the fleet; with `on=False` every route is the direct one."""

    def __init__(self, ports: Ports, *, on: bool) -> None:
        self._ports = ports
        self._on = on
        self.named: dict[str, Link] = {}

    def route(self, name: str, port: int) -> int:
        """The port by which clients reach `port` over the link `name`."""
        if not self._on:
            return port
        if name not in self.named:
            self.named[name] = Link(name, self._ports.take(), port)
        return self.named[name].port

    async def start(self) -> None:
        """Listen on what was routed so far; those that listen already are left alone."""
        await asyncio.gather(*(link.start() for link in self.named.values() if not link.listening))

    async def stop(self) -> None:
        """End all of them."""
        await asyncio.gather(*(link.stop() for link in self.named.values()))

    def matching(self, pattern: str) -> list[Link]:
        """Links by name or glob. ValueError where there is none."""
        found = [link for name, link in self.named.items() if fnmatch.fnmatchcase(name, pattern)]
        if not found:
            there = ", ".join(self.named) or "none: start the fleet with --faults"
            raise ValueError(f"no link {pattern!r}; there are: {there}")
        return found
