"""One linearizable read of etcd, shared by the requests under way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """Runs `read` for many callers: each gets an answer of a call that began after it asked.

    At most one call is under way and one wanted; callers that come meanwhile share the wanted one.
    """

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._current: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """Return a fresh answer, or raise what the call raised. A caller's cancellation is its own."""
        if self._current is None or self._current.done():
            task = self._current = self._start(None)
        elif self._next is not None:
            task = self._next
        else:
            task = self._next = self._start(self._current)
        return await asyncio.shield(task)

    def _start(self, before: asyncio.Task[T] | None) -> asyncio.Task[T]:
        task = asyncio.create_task(self._run(before), name="clock/read")
        # An error is told to who waits; when all were cancelled nobody does.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _run(self, before: asyncio.Task[T] | None) -> T:
        if before is not None:
            await asyncio.wait({before})
            self._current, self._next = self._next, None
        return await self._read()
