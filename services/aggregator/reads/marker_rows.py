"""Version markers in the order of a list, and as one stream of changes: neither holds more than a page of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from _fastpath.marker import Marker
from services.aggregator.clock.cursor import Cursor
from services.aggregator.clock.position import Position
from services.aggregator.reads.marker_objects import (
    DEFAULT,
    bookmark_name,
    bookmark_object,
    marker_name,
    marker_object,
)

if TYPE_CHECKING:
    from services.aggregator.clock.clock import ResourceClock

PAGE = 512
"""Entries of one resource that are held ahead."""
SLICE = 1000
"""Markers after which others have their turn."""

Clocks = list["ResourceClock"]


@dataclass(frozen=True, slots=True)
class Row:
    """One object of a list before it is made: an object takes twenty times the room."""

    namespace: str
    name: str
    clock: ResourceClock
    what: Marker | tuple[str, Position]

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def cluster(self) -> str:
        return self.what[0] if isinstance(self.what, tuple) else self.what.cluster

    def object(self) -> dict[str, Any]:
        """The whole object."""
        if isinstance(self.what, tuple):
            return bookmark_object(self.clock, *self.what)
        return marker_object(self.clock, self.what)


class Rows:
    """Rows behind the key `after` as of a fleet version (0: whatever is there), namespace by namespace: memory is that
    of the largest one."""

    def __init__(self, clocks: Clocks, namespace: str, version: int, after: str = "") -> None:
        self._clocks, self._version, self._after = clocks, version, after
        # Keys are ordered as text; "0" comes behind the slash, so behind all keys of a namespace.
        self.namespaces = [one for one in ([namespace] if namespace else self._all()) if f"{one}0" > after]

    def _all(self) -> list[str]:
        spaces = {DEFAULT}
        for clock in self._clocks:
            if clock.aggregated.namespaced:
                spaces.update(clock.state.index.namespaces())
        return sorted(spaces, key=lambda one: f"{one}/")

    async def of(self, namespace: str) -> list[Row]:
        """One namespace's, by name."""
        rows = []
        for number, (clock, marker) in enumerate(self._markers(namespace)):
            one = self._as_of(clock, marker)
            if one is not None:
                rows.append(Row(namespace, marker_name(clock, one), clock, one))
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
        if namespace == DEFAULT:
            rows += [
                Row(namespace, bookmark_name(clock, cluster), clock, (cluster, position))
                for clock in self._clocks for cluster, position in positions_of(clock)
            ]  # fmt: skip
        return sorted((row for row in rows if row.key > self._after), key=lambda row: row.name)

    async def count(self, namespaces: Iterable[str]) -> int:
        """How many there are in these namespaces."""
        count = 0
        for namespace in namespaces:
            for number, _ in enumerate(self._markers(namespace)):
                count += 1
                if number % (8 * SLICE) == 8 * SLICE - 1:
                    await asyncio.sleep(0)
            if namespace == DEFAULT:
                count += sum(len(positions_of(clock)) for clock in self._clocks)
        return count

    async def __aiter__(self) -> AsyncIterator[Row]:
        for namespace in self.namespaces:
            for row in await self.of(namespace):
                yield row

    def _markers(self, namespace: str) -> Iterator[tuple[ResourceClock, Marker]]:
        for clock in self._clocks:
            if clock.aggregated.namespaced:
                found: Iterable[Marker] = clock.iter_markers(namespace)
            else:
                found = clock.iter_markers() if namespace == DEFAULT else ()
            for marker in found:
                yield clock, marker

    def _as_of(self, clock: ResourceClock, marker: Marker) -> Marker | None:
        """What came since is told by a watch from that version."""
        if marker.fleet <= self._version or not self._version:
            return marker
        before = clock.state.marker_at(marker.cluster, marker.namespace, marker.name, self._version)
        return None if before is None or before.deleted else before


def positions_of(clock: ResourceClock) -> list[tuple[str, Position]]:
    """Positions of the members that have one."""
    return [(name, member.position) for name, member in clock.members.items() if member.position is not None]


class Merged:
    """Several logs as one, in fleet order. A page of each is held, however far behind the cursors begin."""

    def __init__(self, cursors: Mapping[ResourceClock, Cursor]) -> None:
        self._sources = [(clock, cursor, deque[Marker]()) for clock, cursor in cursors.items()]

    def upto(self, bound: int) -> Iterator[tuple[ResourceClock, Marker]]:
        """Entries up to `bound`, up to which every log is complete; may be left alone between two of them.
        StatusError 410 when a log has dropped what was not taken yet."""
        while True:
            heads = [
                (page[0].fleet, at) for at, (_, cursor, page) in enumerate(self._sources) if _filled(cursor, page)
            ]
            fleet, at = min(heads, default=(bound + 1, 0))
            if fleet > bound:
                return
            clock, _, page = self._sources[at]
            yield clock, page.popleft()

    @property
    def waiting(self) -> bool:
        """Is there something that may be told once every log is complete up to it?"""
        return any(page for _, _, page in self._sources)


def _filled(cursor: Cursor, page: deque[Marker]) -> bool:
    if not page:
        page.extend(cursor.take(PAGE))
    return bool(page)
