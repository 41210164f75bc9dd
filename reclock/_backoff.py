"""Growing delays with jitter."""

from __future__ import annotations

import asyncio
import random


class Backoff:
    """`initial * 2^n` seconds up to `maximum`, less up to half of it, so that many do not come back together."""

    def __init__(self, initial: float, maximum: float) -> None:
        self._initial, self._maximum = initial, maximum
        self._attempt = 0

    async def wait(self, hint: float | None = None) -> None:
        """Sleep for the next delay; a server's `hint` wins where it is longer, up to the maximum."""
        delay = min(self._initial * 2.0 ** min(self._attempt, 32), self._maximum)
        self._attempt += 1
        delay *= 1 - random.random() / 2
        await asyncio.sleep(max(delay, min(hint, self._maximum)) if hint else delay)

    def reset(self) -> None:
        """Start again at `initial`."""
        self._attempt = 0
