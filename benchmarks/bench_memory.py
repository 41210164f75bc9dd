"""Memory per tracked object and per log entry: resident size before and after, figures per object.

Method: N objects with names as ReplicaSets make them, in 50 namespaces of 10 clusters, 500 label sets; each put
once (index), then a fifth of them changed once (the state before stays in the log). RSS is read from the kernel
after a collection. At 1,000,000 it takes two minutes. Run: python benchmarks/bench_memory.py [--short] [N]
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import uuid
from pathlib import Path

from report import line

from _fastpath.marker import Marker
from services.aggregator.clock.state import Change, State

CLUSTERS, NAMESPACES, SETS, BATCH = 10, 50, 500, 124
AHEAD = 1240
"""Markers that are made before they are put: what a feed's queue holds. More would be measured as the log's."""


def resident() -> int:
    """Bytes of RSS."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def put(state: State, markers: list[Marker]) -> None:
    """One revision of etcd for each batch."""
    for start in range(0, len(markers), BATCH):
        batch = markers[start : start + BATCH]
        state.apply(Change(state.revision + 1, list(enumerate(batch))))


def make(number: int, version: int) -> Marker:
    """An object's marker, its strings its own as a feed makes them."""
    pick = random.Random(number)
    owner = number % SETS
    name = f"web-{owner:04d}-{pick.randrange(16**10):010x}-{pick.randrange(36**4):05d}"
    life = f"00000000-0000-4000-8000-{number % CLUSTERS:012d}/0"
    labels = {"app": f"web-{owner:04d}", "pod-template-hash": f"{owner:010x}", "tier": "front"}
    uid = str(uuid.UUID(int=pick.getrandbits(128), version=4))
    return Marker(
        f"cluster-{number % CLUSTERS}", life, f"team-{number % NAMESPACES}", name, uid, version, labels
    )


def main(count: int) -> None:
    """Measure and print."""
    state = State(1_700_000_000_000, 1)
    before = resident()
    for start in range(0, count, AHEAD):
        put(state, [make(number, number + 1) for number in range(start, min(start + AHEAD, count))])
    # Out of the window: what is left is the index.
    while state.trim(state.revision):
        pass
    tracked = resident()
    line("memory per tracked object", (tracked - before) / count, "bytes", 200, at_least=False)
    changed = count // 5
    for start in range(0, changed, AHEAD):
        numbers = range(start, min(start + AHEAD, changed))
        put(state, [make(number, count + number + 1) for number in numbers])
    line("memory per log entry", (resident() - tracked) / changed, "bytes", 100, at_least=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("count", type=int, nargs="?", default=1_000_000)
    given = parser.parse_args()
    main(10_000 if given.short else given.count)
