"""One aggregator process and two on one port: requests and lists per second, in one run.

Method: a fleet with each number of processes side by side would share two cores four ways; they are brought up one after the
other, each is asked by clients in processes of their own, and the ratio is printed. The members' process, etcd and the
clients share the same cores, so that 2 cannot be reached.

    python benchmarks/bench_processes.py [--short]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import uvloop
from report import note

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.sim_fleet import SimFleet, cpu
from services.common.kube.client import KubeClient

CLIENTS = 2
KINDS = {"gets": ("/api/v1/namespaces/default/pods/m0-000001", 16), "lists": ("/api/v1/namespaces/default/pods?limit=500", 4)}


async def client(kubeconfig: Path, path: str, together: int, duration: float) -> None:
    """A process of clients, each on connections of its own: prints how many requests it made."""
    count, until = 0, time.perf_counter() + duration

    async def one() -> None:
        nonlocal count
        front = await KubeClient.connect(kubeconfig, name="front")
        while time.perf_counter() < until:
            await front.request("GET", path)
            count += 1
        await front.close()

    await asyncio.gather(*(one() for _ in range(together)))
    print(json.dumps(count), flush=True)


async def rate(fleet: SimFleet, path: str, together: int, duration: float) -> tuple[float, float]:
    """(requests per second, per second of the aggregator's CPU)."""
    arguments = [str(fleet.kubeconfig), path, str(together), str(duration)]
    spent = cpu(*fleet.serving())
    clients = [
        await asyncio.create_subprocess_exec(sys.executable, __file__, "client", *arguments, stdout=subprocess.PIPE)
        for _ in range(CLIENTS)
    ]
    made = sum([json.loads((await one.communicate())[0]) for one in clients])
    return made / duration, made / (cpu(*fleet.serving()) - spent)


async def run(pods: int, duration: float) -> None:
    """Measure and print."""
    found: dict[str, list[float]] = {}
    for processes in (1, 2):
        async with SimFleet.start(2, pods, processes=processes) as fleet:
            for kind, (path, together) in KINDS.items():
                await rate(fleet, path, together, min(1.0, duration))  # connections, caches
                reached, per_cpu = await rate(fleet, path, together, duration)
                found.setdefault(kind, []).append(reached)
                note(f"{kind} with {processes} process{'es' if processes > 1 else ''}", reached, "1/s")
                note(f"{kind} with {processes}, per second of its CPU", per_cpu, "1/s")
    for kind, (one, two) in found.items():
        note(f"{kind}: two processes / one", two / one, "x")


def main() -> None:
    """Arguments."""
    if sys.argv[1:2] == ["client"]:
        uvloop.run(client(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), float(sys.argv[5])))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true")
    given = parser.parse_args()
    uvloop.run(run(200 if given.short else 5000, 0.5 if given.short else 5))


if __name__ == "__main__":
    main()
