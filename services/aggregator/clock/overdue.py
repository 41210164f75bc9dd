"""Watches that hang: a state that a member has shown already must come on its watch, and nothing comes.

A link can go dead without a word (a firewall forgets its connections, a balancer its back ends): requests over new
connections are answered, and a watch that is open is merely silent, until it misses a bookmark minutes later. Whoever
waits for an event that is certain to come (the answer of a write, a get) has a sign of that within seconds.
"""

from __future__ import annotations

import asyncio

LATE = 2.0
"""Seconds that such an event may take before its watch is doubted. Usually it takes milliseconds, on a busy member some
hundred; who waits is answered 504 after five, and what is opened anew needs its share of those."""
AGAIN = 0.5
"""Seconds after which who still waits doubts it again: the watch may have been silent for too short a time."""
SILENT = 0.75
"""Share of the time that an event may take in which its watch must have brought nothing to be doubted: one that brings
something is not dead, only late, and opening it anew would make it later. All of it would be too much to ask: what came
right before a write, and then no more, says nothing for it."""
EVERY = 10.0
"""Seconds between two such openings of one watch: where the member itself is what is slow they do not help, and the
lists that a resumed watch asks for, to be sure of the member's history, are a load."""
ASK_EVERY = 1.0
"""Seconds between two wishes of a replica that another one, which has the watch, may doubt it."""


class Hearing:
    """When a watch has brought something last, and when it was opened anew for its silence. `late`: seconds that an event
    may take."""

    def __init__(self, late: float = LATE) -> None:
        self._silent = SILENT * late
        self._heard = self._renewed = float("-inf")

    def heard(self) -> None:
        """Something came, or is awaited from now on."""
        self._heard = asyncio.get_running_loop().time()

    def renews(self) -> bool:
        """Is it to be opened anew? Then that counts as done."""
        now = asyncio.get_running_loop().time()
        if now - self._heard < self._silent or now - self._renewed < EVERY:
            return False
        self._renewed = now
        return True

    def fresh(self, seconds: float) -> float:
        """How long yet until it was opened anew so many seconds ago: what it brings may still come. 0 when it was before."""
        return max(self._renewed + seconds - asyncio.get_running_loop().time(), 0.0)
