"""Tells members everything that is placed there, when somebody begins to lead and when a worker is back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from services.common.errors import StatusError
from services.common.tasks import Backoff
from services.scheduler.admission import Admission
from services.scheduler.engine import Engine
from services.scheduler.holds import CALL_LIMIT, placed_ask
from services.scheduler.workload import Workload

log = logging.getLogger(__name__)

Told = dict[str, tuple[int, int, int]]
"""Workload uid -> attempt, replicas, generation."""


class Resync:
    """`leads` says whether this process may tell anybody anything; `changed(cluster)` is called when a member was told."""

    def __init__(self, engine: Engine, leads: Callable[[], bool], changed: Callable[[str], None]) -> None:
        self._engine, self._leads, self._changed = engine, leads, changed

    async def until_told(self, cluster: str) -> None:
        """Tell it, again and again until it has heard: what is not known there is promised to others."""
        backoff = Backoff(initial=1.0, maximum=10.0)
        while not await self.tell(cluster):
            await backoff.wait()

    async def tell(self, cluster: str) -> bool:
        """Tell a member what is placed there; False: it has to be told again."""
        admission = self._engine.fleet.admissions.get(cluster)
        if admission is None:
            return True
        if not self._leads():
            return True  # Who begins to lead tells everybody.
        self._engine.holds.forget_confirmed(cluster)
        before, asks = self._told(cluster), []
        for workload in self._engine.placed_on(cluster):
            assert workload.placement is not None
            asks.append(placed_ask(workload, workload.placement.attempt, workload.placement.clusters[cluster]))
            self._engine.holds.note_placed(workload, workload.placement, cluster)
        try:
            async with asyncio.timeout(CALL_LIMIT):
                await admission.resync(asks)
        except (TimeoutError, StatusError) as error:
            self._engine.holds.forget_confirmed(cluster)
            log.info("%s: it does not know yet what is placed there: %s", cluster, error)
            return False
        await self._catch_up(cluster, admission, before)
        self._changed(cluster)
        return True

    def _told(self, cluster: str) -> Told:
        def entry(workload: Workload) -> tuple[int, int, int]:
            assert workload.placement is not None
            return workload.placement.attempt, workload.placement.clusters[cluster], workload.generation

        return {workload.uid: entry(workload) for workload in self._engine.placed_on(cluster)}

    async def _catch_up(self, cluster: str, admission: Admission, before: Told) -> None:
        """What was placed or moved while the member was told may have come there before, and been undone by it."""
        now = self._told(cluster)
        for uid in now:
            if now[uid] != before.get(uid):
                self._engine.holds.forget(uid, cluster)  # Its next step tells it anew.
        for uid in before.keys() - now.keys():
            try:
                async with asyncio.timeout(CALL_LIMIT):
                    await admission.release(uid, before[uid][0])
            except (TimeoutError, StatusError) as error:
                log.info("%s: a reservation was not released, it goes with the next resync: %s", cluster, error)
