"""Lets events gather while they come fast, so that one wake, one transaction and one write carry several."""

from __future__ import annotations

import asyncio
import math

RARE = 300.0
"""Events per second below which nothing waits."""
FLOOD = 5000.0
"""Events per second above which they gather by themselves: each step takes longer than the next event."""
MEMORY = 0.25
"""Seconds over which the rate is averaged."""


class Pace:
    """The time between two steps of a loop that takes whatever is there. Owned by one task; O(1) a step.

    Below `RARE` events per second a step follows its event at once. From there to `full` events per second the pause
    between steps grows to `quantum` seconds.
    """

    __slots__ = ("_at", "_growth", "_loop", "_quantum", "_rate")

    def __init__(self, quantum: float, full: float = 2 * RARE) -> None:
        self._loop = asyncio.get_running_loop()
        self._quantum = quantum
        self._growth = quantum / (full - RARE)
        self._rate = 0.0
        self._at = self._loop.time()

    def stepped(self, events: int) -> None:
        """A step took this many events."""
        now = self._loop.time()
        self._rate = self._rate * math.exp((self._at - now) / MEMORY) + events / MEMORY
        self._at = now

    def left(self) -> float:
        """Seconds to go until the next step."""
        rate = self._rate
        if not RARE < rate < FLOOD:
            return 0.0
        return self._at + min(self._quantum, self._growth * (rate - RARE)) - self._loop.time()
