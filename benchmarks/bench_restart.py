"""Restart with many markers: until the aggregator serves lists and resumed watches again.

Method: members (simulated) hold the pods, the aggregator numbers all of them into a real etcd, is stopped in order and started
again; the clock runs until it has answered a list of all members. A start without markers, which lists and numbers
everything, is printed beside it. The full run of 1,000,000 takes some minutes and 6 GB, nearly all of it the members'.

    python benchmarks/bench_restart.py [--short] [--objects N]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import uvloop
from report import line, note

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.sim_fleet import SimFleet, cpu, resident


async def run(objects: int, members: int) -> None:
    """Measure and print."""
    async with SimFleet.start(members, objects) as fleet:
        note(f"first start with {objects} objects over {members} members", fleet.ready_seconds, "s")
        note("resident memory of the aggregator per object", resident(*fleet.serving()) * (1 << 20) / objects, "bytes")
        await fleet.stop_aggregator()
        took = await fleet.start_aggregator()
        line(f"restart with {objects} markers until serving", took, "s", 20, at_least=False)
        note("the aggregator's CPU until then", cpu(*fleet.serving()), "s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--objects", type=int, default=1_000_000)
    given = parser.parse_args()
    uvloop.run(run(1000 if given.short else given.objects, 2 if given.short else 10))
