"""Division of replicas over clusters: Webster's method (the next seat goes to the largest votes/(2·seats+1)).

Divisions are sticky: growing hands out only the new seats, shrinking takes from whoever is furthest above
its share, so that no replica moves that need not.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

BULK = 4096
"""Seats handed out one by one; of a larger growth the rest is given proportionally first."""


def grow(
    current: Mapping[str, int], votes: Mapping[str, int], seats: int, caps: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Hand out `seats` more seats over the parties of `votes`, on top of `current`.

    `caps` bounds a party's total; what no cap allows is not handed out, so the sum may be short of
    `current + seats`. Parties without votes get nothing. Ties go to the first name. O(seats · log parties).
    """
    result = dict(current)
    room = {name: caps.get(name, 0) - result.get(name, 0) if caps is not None else seats for name in votes}
    seats = _grow_in_bulk(result, votes, seats, room)
    heap = [
        (-_quotient(count, 2 * result.get(name, 0) + 1), name)
        for name, count in votes.items()
        if count > 0 and room[name] > 0
    ]
    heapq.heapify(heap)
    while seats > 0 and heap:
        _, name = heap[0]
        result[name] = result.get(name, 0) + 1
        room[name] -= 1
        seats -= 1
        if room[name] > 0:
            heapq.heapreplace(heap, (-_quotient(votes[name], 2 * result[name] + 1), name))
        else:
            heapq.heappop(heap)
    return result


def _grow_in_bulk(result: dict[str, int], votes: Mapping[str, int], seats: int, room: dict[str, int]) -> int:
    """Give all but `BULK` seats by whole proportional parts; returns the seats that are left."""
    total = sum(count for count in votes.values() if count > 0)
    if seats <= BULK or not total:
        return seats
    spread = seats - BULK
    for name, count in votes.items():
        part = min(max(count, 0) * spread // total, max(room[name], 0))
        result[name] = result.get(name, 0) + part
        room[name] -= part
        seats -= part
    return seats


def shrink(current: Mapping[str, int], votes: Mapping[str, int], seats: int) -> dict[str, int]:
    """Take `seats` seats away, each from the party furthest above its share.

    A party that `votes` does not name, or gives none, loses its seats first. Parties keep >= 0 seats.
    """
    result = {name: count for name, count in current.items() if count > 0}
    seats = min(seats, sum(result.values()))
    seats = _shrink_in_bulk(result, votes, seats)
    heap = [(_excess(votes.get(name, 0), count), name) for name, count in result.items()]
    heapq.heapify(heap)
    while seats > 0:
        _, name = heap[0]
        result[name] -= 1
        seats -= 1
        if result[name] > 0:
            heapq.heapreplace(heap, (_excess(votes.get(name, 0), result[name]), name))
        else:
            heapq.heappop(heap)
            del result[name]
    return result


def _shrink_in_bulk(result: dict[str, int], votes: Mapping[str, int], seats: int) -> int:
    """Take most of `seats` at once, the same ones as one by one; returns the few that are left. O(parties · log seats).

    A mistyped `kubectl scale` is taken back in a billion seats, which one by one would stop everything else for minutes.
    """
    if seats <= BULK:
        return seats
    for name in sorted(name for name in result if votes.get(name, 0) <= 0):
        part = min(result[name], seats)
        result[name], seats = result[name] - part, seats - part
        if not result[name]:
            del result[name]
    keep = sum(result.values()) - seats

    def kept(quotient: int) -> dict[str, int]:
        """Seats that were won with at least this quotient."""
        return {n: min(c, ((votes.get(n, 0) << 64) // quotient + 1) // 2) for n, c in result.items()}

    low, high = 0, max((votes.get(name, 0) for name in result), default=0) << 64
    while seats and low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if sum(kept(middle).values()) >= keep else (low, middle - 1)
    if seats and low:
        for name, count in kept(low).items():
            seats -= result[name] - count
            result[name] = count
            if not count:
                del result[name]
    return seats


def _excess(votes: int, seats: int) -> int:
    """The quotient with which a party won its last seat: the smallest loses it first."""
    return _quotient(max(votes, 0), 2 * seats - 1)


def _quotient(votes: int, divisor: int) -> int:
    """votes/divisor in 1/2^64: different quotients of less than 2^31 seats never become equal, equal ones stay so."""
    return (votes << 64) // divisor


def resize(
    current: Mapping[str, int], votes: Mapping[str, int], total: int, caps: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Bring the sum of `current` to `total`, stickily; parties of `current` without votes only shrink.

    With `caps`, seats that no cap allows overflow by votes, ignoring the caps: pods then wait on their
    cluster, as Kubernetes users expect, instead of not existing. Parties that end at 0 are left out.
    """
    have = sum(current.values())
    if total < have:
        return shrink(current, votes, have - total)
    result = grow(current, votes, total - have, caps)
    missing = total - sum(result.values())
    if missing > 0 and caps is not None:
        overflow = votes if any(count > 0 for count in votes.values()) else dict.fromkeys(votes, 1)
        result = grow(result, overflow, missing)
    return {name: count for name, count in result.items() if count > 0}
