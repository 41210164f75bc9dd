"""Makes all markers anew under a new base, and tells how far that has come."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

from services.aggregator.clock.clocks import Clocks
from services.aggregator.clock.resource import ResourceClock

log = logging.getLogger(__name__)

PERIOD = 0.5


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """How far it has come: `waiting` names what has not been listed yet."""

    markers: int
    resources: int
    done: int
    waiting: list[str]


async def rebuild(clocks: Clocks) -> AsyncIterator[Rebuilt]:
    """Rebuild the stores of all etcds; yield progress until every cluster that can be reached is listed.

    EtcdError, StorageChanged: the stores before the failing one are rebuilt.
    """
    old = {key: one.state.base for key, one in clocks.resources.items()}
    for clock in clocks.each:
        revision = await clock.context.store.rebuild()
        log.warning("all markers were removed at etcd's revision %d: every cluster is listed anew", revision)
    while True:
        waiting = [
            text for key, one in clocks.resources.items() if (text := _waiting(one, old.get(key, 0)))
        ]
        total = len(clocks.resources)
        markers = sum(one.counts().markers for one in clocks.resources.values())
        yield Rebuilt(markers, total, total - len(waiting), waiting)
        if not waiting:
            return
        await asyncio.sleep(PERIOD)


def _waiting(clock: ResourceClock, old: int) -> str:
    """What is still to come of a resource; "" when nothing."""
    if clock.state.base == old:
        return f"{clock.label}: the new base"
    names = [
        name or "(host)" for name, state in clock.members.items()
        if state.state not in ("NoType", "Unreachable", "Disengaging")
        and (state.position is None or state.position.diff)
    ]  # fmt: skip
    return f"{clock.label}: {', '.join(names)}" if names else ""
