"""Budgets that need many members: lists over ten, latency at ten and a hundred, the start with 20,000 pods.

Method: simulated members in one process (real ones for a hundred clusters would not fit on the machine). For the list every
member answers each list only after a while (a fault of the simulation), so that a front that asked one after the other would
be ten times as slow; what 10,000 pods cost as bytes is the time in which one member without that delay sends as many.

    python benchmarks/bench_fleet.py [--short] [--only list,latency,start]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import uvloop
from report import line, note

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.latency import added
from benchmarks.sim_fleet import PODS, SimFleet, cpu, resident
from services.common.kube.client import KubeClient


async def seconds(client: KubeClient, path: str = PODS) -> float:
    """One list, read to its end."""
    began = time.perf_counter()
    async with client.stream("GET", path) as answer:
        async for _ in answer.content.iter_any():
            pass
    return time.perf_counter() - began


async def lists(pods: int, delay: float, runs: int) -> None:
    """A list over ten members against the slowest member's own."""
    async with SimFleet.start(1, pods) as one:
        bytes_cost = statistics.median([await seconds(one.members[0]) for _ in range(runs)])
    async with SimFleet.start(10, pods) as fleet:
        await seconds(fleet.front)
        plain = statistics.median([await seconds(fleet.front) for _ in range(runs)])
        for number in range(10):
            await fleet.fault(f"m{number}", "fault", kind="delay", verbs=["list"], seconds=delay)
        through, own = [], []
        for _ in range(runs):
            through.append(await seconds(fleet.front))
            own.append(max([await seconds(client) for client in fleet.members[:3]]))
        goal = 1.3 * statistics.median(own) + bytes_cost
        figure = statistics.median(through)
        note(f"list of {pods} pods over 10 members without delay / one member with as many", plain / bytes_cost, "x")
        name = f"list of {pods} pods over 10 members that take {delay:g} s each, the sum would be {10 * delay:g}"
        line(name, figure, "s", round(goal, 3), at_least=False)


async def latency(members: int, rate: int, duration: float) -> None:
    """Added over watching the members directly."""
    async with SimFleet.start(members, max(1000, members * 10)) as fleet:
        (p50, p99), event = await added(fleet, rate, duration)
        line(f"added watch latency, {members} members, {rate} events/s, p50", p50, "ms", 3, at_least=False)
        line(f"added watch latency, {members} members, {rate} events/s, p99", p99, "ms", 15, at_least=False)
        note(f"CPU per event, {members} members, one watch", event * 1e3, "ms")


async def start(pods: int) -> None:
    """From nothing to the first whole list, and the same after a restart."""
    async with SimFleet.start(2, pods) as fleet:
        line(f"services' start to the first list with {pods} pods, no markers yet", fleet.ready_seconds, "s", 2, at_least=False)
        note("the aggregator's CPU in that", cpu(*fleet.serving()), "s")
        await fleet.stop_aggregator()
        line(f"the aggregator's start to the first list with {pods} markers", await fleet.start_aggregator(), "s", 2, at_least=False)
        note("its CPU in that", cpu(*fleet.serving()), "s")
        note("its memory then", resident(*fleet.serving()), "MiB")


async def run(only: list[str], *, short: bool) -> None:
    """What was asked for."""
    if "list" in only:
        await lists(200 if short else 10_000, 0.1 if short else 0.5, 1 if short else 3)
    if "latency" in only:
        for members in (2,) if short else (10, 100):
            await latency(members, 100 if short else 1000, 1 if short else 8)
    if "start" in only:
        await start(200 if short else 20_000)


def main() -> None:
    """Arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--only", default="list,latency,start")
    given = parser.parse_args()
    uvloop.run(run(given.only.split(","), short=given.short))


if __name__ == "__main__":
    main()
