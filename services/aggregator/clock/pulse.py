"""Wakes whoever waits for the log to grow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Pulse:
    """An event that is over at once: `beat` wakes all who wait now. Owned by one loop.

    Waiting costs a future and a timer, no task. O(waiters) per beat.
    """

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[bool]] = set()

    def beat(self) -> None:
        """Wake all waiters."""
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(True)

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait for the next beat; False after `timeout` seconds without one."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiters.add(waiter)
        timer = None
        if timeout is not None:
            timer = loop.call_later(max(timeout, 0), _expire, waiter)
        try:
            return await waiter
        finally:
            self._waiters.discard(waiter)
            if timer is not None:
                timer.cancel()

    async def until(self, probe: Callable[[], T | None], timeout: float) -> T | None:
        """Wait until `probe` returns something that is not None, and return it; None after `timeout` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            found = probe()
            if found is not None:
                return found
            left = deadline - loop.time()
            if left <= 0:
                return None
            await self.wait(left)


def _expire(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)
