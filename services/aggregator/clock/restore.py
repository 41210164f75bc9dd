"""Was a cluster set back to a backup while nobody looked? Pure comparison of its lists with the markers."""

from __future__ import annotations

from collections.abc import Iterable

from _fastpath.marker import Marker
from services.aggregator.clock.position import Position
from services.aggregator.clock.state import State


def differs_at_read(position: Position, live: Iterable[Marker], listed: Iterable[Marker]) -> bool:
    """Does the list Exact at `read` show another history than the markers?

    While a run of events with one version is open (`resume` < `read`), an object below `read` may be gone
    already; its deletion comes with the rest of the run.
    """
    there = {(one.namespace, one.name): one for one in listed}
    for one in live:
        item = there.pop((one.namespace, one.name), None)
        if item is None:
            if position.resume == position.read or one.version >= position.read:
                return True
        elif not item.same_object(one) or item.version != one.version:
            return True
    return bool(there)


def differs_at_resume(
    state: State, position: Position, cluster: str, live: Iterable[Marker], listed: Iterable[Marker]
) -> bool:
    """Does the list Exact at `resume` (before the open run) show another history than the markers?

    What the run did already (markers at `read`) is not there yet; all else must be.
    """
    there = {(one.namespace, one.name): one for one in listed}
    for one in live:
        if one.version > position.resume:
            continue
        item = there.pop((one.namespace, one.name), None)
        if item is None or not item.same_object(one) or item.version != one.version:
            return True
    for namespace, name in there:
        newest = state.index.get(cluster, namespace, name)
        if newest is None or newest.version <= position.resume:
            return True
    return False
