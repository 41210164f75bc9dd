"""Which member versions a past fleet version stands for. Pure."""

from __future__ import annotations

from dataclasses import replace

from _fastpath.marker import EVENT, Marker
from services.aggregator.clock.position import Position
from services.aggregator.clock.state import State
from services.aggregator.clock.view import Snapshot
from services.common.errors import expired


def vector_of(state: State, version: int, positions: dict[str, Position]) -> Snapshot:
    """`positions` are those of `version`'s revision. A version may stand in the middle of its transaction:
    then what comes behind it there is taken back. StatusError 410 where no vector exists."""
    out = dict(positions)
    for cluster, rest in _behind(state, version).items():
        if cluster in out:
            out[cluster] = _taken_back(state, version, out[cluster], rest)
    if any(position.diff for position in out.values()):
        raise expired(f"resource version {version} lies inside a relist of a cluster: list again")
    return Snapshot(version, out, [])


def _behind(state: State, version: int) -> dict[str, list[Marker]]:
    """Entries of the version's own transaction that are above it, by cluster."""
    log, last = state.log, version | 127
    found: dict[str, list[Marker]] = {}
    for one in log.entries[log.after(version) - log.dropped : log.after(last) - log.dropped]:
        found.setdefault(one.cluster, []).append(one)
    return found


def _taken_back(state: State, version: int, position: Position, rest: list[Marker]) -> Position:
    """The position as of an entry before `rest`."""
    events = [one for one in rest if one.kind == EVENT]
    if len(events) != len(rest):
        if events or any(one.version > position.read or one.deleted for one in rest):
            raise expired(f"resource version {version} lies inside a relist of a cluster: list again")
        return position  # rewrites: they change no member version
    read = min(one.version for one in events) - 1
    before = _last_event(state, version, rest[0].cluster)
    if before > read:
        raise expired(f"resource version {version} lies between events of one member version: list again")
    return replace(position, read=read, resume=min(position.resume, read))


def _last_event(state: State, version: int, cluster: str) -> int:
    """Member version of the cluster's last event of the same transaction at or below `version`."""
    log, first = state.log, version & ~127
    entries = log.entries[log.after(first - 1) - log.dropped : log.after(version) - log.dropped]
    return max((one.version for one in entries if one.cluster == cluster and one.kind == EVENT), default=0)
