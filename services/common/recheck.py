"""Long calls are judged again while they last: tokens end, certificates too, and rights are taken away."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc

from services.common.aborts import abort_status
from services.common.errors import StatusError, unavailable

log = logging.getLogger(__name__)

_REFUSALS = (401, 403)
RECANCEL = 1.0


@dataclass(frozen=True, slots=True)
class Recheck:
    """How often, and how long an answer holds while the host cannot be asked. In seconds."""

    every: float = 60.0
    """A fifth more or less each time, so that streams that began together are not judged together."""
    patience: float = 600.0

    @asynccontextmanager
    async def hold(self, context: grpc.aio.ServicerContext, review: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        """Run the block as long as `review` does not refuse; a refusal (StatusError) ends the call with its code.

        The block is cancelled where it waits, so it must run in the call's own task.
        """
        task = asyncio.current_task()
        assert task is not None
        refused: list[StatusError] = []

        async def watch() -> None:
            refused.append(await self._refused(review))
            log.info("%s: a call is ended: %s", context.peer(), refused[0].message)
            while True:  # a wait that ends at the same moment may swallow it
                task.cancel()
                await asyncio.sleep(RECANCEL)

        watcher = asyncio.create_task(watch(), name="recheck")
        try:
            yield
        except asyncio.CancelledError:
            watcher.cancel()
            if not refused:
                raise
            while task.uncancel():
                pass
            await abort_status(context, refused[0])
        finally:
            watcher.cancel()

    async def _refused(self, review: Callable[[], Awaitable[None]]) -> StatusError:
        """Wait for the review that refuses."""
        answered = time.monotonic()
        while True:
            await asyncio.sleep(self.every * random.uniform(0.8, 1.2))
            try:
                await review()
            except StatusError as error:
                if error.code in _REFUSALS:
                    return error
                unanswered = time.monotonic() - answered
                if unanswered >= self.patience:
                    return unavailable(f"nobody could say for {unanswered:.0f} s whether this call may go on: {error.message}", retry_after=1)
                log.warning("a call goes on without being judged again: %s", error.message)
            else:
                answered = time.monotonic()
