"""When the built-in controllers work here: while this replica has the host, one worker for each time that it took it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from reclock import Worker
from services.common.tasks import Tasks
from services.reconciler.work.hub import Hub

log = logging.getLogger(__name__)


class Lead:
    """`run` until cancelled. The caches are followed all the time, so that a worker can start at once."""

    def __init__(self, hub: Hub, tasks: Tasks, make: Callable[[], Worker]) -> None:
        self._hub = hub
        self._tasks = tasks
        self._make = make
        self._fence = 0
        """Of the host, as it was taken when the worker started; 0: no worker may write."""

    def holds(self) -> bool:
        """Whether what the worker runs may write: this replica has had the host ever since the worker started.

        That the replica takes part is not enough: it may have lost the host to another one, and be back without it.
        """
        return self._hub.holds_host(self._fence)

    async def run(self) -> None:
        """Work, again and again. Cancelled, the worker stops in order; when the host is lost, at once."""
        while True:
            await self._hub.leading.wait()
            self._fence = self._hub.host_fence()
            if not self._fence:
                continue  # lost again before we woke up
            worker = self._make()
            running = self._tasks.spawn(worker.run(), "built-in controllers")
            try:
                await self._hub.following.wait()
                log.warning("another replica has the host now, or may have: the built-in controllers end here")
                # Nothing to wait for: what these handlers do is handed out anew elsewhere, and they may not write.
                await worker.stop(0)
            finally:
                running.cancel()
                await asyncio.wait({running})
