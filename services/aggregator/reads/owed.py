"""What was passed over because its member had a newer state than the log: that state is owed to all watches.

The log names it as a rule, in a moment. Not where the member was set back before its feed had heard of it, to the very
state that the log has: nothing shows the feed that anything happened, no diff passes, and clients that were sent nothing
would go without that entry for ever. So the member is asked again until the log has gone on; if it has the entry's own
state by then, a gap is opened, which sends its objects anew.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from _fastpath.listing import version_of
from _fastpath.marker import Marker
from _fastpath.splice import SpliceError
from services.aggregator.clock.metadata import WATCH_ACCEPT
from services.aggregator.reads.codec import JSON
from services.common.errors import StatusError
from services.common.kube.client import MAX_OBJECT
from services.common.kube.resource import Resource
from services.common.tasks import Backoff, Tasks

if TYPE_CHECKING:
    from services.aggregator.clock.clock import ResourceClock

log = logging.getLogger(__name__)

FIRST, LONGEST = 1.0, 30.0  # seconds until a member is asked again
TOGETHER = 16  # objects asked for at once
TIMEOUT = 2.0

Key = tuple[int, str, str, str]


class Owed:
    """One aggregator's. It outlives the watches that passed something over, and their feeds."""

    def __init__(self) -> None:
        self._entries: dict[Key, tuple[ResourceClock, Marker]] = {}
        self._slots = asyncio.Semaphore(TOGETHER)
        self._tasks = Tasks("owed")
        self._closed = False

    @property
    def open(self) -> bool:
        """Is there anything that the logs have not named yet?"""
        return any(_lacks(clock, entry) for clock, entry in self._entries.values())

    def add(self, clock: ResourceClock, resource: Resource, entry: Marker) -> None:
        """A watch passes `entry` over; `resource` is the form of the type that its member serves."""
        if self._closed or not _lacks(clock, entry):
            return
        key = (id(clock), entry.cluster, entry.namespace, entry.name)
        known = key in self._entries
        self._entries[key] = clock, entry
        if not known:
            self._tasks.spawn(self._follow(key, resource), f"{entry.cluster}/{entry.namespace}/{entry.name}")

    async def _follow(self, key: Key, resource: Resource) -> None:
        backoff = Backoff(FIRST, LONGEST)
        try:
            while True:
                await backoff.wait()
                clock, entry = self._entries[key]
                if not _lacks(clock, entry):
                    return
                try:
                    if await self._has_again(clock, resource, entry):
                        log.warning("%s: %s/%s is at version %d again: it was set back; gap opened",
                                    entry.cluster, entry.namespace, entry.name, entry.version)  # fmt: skip
                        await clock.open_gap(entry.cluster)
                        if self._entries[key][1] is entry:
                            return
                except (StatusError, SpliceError) as error:
                    log.debug("%s: %s/%s: %s", entry.cluster, entry.namespace, entry.name, error)
        finally:
            del self._entries[key]

    async def _has_again(self, clock: ResourceClock, resource: Resource, entry: Marker) -> bool:
        """Has the member the entry's own state? StatusError 404 where it has no such object: its deletion is to come."""
        member = clock.members.get(entry.cluster)
        if member is None:
            return False  # it leaves, or is not met yet: the log will tell
        async with self._slots:
            answer = await member.client.request(
                "GET", resource.path(entry.namespace or None, entry.name), headers={"Accept": WATCH_ACCEPT},
                timeout=TIMEOUT, longest=MAX_OBJECT,
            )  # fmt: skip
        meta = JSON.scan_answer(answer.body)
        return meta.uid == entry.uid and version_of(meta.version) == entry.version and _lacks(clock, entry)

    async def close(self) -> None:
        """Ask no more."""
        self._closed = True
        await self._tasks.close()


def _lacks(clock: ResourceClock, entry: Marker) -> bool:
    """Has the log nothing behind the entry yet?"""
    newest = clock.marker(entry.cluster, entry.namespace, entry.name)
    return newest is not None and newest.fleet <= entry.fleet
