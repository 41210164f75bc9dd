"""How figures grow with members and with objects: one table, plain or as Markdown.

Method: simulated members in one process, a real etcd, discovery and the aggregator, each a process of its own. For each row a
fleet is brought up from nothing; then it stands idle (CPU per member), one client gets a pod, lists a page of limit=500 and a namespace of 10
pods, in turn with the member itself; then pods change at a rate while one watch follows the front (CPU per event) and others
the members (their difference is the latency added); then the aggregator is stopped in order and started again on its markers.
CPU is the aggregator's own. Growth is judged between rows: exponents of figure over members, or objects.

    python benchmarks/bench_growth.py [--short] [--markdown FILE] [--members 1,10,100,1000] [--objects 10000,100000,1000000]
"""

from __future__ import annotations

import argparse
import asyncio
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import uvloop
from report import line, note

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.latency import added
from benchmarks.sim_fleet import SimFleet, cpu, resident
from services.common.kube.client import KubeClient

NAMESPACED = "/api/v1/namespaces/default/pods"
QUIET = "/api/v1/namespaces/quiet/pods"


@dataclass
class Row:
    """One fleet's figures; CPU in the aggregator's milliseconds unless the name says another."""

    members: int
    objects: int
    start_s: float
    start_cpu_s: float
    restart_s: float
    restart_cpu_s: float
    idle_ms_per_s: float
    get_ms: float
    page_ms: float
    quiet_ms: float
    event_us: float
    added_p50_ms: float
    added_p99_ms: float
    rss_mib: float


HEADS = {
    "members": "members", "objects": "objects", "start_s": "start, s", "start_cpu_s": "its CPU, s", "restart_s": "restart, s",
    "restart_cpu_s": "its CPU, s", "idle_ms_per_s": "idle, ms/s", "get_ms": "get, ms", "page_ms": "page of 500, ms",
    "quiet_ms": "list of 10 pods, ms", "event_us": "event, us", "added_p50_ms": "added p50, ms",
    "added_p99_ms": "added p99, ms", "rss_mib": "memory, MiB",
}  # fmt: skip
PER_REQUEST = ("get_ms", "quiet_ms", "page_ms", "event_us")


async def spent(fleet: SimFleet, client: KubeClient, path: str, runs: int) -> float:
    """Milliseconds of the aggregator's CPU per request."""
    await client.request("GET", path)
    pids = fleet.serving()
    began = cpu(*pids)
    for _ in range(runs):
        await client.request("GET", path)
    return (cpu(*pids) - began) / runs * 1000


async def idle(fleet: SimFleet, seconds: float) -> float:
    """Milliseconds of CPU per second while nothing happens: the median of some seconds."""
    found = []
    for _ in range(max(1, round(seconds))):
        began = cpu(*fleet.serving())
        await asyncio.sleep(1)
        found.append((cpu(*fleet.serving()) - began) * 1000)
    return statistics.median(found)


async def row(members: int, objects: int, rate: int, seconds: float, runs: int) -> Row:
    """Bring a fleet up and measure."""
    async with SimFleet.start(members, objects) as fleet:
        start_s, start_cpu = fleet.ready_seconds, cpu(*fleet.serving())
        await asyncio.sleep(min(5.0, seconds))
        still = await idle(fleet, seconds)
        get = await spent(fleet, fleet.front, f"{NAMESPACED}/m0-000000", runs)
        lists = max(3, min(runs // 10, 1000 // members))  # each asks every member
        page = await spent(fleet, fleet.front, f"{NAMESPACED}?limit=500", lists)
        quiet = await spent(fleet, fleet.front, QUIET, lists)
        late, event = await added(fleet, rate, seconds)
        memory = resident(*fleet.serving())
        await fleet.stop_aggregator()
        restart = await fleet.start_aggregator()
        return Row(
            members, objects, start_s, start_cpu, restart, cpu(*fleet.serving()), still, get, page, quiet, event * 1e6,
            late[0], late[1], memory,
        )  # fmt: skip


def table(rows: list[Row], *, markdown: bool) -> str:
    """Aligned text, or Markdown."""
    heads = [HEADS[field.name] for field in fields(Row)]
    cells = [heads] + [[f"{value:.3g}" if isinstance(value, float) else str(value) for value in astuple(one)] for one in rows]
    if markdown:
        cells.insert(1, ["---:"] * len(heads))
        return "\n".join("| " + " | ".join(one) + " |" for one in cells)
    widths = [max(len(one[at]) for one in cells) for at in range(len(heads))]
    return "\n".join("  ".join(text.rjust(width) for text, width in zip(one, widths, strict=True)) for one in cells)


def exponent(small: Row, large: Row, name: str, over: Callable[[Row], float]) -> float:
    """1 is linear, 0 none. Figures below what the kernel's clock can tell count as that."""
    least = 0.05
    return math.log(max(getattr(large, name), least) / max(getattr(small, name), least)) / math.log(over(large) / over(small))


def judge(rows: list[Row], over: Callable[[Row], float], what: str) -> None:
    """Lines of growth between the first and the last row."""
    if len(rows) < 2:
        return
    first, last = rows[0], rows[-1]
    for name in ("start_cpu_s", "restart_cpu_s", "idle_ms_per_s", "rss_mib"):
        line(f"growth with {what}, exponent of {HEADS[name]} ({name})", exponent(first, last, name, over), "", 1.0, at_least=False)
    if what == "objects":
        for name in PER_REQUEST:
            found = exponent(first, last, name, over)
            line(f"growth with {what}, exponent of {HEADS[name]} of CPU", found, "", 0.1, at_least=False)


async def run(members: list[int], objects: list[int], *, short: bool) -> list[Row]:
    """All rows, and what follows from them."""
    rate, seconds, runs = (100, 1.0, 20) if short else (500, 5.0, 200)
    rows: dict[tuple[int, int], Row] = {}
    base_members, base_objects = members[min(1, len(members) - 1)], objects[0]
    for wanted in [*((m, base_objects) for m in members), *((base_members, o) for o in objects)]:
        if wanted not in rows:
            began = time.perf_counter()
            rows[wanted] = await row(*wanted, rate, seconds, runs)
            note(f"growth: {wanted[0]} members, {wanted[1]} objects, measured in", time.perf_counter() - began, "s")
    all_rows = list(rows.values())
    print(table(all_rows, markdown=False), flush=True)
    judge([rows[m, base_objects] for m in members], lambda one: one.members, "members")
    judge([rows[base_members, o] for o in objects], lambda one: one.objects, "objects")
    return all_rows


def numbers(text: str) -> list[int]:
    """`1,10` as a list."""
    return [int(one) for one in text.split(",")]


def main() -> None:
    """Arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--members", type=numbers, default=[1, 10, 100, 1000])
    parser.add_argument("--objects", type=numbers, default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    if given.short:
        given.members, given.objects = [1, 4], [200]
    rows = uvloop.run(run(given.members, given.objects, short=given.short))
    if given.markdown is not None:
        given.markdown.write_text(table(rows, markdown=True) + "\n")


if __name__ == "__main__":
    main()
