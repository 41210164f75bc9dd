"""What waits in a cluster's queue: events (markers), bookmarks, and runs that stand for many puts.

A queue keeps its cluster's order. A run is expanded against the committed state when it comes to the head, so
nothing of its cluster may be in the batch being built then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from _fastpath.marker import DIFF, Marker, of_cluster
from services.aggregator.clock.state import State


def by_key(one: Marker) -> tuple[str, str]:
    """(namespace, name)."""
    return one.namespace, one.name


@dataclass(slots=True)
class Bookmark:
    """The cluster says that nothing happened up to `version`; `forced` writes the position even if it stays."""

    version: int
    forced: bool = False


@dataclass(slots=True)
class DiffRun:
    """A whole list of a cluster, as of `version`: what differs from the markers becomes puts.

    `items` are markers as they would be put; nothing else may change the cluster's markers meanwhile.
    """

    cluster: str
    version: int
    incarnation: str
    items: Sequence[Marker]
    puts: deque[Marker] | None = None

    def expand(self, state: State) -> None:
        """Compare with the markers. Deletions first, then changes in the member's order. O(markers)."""
        items = {(one.namespace, one.name): one for one in self.items}
        self.items = ()
        gone: list[Marker] = []
        for live in of_cluster(state.index, self.cluster):
            there = items.get((live.namespace, live.name))
            if there is None or not there.same_object(live):
                gone.append(live.rewritten(
                    DIFF, deleted=True, version=self.version, incarnation=self.incarnation
                ))  # fmt: skip
            elif there.same_state(live):
                del items[live.namespace, live.name]
        gone.sort(key=by_key)
        changed = sorted(items.values(), key=lambda one: one.version)
        self.puts = deque(gone + changed)


@dataclass(slots=True)
class GapRun:
    """Every live object of a cluster is put anew, then its gap key goes if it is still of `revision`."""

    cluster: str
    revision: int
    names: deque[tuple[str, str]] | None = None
    bound: int = 0

    def expand(self, state: State) -> None:
        """Take down the live objects. Those numbered after the gap need nothing: no answer that left this
        cluster out has a version above the gap's, so every watch that follows one gets them."""
        self.bound = state.fleet(self.revision, 127)
        live = of_cluster(state.index, self.cluster)
        self.names = deque(sorted(by_key(one) for one in live if one.fleet <= self.bound))


@dataclass(slots=True)
class LeaveRun:
    """One DELETED per object of a cluster, then its position and gap go."""

    cluster: str
    names: deque[tuple[str, str]] | None = None

    def expand(self, state: State) -> None:
        """Take down the live objects."""
        self.names = deque(sorted(by_key(one) for one in of_cluster(state.index, self.cluster)))


Work = Marker | Bookmark | DiffRun | GapRun | LeaveRun
Run = (DiffRun, GapRun, LeaveRun)


@dataclass(slots=True)
class Purge:
    """Tombstones that leave etcd: a transaction of its own."""

    markers: list[Marker] = field(default_factory=list)
