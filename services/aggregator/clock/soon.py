"""Many calls, one run: for what looks at every member whenever one of them changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

EACH = 50e-6
"""Seconds to wait per thing looked at: ten times what the look takes, so that it takes a tenth of the time at most."""


class Soon:
    """Calling it has `job` run once, soon: at once for a few things (`size`), 50 ms later for 1,000.

    A fleet of n members that comes up reports some 5 n changes: n looks at n members each would be quadratic.
    """

    def __init__(self, job: Callable[[], None], size: Callable[[], int]) -> None:
        self._job, self._size = job, size
        self._handle: asyncio.TimerHandle | None = None

    def __call__(self) -> None:
        """Run it soon, if it is not going to anyway."""
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_later(self._size() * EACH, self._run)

    @property
    def due(self) -> bool:
        """Will it run?"""
        return self._handle is not None

    def done(self) -> None:
        """It was run otherwise, or need not run any more."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.cancel()

    def _run(self) -> None:
        self._handle = None
        self._job()
