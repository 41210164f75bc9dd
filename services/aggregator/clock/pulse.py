"""Wakes whoever waits for the log to grow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Pulse:
    """An event that is over at once: `beat` wakes all who wait now. Owned by one loop.

    Who waits for something (`until`: the answer of a write, a get) runs before who takes whatever comes (`wait`:
    watchers, maybe thousands). Waiting costs a future and a timer, no task. O(waiters) per beat.
    """

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[bool]] = set()
        self._first: set[asyncio.Future[bool]] = set()

    def beat(self) -> None:
        """Wake all waiters."""
        first, self._first = self._first, set()
        waiters, self._waiters = self._waiters, set()
        for group in (first, waiters):
            for waiter in group:
                if not waiter.done():
                    waiter.set_result(True)

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait for the next beat; False after `timeout` seconds without one."""
        return await self._wait(self._waiters, timeout)

    async def _wait(self, waiters: set[asyncio.Future[bool]], timeout: float | None) -> bool:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        waiters.add(waiter)
        timer = None
        if timeout is not None:
            timer = loop.call_later(max(timeout, 0), _expire, waiter)
        try:
            return await waiter
        finally:
            waiters.discard(waiter)
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
            await self._wait(self._first, left)


def _expire(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)
