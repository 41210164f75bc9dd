"""What readers see of one resource: markers, log, and waiting for them. Nothing here asks etcd or a member."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from _fastpath.listing import Item
from _fastpath.marker import Marker
from services.aggregator.clock.cursor import Cursor, too_old
from services.aggregator.clock.overdue import AGAIN, LATE
from services.aggregator.clock.position import Position
from services.aggregator.clock.pulse import Pulse
from services.aggregator.clock.state import State
from services.aggregator.clock.tally import Tally
from services.aggregator.clock.topics import Topics
from services.aggregator.clock.traces import EventTraces
from services.aggregator.types import Aggregated
from services.common.errors import timeout as timed_out

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A version of the log and the member versions that it stands for."""

    version: int
    members: dict[str, Position] = field(default_factory=dict)
    """Cluster -> its position at `version`: a list of it Exact at `read` shows what the log had."""
    left_out: list[str] = field(default_factory=list)
    """Clusters without a usable position: an answer without them needs a gap first."""


class View:
    """Read side of a ResourceClock. `state` is replaced as a whole when a log is read anew from etcd."""

    def __init__(self, aggregated: Aggregated) -> None:
        self.aggregated = aggregated
        self.state = State(0)
        self.tally = Tally()
        self.traces = EventTraces(aggregated.key)
        self.pulse = Pulse()
        """Beats after each commit."""
        self.topics = Topics()
        self.head_pulse = Pulse()
        """Beats when the head moved without one."""
        self.synced = asyncio.Event()

    @property
    def head(self) -> int:
        """The log is complete up to this fleet version."""
        return self.state.head

    @property
    def floor(self) -> int:
        """Versions below it are expired."""
        return self.state.floor

    def shown(self, namespace: str, name: str) -> Marker | None:
        """The live marker that merged views show now."""
        return self.state.index.shown(namespace, name)

    def numbers(self, items: list[Item], clusters: list[str], incarnations: list[str], version: int) -> list[int]:
        """Fleet versions of items of members' lists in a list at `version`; 0: `shown` and `marker_at` tell.

        `clusters` and `incarnations` are those of the items' sources.
        """
        return self.state.index.numbers(items, clusters, incarnations, version)

    def marker(self, cluster: str, namespace: str, name: str) -> Marker | None:
        """One cluster's newest state of a key; tombstones within the window included."""
        return self.state.index.get(cluster, namespace, name)

    def marker_at(self, cluster: str, namespace: str, name: str, version: int) -> Marker | None:
        """One cluster's state of a key as of `version`; 410 below the floor."""
        self._check(version)
        return self.state.marker_at(cluster, namespace, name, version)

    def shown_at(self, namespace: str, name: str, version: int) -> Marker | None:
        """The marker that merged views showed as of `version`; 410 below the floor."""
        self._check(version)
        return self.state.shown_at(namespace, name, version)

    def _check(self, version: int) -> None:
        if version < self.state.floor:
            raise too_old(version, self.state.floor)

    def is_clash(self, namespace: str, name: str) -> bool:
        """Do several clusters hold a live object of this key?"""
        return self.state.index.is_clash(namespace, name)

    def iter_markers(self, namespace: str = "") -> Iterator[Marker]:
        """Live markers in key order, hidden ones behind the shown one of their key."""
        return self.state.index.iter_live(namespace)

    def cursor(self, after: int) -> Cursor:
        """A cursor behind `after`; StatusError 410 below the floor."""
        return Cursor(self, after)

    async def wait_head(self, version: int, timeout: float) -> None:
        """Wait until the log is complete up to `version`; StatusError 504."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while self.state.head < version:
            left = deadline - loop.time()
            if left <= 0:
                raise timed_out(f"the log is at {self.state.head}, not at {version} yet", retry_after=1)
            await self.head_pulse.wait(left)

    async def overdue(self, cluster: str, limit: float) -> None:
        """Something that the cluster has shown already has not come yet: see to it, within `limit` seconds. Nothing to do
        for who is only told of the log."""

    async def until(self, cluster: str, probe: Callable[[], T | None], timeout: float) -> T | None:
        """Wait until the log has what is on its way from a cluster (`probe` is not None); None after `timeout` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        found = await self.pulse.until(probe, min(LATE, timeout))
        while found is None and (left := deadline - loop.time()) > 0:
            await self.overdue(cluster, left)
            found = await self.pulse.until(probe, min(AGAIN, deadline - loop.time()))
        return found

    async def wait_version(
        self, cluster: str, namespace: str, name: str, uid: str, version: int, timeout: float = 5
    ) -> Marker | None:
        """Wait until the log has this state of an object; return its marker.

        It is a tombstone where the version is the deletion's: what ended is answered under that one, and no live state
        of it ever comes.
        None: the log passed the version without numbering it (a diff, or a newer state); read again.
        StatusError 504 when it is not there in time.
        """

        def probe() -> tuple[Marker | None] | None:
            newest = self.marker(cluster, namespace, name)
            one = newest
            end: Marker | None = None
            while one is not None:
                if one.version == version and one.uid == uid:
                    if not one.deleted:
                        return (one,)
                    end = one
                if one.version < version:
                    break  # states before it are older still; an object that changes often has many
                one = one.prev
            if end is not None:
                return (end,)
            position = self.state.positions.get(cluster)
            if newest is not None and newest.version > version:
                return (None,)
            # At `read` itself more may be on its way: objects can share a member version.
            if position is not None and not position.diff and position.read > version:
                return (None,)
            return None

        found = await self.until(cluster, probe, timeout)
        if found is None:
            raise timed_out(
                f"cluster {cluster!r}: version {version} of {name!r} did not reach the log in time"
            )
        return found[0]

    async def wait_gone(self, marker: Marker, timeout: float = 5) -> None:
        """Wait until merged views show this object no more; StatusError 504."""

        def probe() -> Literal[True] | None:
            shown = self.shown(marker.namespace, marker.name)
            return True if shown is None or shown.uid != marker.uid else None

        if await self.until(marker.cluster, probe, timeout) is None:
            raise timed_out(f"cluster {marker.cluster!r}: the deletion of {marker.name!r} did not reach the log in time")

    async def wait_deleted(
        self, cluster: str, namespace: str, name: str, uid: str, timeout: float = 5, *, version: int = 0
    ) -> None:
        """Wait until the log has a deletion of this object, or its deletionTimestamp; StatusError 504.

        `version`: the one that the deletion was answered with, if any. What was being deleted before has gone by it, where
        it ended that; what came and went while the member was not followed the log never has.
        """

        def probe() -> Literal[True] | None:
            one = newest = self.marker(cluster, namespace, name)
            while one is not None and one.uid != uid:
                one = one.prev
            if one is None:
                position = self.state.positions.get(cluster)
                passed = version and position is not None and not position.diff and position.read > version
                return True if passed else None
            return True if one is not newest or one.deleted or (one.deleting and one.version >= version) else None

        if await self.until(cluster, probe, timeout) is None:
            raise timed_out(f"cluster {cluster!r}: the deletion of {name!r} did not reach the log in time")
