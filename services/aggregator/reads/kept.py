"""Walks of paged lists between two pages: what members gave is not asked for twice, and what comes next is asked for early.

Nothing depends on it. A page whose walk is not here (another replica, a restart, too late, too much) asks the members by
its token, for the same versions, and gives the same answer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from services.aggregator.clock.position import Position
from services.aggregator.reads.walk import Plan, Walk

if TYPE_CHECKING:
    from services.aggregator.clock.clock import ResourceClock

KEEP = 15.0  # seconds that a client may take for a page, its way to it included
ROOM = 4 * 1024 * 1024  # bytes of objects kept or asked for early, per walk
LEAST = 256 * 1024  # bytes that a walk counts for, however little it holds
ROOMS = 32 * 1024 * 1024  # for all walks together: the oldest goes first


@dataclass(slots=True)
class _Kept:
    walk: Walk
    plan: Plan
    clock: ResourceClock
    room: int
    size: int
    timer: asyncio.TimerHandle


class KeptWalks:
    """By the token of the next page; each is given out once."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._room = 0

    def keep(self, token: str, walk: Walk, clock: ResourceClock, *, size: int, early: bool) -> bool:
        """Take over a walk whose page is complete, unless it holds too much; `size` is about an object's.

        `early`: ask members for the next page now. Who has come for a second one will come for a third.
        """
        held = walk.turn()
        if not walk.sound or held > ROOM or token in self._kept:
            return False
        room = ROOM if early else max(held, LEAST)
        if early:
            walk.ahead(ROOM - held, size)
        timer = asyncio.get_running_loop().call_later(KEEP, self._drop, token)
        self._kept[token] = _Kept(walk, _same(walk.plan), clock, room, size, timer)
        self._room += room
        while self._room > ROOMS:
            self._drop(next(iter(self._kept)))
        return True

    def take(self, token: str, plan: Plan, clock: ResourceClock) -> Walk | None:
        """The walk, if it gives exactly what `plan` asks for, its members asked for what the page will need."""
        kept = self._pop(token)
        if kept is None:
            return None
        walk = kept.walk
        if kept.clock is not clock or kept.plan != _same(plan) or not walk.sound:
            walk.drop()
            return None
        walk.plan.limit = plan.limit
        walk.ahead(ROOM, kept.size)
        return walk

    def _pop(self, token: str) -> _Kept | None:
        kept = self._kept.pop(token, None)
        if kept is not None:
            kept.timer.cancel()
            self._room -= kept.room
        return kept

    def _drop(self, token: str) -> None:
        kept = self._pop(token)
        if kept is not None:
            kept.walk.drop()

    async def close(self) -> None:
        """End all."""
        kept, self._kept, self._room = list(self._kept.values()), {}, 0
        for one in kept:
            one.timer.cancel()
        await asyncio.gather(*(one.walk.close() for one in kept))


def _same(plan: Plan) -> Plan:
    """What decides about a walk's objects, as a token tells it."""
    positions = {c: Position(p.incarnation, p.read, p.read, False) for c, p in plan.positions.items()}
    return replace(plan, positions=positions, after="", limit=0)
