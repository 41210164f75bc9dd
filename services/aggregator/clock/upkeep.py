"""Looks after one etcd: figures of its endpoints, its quota's alarm; and what to do about it."""

from __future__ import annotations

import asyncio
import logging

from services.aggregator.clock import metrics
from services.common.etcd import Etcd
from services.common.etcd_admin import EndpointState, states

log = logging.getLogger(__name__)

PERIOD = 2.0
FULL = (
    "etcd is full (alarm NOSPACE on {where}): reads go on, writes and new events wait. `reclock markers stats` shows"
    " what uses the room, `reclock markers defragment` gives free room back and switches the alarm off; if that is"
    " not enough, raise etcd's --quota-backend-bytes or remove what else is stored there"
)
CORRUPT = (
    "etcd says that its data is corrupt (alarm CORRUPT on {where}): replace that member, or restore etcd from a"
    " snapshot; see docs/operations.md"
)


class Upkeep:
    """`run` is its one task."""

    def __init__(self, etcd: Etcd) -> None:
        self._etcd = etcd
        self.endpoints: list[EndpointState] = []
        self._trouble: str | None = None

    def ready(self) -> str | None:
        """For `Service.checks`: an alarm, and what to do."""
        return self._trouble

    def refuses(self) -> str | None:
        """Why etcd takes no writes now; None when it does, or when nobody has looked yet."""
        if self._trouble is None and any(one.denied or not one.problem for one in self.endpoints):
            return None
        away = "; ".join(one.problem for one in self.endpoints[:1])
        return self._trouble or (f"etcd does not answer ({away})" if self.endpoints else None)

    async def run(self) -> None:
        """Look every few seconds until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(PERIOD)

    async def look(self) -> None:
        """Ask all endpoints now."""
        self.endpoints = await states(self._etcd)
        for one in self.endpoints:
            metrics.ETCD_UP.labels(one.address).set(0 if one.problem else 1)
            if not one.problem:
                metrics.ETCD_SIZE.labels(one.address).set(one.size)
                metrics.ETCD_USED.labels(one.address).set(one.used)
            metrics.ETCD_FULL.labels(one.address).set("NOSPACE" in one.alarms)
        trouble = self._told("NOSPACE", FULL) or self._told("CORRUPT", CORRUPT)
        if trouble != self._trouble:
            log.log(logging.ERROR if trouble else logging.INFO, "%s", trouble or "etcd's alarm is off")
        self._trouble = trouble

    def _told(self, alarm: str, text: str) -> str | None:
        where = [one.address for one in self.endpoints if alarm in one.alarms]
        return text.format(where=", ".join(where)) if where else None
