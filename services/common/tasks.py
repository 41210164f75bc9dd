"""Named, supervised asyncio tasks, and back-off with jitter."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")
FailureCallback = Callable[[str, BaseException | None], None]


class Tasks:
    """Owns the tasks that were spawned on it: none is lost, none fails unseen, `close` ends them all.

    `on_failure(name, error)` is called when a task raises, and with `None` when a `root` task merely ends.
    """

    def __init__(self, name: str = "tasks", on_failure: FailureCallback | None = None) -> None:
        self.name = name
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[Any]] = set()
        self._roots: set[asyncio.Task[Any]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, coro: Coroutine[Any, Any, T], name: str, *, root: bool = False) -> asyncio.Task[T]:
        """Start `coro` as a task; RuntimeError once closed."""
        if self._closed:
            coro.close()
            raise RuntimeError(f"{self.name} is closed: {name} cannot start")
        task = asyncio.get_running_loop().create_task(coro, name=f"{self.name}/{name}")
        self._tasks.add(task)
        if root:
            self._roots.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        root = task in self._roots
        self._roots.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None and (not root or self._closed):
            return
        if error is not None:
            log.error("task %s failed", task.get_name(), exc_info=error)
        if self._on_failure is not None:
            self._on_failure(task.get_name(), error)

    async def wait(self, limit: float) -> bool:
        """Wait until no task is left, `limit` seconds at most; say whether that was reached."""
        if not self._tasks:
            return True
        _, pending = await asyncio.wait(set(self._tasks), timeout=limit)
        return not pending

    async def close(self) -> None:
        """Cancel all tasks and wait for their end; idempotent."""
        self._closed = True
        current = asyncio.current_task()
        while tasks := {task for task in self._tasks if task is not current}:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            # Done callbacks run in the loop's next round: without this the set would still hold them.
            await asyncio.sleep(0)


class Backoff:
    """Growing delays with jitter: `initial * factor^n` seconds up to `maximum`, less up to `jitter` of it."""

    def __init__(
        self, initial: float = 0.1, maximum: float = 30.0, factor: float = 2.0, jitter: float = 0.5
    ) -> None:
        self.initial, self.maximum, self.factor, self.jitter = initial, maximum, factor, jitter
        self.attempt = 0

    def next_delay(self, hint: float | None = None) -> float:
        """Return the next delay; a server's `hint` wins where it is longer, up to the maximum."""
        delay = min(self.initial * self.factor ** min(self.attempt, 64), self.maximum)
        self.attempt += 1
        delay *= 1 - random.random() * self.jitter
        return max(delay, min(hint, self.maximum)) if hint else delay

    async def wait(self, hint: float | None = None) -> None:
        """Sleep for the next delay."""
        await asyncio.sleep(self.next_delay(hint))

    def reset(self) -> None:
        """Start again at `initial`."""
        self.attempt = 0


async def backoff(
    initial: float = 0.1,
    maximum: float = 30.0,
    factor: float = 2.0,
    jitter: float = 0.5,
    *,
    attempts: int | None = None,
    deadline: float | None = None,
) -> AsyncIterator[int]:
    """Yield 0, 1, 2, … with growing delays between: `async for attempt in backoff(): try: … return`.

    Ends after `attempts`, or when `deadline` (of the loop's clock) would pass while waiting.
    """
    delays = Backoff(initial, maximum, factor, jitter)
    number = 0
    while True:
        yield number
        number += 1
        if attempts is not None and number >= attempts:
            return
        delay = delays.next_delay()
        if deadline is not None and asyncio.get_running_loop().time() + delay >= deadline:
            return
        await asyncio.sleep(delay)
