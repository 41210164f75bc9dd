"""The stream of the fleet: the latest record of each cluster, ordered by version.

Subscribers keep only the version they have sent; what changed since is read from here. So a slow subscriber
costs nothing, skips states that are gone, and can come back with its version after a reconnect.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from reclock.discovery.v1 import discovery_pb2

GRAVES = 10_000
"""Departed clusters that are remembered for subscribers that resume."""


class Hub:
    """Owned by the event loop. `put` is O(1) beside the comparison, `since` O(changes since)."""

    def __init__(self) -> None:
        # Versions of an earlier process are smaller, so they are known to be foreign.
        self.version = self._floor = time.time_ns() // 1000
        self._live: OrderedDict[str, tuple[int, Any, Any]] = OrderedDict()
        self._gone: OrderedDict[str, int] = OrderedDict()
        self.complete = asyncio.Event()
        """Set once every provider has read its sources: before, a missing cluster may still come."""
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._live)

    def _next(self) -> int:
        self.version += 1
        # Every waiter holds the old event; a new one is there for the next round.
        self._changed.set()
        self._changed = asyncio.Event()
        return self.version

    def put(self, cluster: Any, access: Any | None) -> bool:
        """Set a cluster's record (no version, no access in it); nothing happens when it is unchanged."""
        name = cluster.name
        old = self._live.get(name)
        if old is not None and old[1] == cluster and old[2] == access:
            return False
        self._gone.pop(name, None)
        self._live[name] = (self._next(), cluster, access)
        self._live.move_to_end(name)
        return True

    def remove(self, name: str) -> bool:
        """The cluster left."""
        if self._live.pop(name, None) is None:
            return False
        self._gone[name] = self._next()
        self._gone.move_to_end(name)
        while len(self._gone) > GRAVES:
            self._floor = self._gone.popitem(last=False)[1]
        return True

    def has_left(self, name: str) -> bool:
        """Whether the cluster left while this process ran, as far as is remembered."""
        return name in self._gone

    def resumable(self, version: int) -> bool:
        """Whether all changes after `version` are still known."""
        return self._floor <= version <= self.version

    async def changed(self, seen: int) -> None:
        """Wait until there is something newer than `seen`."""
        while self.version <= seen:
            await self._changed.wait()

    def get(self, name: str) -> Any | None:
        """Return a cluster's record with its version."""
        entry = self._live.get(name)
        return message(entry, with_access=False) if entry is not None else None

    def since(
        self, version: int, *, with_access: bool, with_leaving: bool = False
    ) -> Iterator[tuple[int, str, Any]]:
        """Yield (version, name, cluster or None when gone) of what changed after `version`, oldest first.

        To those who do not ask for leaving clusters these are gone.
        """
        changes: list[tuple[int, str, Any]] = []
        for name, entry in reversed(self._live.items()):
            if entry[0] <= version:
                break
            changes.append((entry[0], name, entry))
        for name, at in reversed(self._gone.items()):
            if at <= version:
                break
            changes.append((at, name, None))
        for at, name, found in sorted(changes, key=lambda change: change[0]):
            if found is not None and not with_leaving and found[1].HasField("leaving_since"):
                found = None
            yield at, name, message(found, with_access=with_access) if found is not None else None


def message(entry: tuple[int, Any, Any], *, with_access: bool) -> Any:
    """Return the message to send, a copy."""
    version, cluster, access = entry
    copy = discovery_pb2.Cluster()
    copy.CopyFrom(cluster)
    copy.version = version
    if with_access and access is not None:
        copy.access.CopyFrom(access)
    return copy
