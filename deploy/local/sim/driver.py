"""Turns a world's timers from an event loop: a real one, or one whose time tests turn.

world = World(seed, now=loop.time); driver = Driver(world, loop)
"""

from __future__ import annotations

import asyncio
import logging

from deploy.local.sim.world import World

log = logging.getLogger(__name__)
# Bounded, so that a storm of changes leaves requests their turn.
_MOST_AT_ONCE = 200


class Driver:
    """Calls `run_due` when the world's next timer is due. `close` ends it."""

    def __init__(self, world: World, loop: asyncio.AbstractEventLoop) -> None:
        self._world = world
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None
        world.timers.on_earlier = self._plan
        self._plan()

    def close(self) -> None:
        self._world.timers.on_earlier = None
        if self._handle is not None:
            self._handle.cancel()

    def _plan(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        due = self._world.timers.next_due()
        if due is not None:
            delay = max(0.0, due - self._world.timers.now())
            self._handle = self._loop.call_later(delay, self._run)

    def _run(self) -> None:
        self._handle = None
        try:
            self._world.timers.run_due(_MOST_AT_ONCE)
        except Exception:
            log.exception("a simulated controller failed")
        self._plan()
