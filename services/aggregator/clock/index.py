"""The newest marker of every (cluster, namespace, name), tombstones of the window included.

Most keys live on one cluster: their slot is the marker itself; only keys that several clusters hold (or held
within the window) have a list. Everything but iteration is O(clusters that hold the key).
"""

from __future__ import annotations

from collections.abc import Iterator

from _fastpath.listing import Item
from _fastpath.marker import Marker, NameTable, numbers

Slot = Marker | list[Marker]


def elder(one: Marker) -> int:
    """Sort key of markers that hold the same key: the older object is shown."""
    return one.since


class Index:
    """Owned by one resource's state; changed by it alone."""

    def __init__(self) -> None:
        self._spaces: dict[str, NameTable] = {}
        self._sorted: dict[str, list[str]] = {}
        self.live = 0
        """Markers that are not deleted."""
        self.hidden = 0
        """Live markers behind an older object of the same key."""
        self.size = 0

    def slot(self, namespace: str, name: str) -> Slot | None:
        """What is stored under a key."""
        space = self._spaces.get(namespace)
        return None if space is None else space.get(name)

    def get(self, cluster: str, namespace: str, name: str) -> Marker | None:
        """The newest state of one cluster's object."""
        slot = self.slot(namespace, name)
        if slot is None:
            return None
        if isinstance(slot, list):
            return next((one for one in slot if one.cluster == cluster), None)
        return slot if slot.cluster == cluster else None

    def markers(self, namespace: str, name: str) -> list[Marker]:
        """All clusters' newest states under a key."""
        slot = self.slot(namespace, name)
        if slot is None:
            return []
        return list(slot) if isinstance(slot, list) else [slot]

    def shown(self, namespace: str, name: str) -> Marker | None:
        """The live marker that merged views show: the oldest by `since`."""
        slot = self.slot(namespace, name)
        if slot is None:
            return None
        if not isinstance(slot, list):
            return None if slot.deleted else slot
        return min((one for one in slot if not one.deleted), key=elder, default=None)

    def numbers(self, items: list[Item], clusters: list[str], incarnations: list[str], version: int) -> list[int]:
        """The fleet version of each item; 0 where it does not follow from the key's one marker (see `marker.numbers`)."""
        return numbers(self._spaces, items, clusters, incarnations, version)

    def is_clash(self, namespace: str, name: str) -> bool:
        """Do several clusters hold a live object of this key?"""
        slot = self.slot(namespace, name)
        return isinstance(slot, list) and sum(not one.deleted for one in slot) > 1

    def put(self, marker: Marker) -> None:
        """Replace the cluster's state under the marker's key."""
        namespace, name = marker.namespace, marker.name
        space = self._spaces.get(namespace)
        if space is None:
            space = self._spaces[namespace] = NameTable()
        slot = space.get(name)
        before = self._alive(slot)
        if slot is None:
            space.put(marker)
            self._sorted.pop(namespace, None)
            self.size += 1
        elif isinstance(slot, list):
            length = len(slot)
            slot[:] = [*(one for one in slot if one.cluster != marker.cluster), marker]
            self.size += len(slot) - length
        elif slot.cluster == marker.cluster:
            space.put(marker)
        else:
            space.put([slot, marker])
            self.size += 1
        self._account(before, self._alive(space.get(name)))

    def remove(self, cluster: str, namespace: str, name: str) -> None:
        """Forget a tombstone."""
        space = self._spaces.get(namespace)
        slot = space.get(name) if space is not None else None
        if space is None or slot is None:
            return
        before = self._alive(slot)
        held = len(slot) if isinstance(slot, list) else 1
        rest = [one for one in (slot if isinstance(slot, list) else [slot]) if one.cluster != cluster]
        if len(rest) > 1:
            space.put(rest)
        elif rest:
            space.put(rest[0])
        else:
            space.remove(name)
            self._sorted.pop(namespace, None)
            if not len(space):
                del self._spaces[namespace]
        self.size -= held - len(rest)
        self._account(before, sum(not one.deleted for one in rest))

    @staticmethod
    def _alive(slot: Slot | None) -> int:
        if slot is None:
            return 0
        if isinstance(slot, list):
            return sum(not one.deleted for one in slot)
        return 0 if slot.deleted else 1

    def _account(self, before: int, after: int) -> None:
        self.live += after - before
        self.hidden += max(after - 1, 0) - max(before - 1, 0)

    def __iter__(self) -> Iterator[Marker]:
        """All markers, tombstones included, in no order."""
        for space in self._spaces.values():
            for slot in space.slots_now():
                if isinstance(slot, list):
                    yield from slot
                else:
                    yield slot

    def iter_live(self, namespace: str = "") -> Iterator[Marker]:
        """Live markers in key order; without `namespace` those of all. Safe against changes meanwhile."""
        for space in [namespace] if namespace else sorted(self._spaces):
            for name in self._names(space):
                slot = self.slot(space, name)
                if slot is None:
                    continue
                if isinstance(slot, list):
                    yield from sorted((one for one in slot if not one.deleted), key=elder)
                elif not slot.deleted:
                    yield slot

    def namespaces(self) -> list[str]:
        """Namespaces with markers, in no order."""
        return list(self._spaces)

    def _names(self, namespace: str) -> list[str]:
        names = self._sorted.get(namespace)
        if names is None:
            # Sorted again after names came or went: an ordered structure would cost every event instead.
            names = self._sorted[namespace] = (
                sorted(space.names()) if (space := self._spaces.get(namespace)) else []
            )
        return names
