"""How long keys waited and work took, from the counts that the fair queue keeps by size (`FairQueue.spreads`)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from _fastpath.fair_queue import BOUNDS, FairQueue


class Spread(NamedTuple):
    """Of one cluster of one controller: how many waits and works were how long; places are those of BOUNDS."""

    controller: str
    cluster: str
    waits: list[int]
    works: list[int]


LIMITS = [2.0**power for power in (-10, -8, -7, -6, -5, -4, -2, 0, 2, 4, 6, 8)]
"""Upper bounds of the buckets that are exported, about 1 ms to 256 s; each is a bound of the queue's own."""


def spreads(controller: str, queue: FairQueue) -> list[Spread]:
    """Of each cluster that was served."""
    return [Spread(controller, *row) for row in queue.spreads()]


def buckets(counts: Sequence[int]) -> list[tuple[str, float]]:
    """(upper bound, how many at most as long) as Prometheus has them."""
    sums = list(accumulate(counts))
    return [(str(limit), float(sums[BOUNDS.index(limit) - 1])) for limit in LIMITS] + [("+Inf", float(sums[-1]))]


def percentile(counts: Sequence[int], share: float) -> float | None:
    """Seconds that `share` of them took at most; right to within a bucket, a third at most. None without any."""
    left = sum(counts) * share
    if not left:
        return None
    for place, count in enumerate(counts):
        if count and left <= count:
            ends = BOUNDS[place + 1] if place + 1 < len(BOUNDS) else BOUNDS[place]
            return BOUNDS[place] + (ends - BOUNDS[place]) * left / count
        left -= count
    return BOUNDS[-1]  # only rounding comes here
