"""Runs one provider into a registry. For unit tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.discovery.hub import Hub
from services.discovery.providers.base import Provider, Reading
from services.discovery.record import CONFIGURED
from services.discovery.registry import Registry


class World:
    """A registry that follows one provider."""

    def __init__(self, ident: str) -> None:
        self.ident = ident
        self.registry = Registry(Hub(), [ident])
        self.readings: list[Reading] = []

    def publish(self, reading: Reading) -> None:
        self.readings.append(reading)
        self.registry.reading(self.ident, reading)

    def holders(self) -> dict[str, str]:
        return self.registry.holders(self.ident)

    @property
    def names(self) -> set[str]:
        return set(self.registry.records)

    def server(self, name: str) -> str:
        record = self.registry.records.get(name)
        return record.server if record else ""

    def token(self, name: str) -> str:
        record = self.registry.records.get(name)
        return str(record.found.kubeconfig["users"][0]["user"]["token"]) if record and record.found else ""

    def problem(self, name: str) -> str:
        return self.registry.records[name].conditions[CONFIGURED].message

    @property
    def problems(self) -> str:
        return "\n".join(f"{source}: {message}" for _, source, message, _ in self.registry.sources.problems())


@asynccontextmanager
async def running(provider: Provider, world: World) -> AsyncIterator[World]:
    """Run a provider into the world."""
    task = asyncio.create_task(provider.run(world.publish))
    try:
        yield world
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.wait({task})
