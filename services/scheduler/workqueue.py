"""A queue of keys: each at most once waiting, never worked on twice at once, higher priority first, delays.

The contract of client-go's workqueue, with priorities. Owned by one event loop.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
Order = tuple[float, ...]


class WorkQueue(Generic[K]):
    """`add` is O(log n); `get` waits. Smaller `order` goes first, then first in, first out."""

    def __init__(self) -> None:
        self._heap: list[tuple[Order, int, K]] = []
        self._queued: dict[K, tuple[Order, int]] = {}
        self._processing: set[K] = set()
        self._again: dict[K, Order] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._numbers = itertools.count()
        self._wake = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        return len(self._queued)

    def add(self, key: K, order: Order = ()) -> None:
        """Queue a key now. Waiting already: the smaller order wins. In work: it comes again when done."""
        if self._closed:
            return
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key in self._processing:
            self._again[key] = min(order, self._again.get(key, order))
            return
        known = self._queued.get(key)
        if known is not None and known[0] <= order:
            return
        self._push(key, order)

    def _push(self, key: K, order: Order) -> None:
        entry = (order, next(self._numbers))
        self._queued[key] = entry
        heapq.heappush(self._heap, (*entry, key))
        self._wake.set()

    def add_after(self, key: K, delay: float, order: Order = ()) -> None:
        """Queue a key in `delay` seconds, unless it is queued before; the earliest time wins."""
        if self._closed or key in self._queued or key in self._again:
            return
        loop = asyncio.get_running_loop()
        known = self._timers.get(key)
        if known is not None:
            if known.when() <= loop.time() + delay:
                return
            known.cancel()
        self._timers[key] = loop.call_later(max(delay, 0.0), self._due, key, order)

    def _due(self, key: K, order: Order) -> None:
        self._timers.pop(key, None)
        self.add(key, order)

    async def get(self) -> K | None:
        """Wait for the next key and mark it as in work; None once closed."""
        while True:
            while self._heap:
                order, number, key = heapq.heappop(self._heap)
                # An entry that was overtaken by a smaller order stays in the heap until it comes up.
                if self._queued.get(key) == (order, number):
                    del self._queued[key]
                    self._processing.add(key)
                    return key
            if self._closed:
                return None
            self._wake.clear()
            await self._wake.wait()

    def done(self, key: K) -> None:
        """The work on a key has ended; it is queued again if it was added meanwhile."""
        self._processing.discard(key)
        order = self._again.pop(key, None)
        if order is not None and not self._closed:
            self._push(key, order)

    def close(self) -> None:
        """Take nothing more, drop what waits, wake those that wait for work."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._queued.clear()
        self._heap.clear()
        self._again.clear()
        self._wake.set()
