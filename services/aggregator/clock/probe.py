"""Asks clusters of which the log says nothing, while another process feeds it: have they the type, do they answer?

Without it a follower would wait for each of them in every list, and say that they are away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from services.aggregator.clock.membership import MemberState
from services.aggregator.clock.metadata import Expired, MetadataClient
from services.common.errors import StatusError
from services.common.tasks import Tasks

RETRY = 3.0
TIMEOUT = 10.0

Unknown = Callable[[], list[tuple[MemberState, MetadataClient]]]


class Probe:
    """Runs from `start` until `unknown` returns nobody."""

    def __init__(self, unknown: Unknown) -> None:
        self._unknown = unknown
        self._tasks = Tasks("clock/probe")
        self._task: asyncio.Task[None] | None = None
        self._kicked = asyncio.Event()

    def start(self) -> None:
        """Begin, unless it runs."""
        if self._task is None or self._task.done():
            self._task = self._tasks.spawn(self._run(), "probe")

    def stop(self) -> None:
        """End; `start` begins again."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def kick(self) -> None:
        """A cluster changed: ask at once."""
        self._kicked.set()

    async def close(self) -> None:
        """End for good."""
        await self._tasks.close()

    async def _run(self) -> None:
        while unknown := self._unknown():
            self._kicked.clear()
            await asyncio.gather(*(_ask(state, api) for state, api in unknown))
            try:
                async with asyncio.timeout(RETRY):
                    await self._kicked.wait()
            except TimeoutError:
                continue


async def _ask(state: MemberState, api: MetadataClient) -> None:
    try:
        async with asyncio.timeout(TIMEOUT):
            await api.version()
    except StatusError as error:
        lacks = error.code == 404 and await api.lacks_type()
        state.report("NoType" if lacks else "Unreachable", error.message)
    except (TimeoutError, Expired) as error:
        state.report("Unreachable", str(error) or "it does not answer in time")
    else:
        if state.state != "Connecting":
            state.report("Connecting")
