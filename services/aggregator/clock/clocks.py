"""The clocks of all etcds: resources named by `etcdOverrides` have theirs on another one. Callers see one clock."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from services.aggregator.clock.clock import ALIASES, Clock, ResourceClock
from services.aggregator.types import Aggregated


class ResourceClocks(Protocol):
    """What readers and writers need: a Clock, or Clocks."""

    @property
    def resources(self) -> Mapping[str, ResourceClock]:
        """Key (`pods`, `jobs.batch`) -> its clock."""

    def get(self, group: str, resource: str) -> ResourceClock | None:
        """The clock of a resource; None when it is not aggregated."""


class Clocks:
    """`main` has all resources but those in `others` (key -> its clock; one clock may have several)."""

    def __init__(self, main: Clock, others: Mapping[str, Clock] | None = None) -> None:
        self._main = main
        self._others = dict(others or {})

    @property
    def each(self) -> list[Clock]:
        """Every clock once, the main one first."""
        return list(dict.fromkeys([self._main, *self._others.values()]))

    @property
    def resources(self) -> Mapping[str, ResourceClock]:
        """All resources, by key."""
        if not self._others:
            return self._main.resources
        return {key: one for clock in self.each for key, one in clock.resources.items()}

    def get(self, group: str, resource: str) -> ResourceClock | None:
        """The clock of a resource; events.k8s.io events are the core's."""
        return self._of(group, resource).get(group, resource)

    def _of(self, group: str, resource: str) -> Clock:
        if not self._others:
            return self._main
        group, resource = ALIASES.get((group, resource), (group, resource))
        return self._others.get(f"{resource}.{group}" if group else resource, self._main)

    def apply(self, aggregated: Sequence[Aggregated]) -> None:
        """Take over the current set of aggregations, each to its clock."""
        for clock in self.each:
            clock.apply([one for one in aggregated if self._of(one.group, one.resource) is clock])

    def ready(self) -> str | None:
        """For `Service.checks`: what is missing."""
        return next((reason for clock in self.each if (reason := clock.ready())), None)

    def alarm(self) -> str | None:
        """For `Service.checks`: an etcd that is full or corrupt, and what to do."""
        return next((reason for clock in self.each if (reason := clock.upkeep.ready())), None)

    async def wait_loaded(self, timeout: float) -> bool:
        """Wait until every log has been read from its etcd; False when that takes longer than `timeout` seconds."""
        return all(await asyncio.gather(*(clock.wait_loaded(timeout) for clock in self.each)))

    async def run(self) -> None:
        """Run until cancelled; the first clock that fails (StartRefused) ends all."""
        try:
            async with asyncio.TaskGroup() as group:
                for clock in self.each:
                    group.create_task(clock.run(), name="clock")
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
