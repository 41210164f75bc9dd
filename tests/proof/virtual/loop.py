"""An event loop whose time jumps to the next timer: hours of waiting cost nothing, and a seed is one course.

Sets of futures and tasks are walked in the order of their addresses; here both are numbered instead, so that one
process' memory does not decide what comes first.
"""

from __future__ import annotations

import asyncio
import itertools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

SPIN = 50_000
"""Turns without a wait: somebody goes round in circles."""


class _Future(asyncio.Future[Any]):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__(loop=loop)
        self._number = next(loop.numbers)

    def __hash__(self) -> int:
        return self._number


class _Task(asyncio.Task[Any]):
    def __init__(self, coro: Coroutine[Any, Any, Any], loop: VirtualLoop, **options: Any) -> None:
        self._number = next(loop.numbers)
        super().__init__(coro, loop=loop, **options)

    def __hash__(self) -> int:
        return self._number


class _Jump(selectors.SelectSelector):
    """Waits for nothing: moves its loop's time on instead."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("nothing will ever happen again: no timer, and nobody is ready")
        if timeout > 0:
            self.loop.now += timeout
            self.loop.idle = 0
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """`now` is its time in seconds. `turns` counts its rounds: `at_turn` calls in one of them."""

    def __init__(self, start: float = 1000.0) -> None:
        self.now = start
        self.turns = self.idle = 0
        self.numbers = itertools.count()
        self._armed: list[tuple[int, Callable[[], None]]] = []
        jump = _Jump()
        jump.loop = self
        super().__init__(jump)
        self.set_task_factory(_make_task)

    def time(self) -> float:
        return self.now

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(self)

    def after_turns(self, turns: int, call: Callable[[], None]) -> None:
        """Call when the loop has gone round that often: between any two awaits of what runs then."""
        self._armed.append((self.turns + turns, call))

    def _run_once(self) -> None:
        self.turns += 1
        self.idle += 1
        if self.idle > SPIN:
            self.idle = 0
            busy = sorted(task.get_name() for task in asyncio.all_tasks(self))
            raise RuntimeError(f"{SPIN} turns and no time passes: {busy}")
        if self._armed:
            due = [call for at, call in self._armed if at <= self.turns]
            self._armed = [pair for pair in self._armed if pair[0] > self.turns]
            for call in due:
                self.call_soon(call)
        super()._run_once()  # type: ignore[misc]


def _make_task(loop: Any, coro: Any, **options: Any) -> asyncio.Task[Any]:
    return _Task(coro, loop, **options)
