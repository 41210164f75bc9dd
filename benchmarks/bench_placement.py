"""Placement decisions a second, and their latency, with 100 members and 1,000 waiting workloads.

A decision is one whole step of the engine: read the Workload, choose the policy, filter and score all members,
reserve (first fit over nodes), store the winner (compare-and-swap in memory: the host is not what is measured),
confirm, release. Requests differ between workloads, so little can be cached. Times are the process's
CPU time: a decision waits for nothing here, and neighbours on the machine do not count.

`python benchmarks/bench_placement.py [--members 100] [--waiting 1000] [--nodes 10]`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import statistics
import time
from collections.abc import Iterator, Mapping
from typing import Any

from report import line, note

from services.common.fleet import Member
from services.scheduler.admission import LocalAdmission
from services.scheduler.clock import SystemClock
from services.scheduler.engine import Engine
from services.scheduler.fleet import Fleet
from services.scheduler.member import MemberState
from services.scheduler.policy import parse as parse_policy
from services.scheduler.store import StaleError
from services.scheduler.workload import Key, Workload, parse


class MemoryStore:
    """Workloads in memory, compare-and-swap."""

    def __init__(self) -> None:
        self.parsed: dict[Key, Workload] = {}
        self._versions = itertools.count(1)

    def __iter__(self) -> Iterator[Workload]:
        return iter(list(self.parsed.values()))

    def get(self, key: Key) -> Workload | None:
        return self.parsed.get(key)

    async def patch_status(self, workload: Workload, status: Mapping[str, Any]) -> Workload:
        current = self.parsed[workload.key]
        if current.version != workload.version:
            raise StaleError("stale")
        obj = dict(current.obj)
        merged = {**(obj.get("status") or {}), **status}
        obj["status"] = {name: value for name, value in merged.items() if value is not None}
        obj["metadata"] = {**obj["metadata"], "resourceVersion": str(next(self._versions))}
        fresh = self.parsed[workload.key] = parse(obj)
        return fresh

    def create(self, number: int, kind: str, rng: random.Random) -> Key:
        key = Key("default", f"{kind.lower()}-{number}")
        requests = {"cpu": f"{rng.choice((50, 100, 200, 250, 500))}m", "memory": f"{rng.randint(32, 512)}Mi"}
        spec = {
            "owner": {"apiVersion": "batch/v1", "kind": kind, "name": f"w-{number}"},
            "mode": "Single" if kind == "Job" else "Any",
            "podSets": [{"name": "main", "count": 1 if kind == "Job" else 8, "requests": requests}],
        }
        metadata = {
            "namespace": key.namespace, "name": key.name, "uid": key.name, "generation": 1,
            "resourceVersion": str(next(self._versions)), "creationTimestamp": "2026-01-01T00:00:00Z",
        }  # fmt: skip
        self.parsed[key] = parse({"metadata": metadata, "spec": spec})
        return key


def build(members: int, nodes: int) -> tuple[Engine, MemoryStore]:
    fleet, store, clock = Fleet(), MemoryStore(), SystemClock()
    for number in range(members):
        name = f"member-{number:03}"
        state = MemberState(name)
        for index in range(nodes):
            state.upsert_node({
                "metadata": {"name": f"{name}-n{index}", "labels": {"zone": f"z{index % 3}"}},
                "status": {"allocatable": {"cpu": "16", "memory": "64Gi", "pods": "110"}},
            })  # fmt: skip
        fleet.members[name] = Member(name, labels={"region": ("eu", "us")[number % 2]}, reachable=True, ready=True)
        fleet.admissions[name] = LocalAdmission(state, clock, ttl=30.0)
    engine = Engine(store, fleet, clock)
    engine.policies = tuple(
        parse_policy({"metadata": {"name": f"p{n}"}, "spec": {"resourceSelectors": [{"kind": "Deployment", "namespace": f"team-{n}"}]}})
        for n in range(20)
    )  # fmt: skip
    return engine, store


async def run(kind: str, members: int, waiting: int, nodes: int) -> tuple[float, float, float]:
    """Return (decisions/s, p50 ms, p99 ms)."""
    engine, store = build(members, nodes)
    rng = random.Random(7)
    keys = [store.create(number, kind, rng) for number in range(waiting)]
    times = []
    began = time.process_time()
    for key in keys:
        start = time.process_time()
        await engine.reconcile(key)
        times.append(time.process_time() - start)
    total = time.process_time() - began
    placed = sum(1 for workload in store if workload.placement is not None)
    if placed != waiting:
        raise SystemExit(f"{waiting - placed} of {waiting} {kind} workloads were not placed")
    times.sort()
    return waiting / total, statistics.median(times) * 1e3, times[int(len(times) * 0.99)] * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=100)
    parser.add_argument("--waiting", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--short", action="store_true")
    options = parser.parse_args()
    if options.short:
        options.members, options.waiting = 10, 100
    size = f"{options.members} members of {options.nodes} nodes, {options.waiting} workloads"
    rate, median, tail = asyncio.run(run("Job", options.members, options.waiting, options.nodes))
    line(f"placement decisions, single ({size})", rate, "/s", 2000, at_least=True)
    line("placement decisions, single: p99", tail, "ms", 5, at_least=False)
    note("placement decisions, single: p50", median, "ms")
    rate, median, tail = asyncio.run(run("Deployment", options.members, options.waiting, options.nodes))
    note("placement decisions, 8 replicas divided by capacity", rate, "/s")
    line("placement decisions, divided by capacity: p99", tail, "ms", 5, at_least=False)


if __name__ == "__main__":
    main()
