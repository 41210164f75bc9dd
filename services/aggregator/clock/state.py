"""What one resource's keys in etcd amount to: index, log, positions, gaps. Pure: no await, no clock.

`apply` is the only way in, one etcd revision at a time and in order: the leader applies its own commits, a
restarted one what etcd's history says, and both come to the same log.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from _fastpath.marker import CLASH, Marker
from services.aggregator.clock import version
from services.aggregator.clock.index import Index
from services.aggregator.clock.log import Log
from services.aggregator.clock.position import Position

HIDDEN, ADDED, MODIFIED, DELETED = range(4)


@dataclass(slots=True)
class Change:
    """What one revision of etcd did to one resource."""

    revision: int
    markers: list[tuple[int, Marker]] = field(default_factory=list)
    """(index in the transaction, marker), in index order."""
    positions: dict[str, Position | None] = field(default_factory=dict)
    """None: deleted."""
    gaps: dict[str, bool] = field(default_factory=dict)
    """False: deleted."""
    purged: list[tuple[str, str, str]] = field(default_factory=list)
    """(cluster, namespace, name) of tombstones that went."""

    def __bool__(self) -> bool:
        return bool(self.markers or self.positions or self.gaps or self.purged)


class State:
    """State of one resource as of `revision`. Owned by its ResourceClock's sequencer task."""

    def __init__(self, base: int, revision: int = 0) -> None:
        self.base = base
        self.revision = revision
        self.index = Index()
        self.log = Log()
        self.positions: dict[str, Position] = {}
        self.position_revisions: dict[str, int] = {}
        self.gaps: dict[str, int] = {}
        """Cluster -> mod_revision of its gap key."""
        self.head = self.fleet(revision)
        self.live: dict[str, int] = {}
        """Cluster -> its live markers."""
        self.tombs: list[Marker] = []
        """Tombstones behind the window that are still in etcd, oldest first."""

    def fleet(self, revision: int, index: int = 0) -> int:
        """The fleet version of a place in etcd's history."""
        return version.encode(self.base, revision, index)

    @property
    def floor(self) -> int:
        """Versions below it cannot be resumed."""
        return max(self.log.floor, self.base << version.INDEX_BITS)

    def load_marker(self, revision: int, index: int, marker: Marker) -> None:
        """Take a marker of the state before the log's start."""
        fleet = self.fleet(revision, index)
        marker.stamp(fleet, HIDDEN, None)
        self._store(marker)
        self.log.floor = max(self.log.floor, fleet)
        if marker.deleted:
            self.tombs.append(marker)

    def apply(self, change: Change) -> int:
        """Apply one revision; return how many shown entries it added. O(changed keys)."""
        shown = 0
        for index, marker in change.markers:
            fleet = self.fleet(change.revision, index)
            shown += self._put(marker, fleet)
            self.head = fleet
        for cluster, position in change.positions.items():
            if position is None:
                self.positions.pop(cluster, None)
                if not self.live.get(cluster):
                    self.live.pop(cluster, None)
                self.position_revisions.pop(cluster, None)
            else:
                self.positions[cluster] = position
                self.position_revisions[cluster] = change.revision
        for cluster, there in change.gaps.items():
            self.see_gap(cluster, change.revision if there else 0)
        for cluster, namespace, name in change.purged:
            self._purge(cluster, namespace, name)
        self.pass_revision(change.revision)
        return shown

    def _purge(self, cluster: str, namespace: str, name: str) -> None:
        gone = self.index.get(cluster, namespace, name)
        if gone is not None:
            # Another replica's window may begin before the sequencer's: what it had of this key it has no more.
            self.log.floor = max(self.log.floor, gone.fleet)
            self.index.remove(cluster, namespace, name)

    def _put(self, marker: Marker, fleet: int) -> int:
        namespace, name, cluster = marker.namespace, marker.name, marker.cluster
        before = self.index.shown(namespace, name)
        prev = self.index.get(cluster, namespace, name)
        was_shown = before is not None and before.cluster == cluster
        if marker.deleted:
            kind = DELETED if was_shown else HIDDEN
        elif was_shown:
            # The next object of a clash: its predecessor's DELETED stands right before it in this transaction.
            kind = ADDED if marker.kind == CLASH else MODIFIED
        else:
            kind = ADDED if before is None else HIDDEN
        marker.stamp(fleet, kind, prev)
        self._store(marker)
        self.log.append(marker)
        return 1 if kind else 0

    def _store(self, marker: Marker) -> None:
        index, cluster = self.index, marker.cluster
        before = index.live
        index.put(marker)
        if index.live != before:
            self.live[cluster] = self.live.get(cluster, 0) + index.live - before

    def see_gap(self, cluster: str, revision: int) -> None:
        """The gap key was put at `revision`; 0: it is gone."""
        if revision:
            self.gaps[cluster] = max(revision, self.gaps.get(cluster, 0))
        else:
            self.gaps.pop(cluster, None)

    def pass_revision(self, revision: int) -> None:
        """All of etcd's history up to `revision` is in the log."""
        self.revision = max(self.revision, revision)
        self.head = max(self.head, self.fleet(self.revision))

    def clusters(self) -> set[str]:
        """Clusters of which something is stored."""
        return set(self.positions) | set(self.gaps)

    def trim(self, revision: int, limit: int = 2000) -> int:
        """Drop entries up to etcd's `revision` from the log, `limit` at most; return how many."""
        if revision <= 0:
            return 0
        dropped = self.log.drop(self.fleet(revision, version.MAX_INDEX), limit)
        self.tombs += [one for one in dropped if one.deleted]
        return len(dropped)

    def purgeable(self, limit: int) -> list[Marker]:
        """Tombstones that may leave etcd: behind the window, not replaced since, and not the resource's newest put.

        The newest stays because a restart learns the log's floor from what is in etcd.
        """
        last = self.log.last
        newest = last.fleet if last is not None else self.log.floor
        out: list[Marker] = []
        kept: list[Marker] = []
        seen = 0
        for one in self.tombs:
            if len(out) >= limit:
                break
            seen += 1
            if self.index.get(one.cluster, one.namespace, one.name) is not one:
                continue
            if one.fleet == newest:
                kept.append(one)
            else:
                out.append(one)
        # Those given out stay, the oldest first, until they are purged.
        self.tombs = out + kept + self.tombs[seen:]
        return out

    def forget_purged(self) -> None:
        """Let go of tombstones that have left etcd, where another process purges them. O(tombstones)."""
        self.tombs = [one for one in self.tombs if self.index.get(one.cluster, one.namespace, one.name) is one]

    # History within the window.

    def marker_at(self, cluster: str, namespace: str, name: str, fleet: int) -> Marker | None:
        """One cluster's state of a key as of `fleet`, which must not be below the floor; tombstones included."""
        one = self.index.get(cluster, namespace, name)
        while one is not None and one.fleet > fleet:
            one = one.prev
        return one

    def shown_at(self, namespace: str, name: str, fleet: int) -> Marker | None:
        """The marker that merged views showed as of `fleet`."""
        found: Marker | None = None
        for newest in self.index.markers(namespace, name):
            one: Marker | None = newest
            while one is not None and one.fleet > fleet:
                one = one.prev
            if one is not None and not one.deleted and (found is None or one.since < found.since):
                found = one
        return found
