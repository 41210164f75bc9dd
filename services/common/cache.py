"""A small cache with expiry in which concurrent misses of one key share one load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

Loader = Callable[[], Awaitable[tuple[V, float]]]
"""Loads a value and says for how many seconds it holds (0: not at all)."""


class LoadingCache(Generic[K, V]):
    """At most `limit` values. `peek` and hits cost one dict lookup; failed loads are not kept."""

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self._values: dict[K, tuple[V, float]] = {}
        self._loading: dict[K, asyncio.Task[V]] = {}

    def peek(self, key: K) -> V | None:
        """Return a value that still holds."""
        entry = self._values.get(key)
        return entry[0] if entry is not None and entry[1] > time.monotonic() else None

    def drop(self, key: K) -> None:
        """Forget a value."""
        self._values.pop(key, None)

    async def get(self, key: K, load: Loader[V]) -> V:
        """Return the value, loading it when needed; raises what `load` raises."""
        value = self.peek(key)
        if value is not None:
            return value
        task = self._loading.get(key)
        if task is None:
            # A task of its own: the caller that started the load may be cancelled, the others wait on.
            task = asyncio.get_running_loop().create_task(self._load(key, load), name="cache/load")
            self._loading[key] = task
            task.add_done_callback(lambda done: self._loaded(key, done))
        return await asyncio.shield(task)

    async def _load(self, key: K, load: Loader[V]) -> V:
        value, seconds = await load()
        if seconds > 0:
            if len(self._values) >= self._limit:
                self._evict()
            self._values[key] = (value, time.monotonic() + seconds)
        return value

    def _loaded(self, key: K, task: asyncio.Task[V]) -> None:
        self._loading.pop(key, None)
        if not task.cancelled():
            task.exception()  # every waiter got it; without a waiter left it would be reported as never retrieved

    def _evict(self) -> None:
        now = time.monotonic()
        for key in [key for key, (_, until) in self._values.items() if until <= now]:
            del self._values[key]
        # All of them still hold: the oldest half goes (dicts keep the order of insertion).
        if len(self._values) >= self._limit:
            for key in list(self._values)[: self._limit // 2]:
                del self._values[key]
