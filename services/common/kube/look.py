"""Does a cluster answer at all? One short question for all who wonder at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from services.common.errors import StatusError, from_client_error

LOOK = 1.0
"""Seconds that a cluster which is taken to be away has for an answer."""
BELIEVED = 5.0
"""Seconds for which a failure counts: who asks meanwhile is answered without waiting."""


class Look:
    """Asks by `ask`, which ends with any answer and raises what the way to the cluster does."""

    def __init__(self, ask: Callable[[], Awaitable[object]], what: str) -> None:
        self._ask, self._what = ask, what
        self._task: asyncio.Task[StatusError | None] | None = None
        self._failed: tuple[float, StatusError] | None = None

    async def __call__(self) -> StatusError | None:
        """Why it does not answer; None where it does."""
        now = asyncio.get_running_loop().time()
        if self._failed is not None and now - self._failed[0] < BELIEVED:
            return self._failed[1]
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._once(), name=f"look/{self._what}")
        return await asyncio.shield(self._task)

    async def _once(self) -> StatusError | None:
        try:
            async with asyncio.timeout(LOOK):
                await self._ask()
        except (StatusError, TimeoutError) as error:
            failed = from_client_error(error, self._what)
            self._failed = (asyncio.get_running_loop().time(), failed)
            return failed
        self._failed = None
        return None

    def close(self) -> None:
        """Nobody is told any more."""
        if self._task is not None:
            self._task.cancel()
