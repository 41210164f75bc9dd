"""A member that was set back repeats its versions. Until its feed has noticed, what it answers may carry the numbers of
its former life, as with one cluster alone: records of that time are taken for what they are."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from services.aggregator.clock.position import split_incarnation
from tests.proof.history import Event, Got, History, Listed, Record, Seen, Wrote

if TYPE_CHECKING:
    from tests.proof.virtual.members import Site
    from tests.proof.virtual.world import World

SLACK = 3.0
"""Seconds for which what was read before may be on its way still."""


class Blur:
    """Times at which each member was not known to be in another life."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.times: dict[str, list[tuple[float, float]]] = {}
        self._open: dict[str, float] = {}

    def begin(self, site: Site) -> None:
        now = self._world.loop.now
        begun = self._open.get(site.name)
        self._open[site.name] = now if begun is None else begun
        if begun is None:
            self._world.tasks.append(asyncio.create_task(self._watch(site)))

    async def _watch(self, site: Site) -> None:
        while not self._noticed(site):  # noqa: ASYNC110 - time is virtual
            await asyncio.sleep(0.02)
        self.times.setdefault(site.name, []).append((self._open.pop(site.name), self._world.loop.now + SLACK))

    def _noticed(self, site: Site) -> bool:
        """Has a sequencer compared what it has with this life, and put the difference?"""
        for replica in self._world.replicas:
            if not replica.leads or site.name not in replica.paths:
                continue
            position = replica.pods.state.positions.get(site.name)
            if position is None or position.diff:
                continue
            uid, count = split_incarnation(position.incarnation)
            if uid == site.cluster.uid and (uid, count) != site.before:
                return True
        return False

    def clear(self, histories: list[History]) -> list[History]:
        """Histories in which what was shown in a blur says nothing."""
        if not self.times:
            return histories
        return [History(one.client, one.scope, [self._cleared(record) for record in one.records]) for one in histories]

    def _unsure(self, seen: Seen | None, begin: float, end: float) -> bool:
        if seen is None:
            return any(begin <= until and end >= since for times in self.times.values() for since, until in times)
        return any(begin <= until and end >= since for since, until in self.times.get(seen.cluster, ()))

    def _cleared(self, record: Record) -> Record:
        if isinstance(record, Event) and self._unsure(record.seen, record.at, record.at):
            return replace(record, seen=replace(record.seen, stamp=""))
        if isinstance(record, Listed):
            items = tuple(
                replace(one, stamp="") if self._unsure(one, record.started, record.ended) else one for one in record.items
            )
            sure = not self._unsure(None, record.started, record.ended)
            return replace(record, items=items, consistent=record.consistent and sure)
        if isinstance(record, Got) and self._unsure(record.seen, record.started, record.ended):
            seen = None if record.seen is None else replace(record.seen, stamp="")
            return replace(record, seen=seen, consistent=False)
        if isinstance(record, Wrote) and record.seen is not None and self._unsure(record.seen, record.started, record.ended):
            return replace(record, code=0, seen=None)
        return record
