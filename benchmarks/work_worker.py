"""Workers of the Python SDK in a process of their own, for bench_work.py: `work_worker.py ADDRESS STREAMS IN_FLIGHT SECONDS`.

A call sleeps SECONDS; one for the cluster `hung` never ends. Each line on stdin asks for a line on stdout: how long requests
waited since the last one, in seconds, by the first word of their cluster's name; with ` change`, from the change of an object
that says in its name when that was (watched_members.py).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import defaultdict
from contextlib import AsyncExitStack

from reclock import Fleet, Request, Worker, controller
from reclock.testing import FakeFleet


async def main(address: str, streams: int, in_flight: int, seconds: float) -> None:
    """Work until stdin ends."""
    waits: dict[str, list[float]] = defaultdict(list)

    @controller(for_="v1/configmaps", name="bench", max_in_flight=in_flight)
    async def bench(request: Request) -> None:
        cluster, at = request.cluster_name.partition("-")[0], request.name.partition("@")[2]
        waits[cluster].append(request.waited)
        if at:
            waits[f"{cluster} change"].append((time.monotonic_ns() - int(at)) / 1e9)
        if request.cluster_name == "hung":
            await asyncio.Event().wait()
        if seconds:
            await asyncio.sleep(seconds)

    async with AsyncExitStack() as stack:
        nowhere = await stack.enter_async_context(FakeFleet())
        fleet = await stack.enter_async_context(Fleet.connect(nowhere.kubeconfig))
        for number in range(streams):
            worker = Worker(bench, fleet=fleet, name=f"python-{number}", reconciler=address, drain=0.1)
            await stack.enter_async_context(worker)
        while await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(waits), flush=True)
            waits.clear()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
