"""Named background tasks with one owner: none fails unseen, none outlives it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

log = logging.getLogger("reclock")
T = TypeVar("T")


class Tasks:
    """`spawn` starts one, `close` cancels all and waits for their end."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run it beside; a failure is logged."""
        task = asyncio.get_running_loop().create_task(work, name=f"reclock {self._name}: {name}")
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed", task.get_name(), exc_info=error)

    async def close(self) -> None:
        """End them; idempotent."""
        current = asyncio.current_task()
        while tasks := {task for task in self._tasks if task is not current}:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await asyncio.sleep(0)  # done callbacks run in the loop's next round
