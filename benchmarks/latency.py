"""How much later a watch of the front tells of a change than watches of the members do, by one clock in one process."""

from __future__ import annotations

import asyncio
import time

from benchmarks.sim_fleet import SimFleet, cpu
from services.common.kube.client import KubeClient

MARK = b'"podIP":"e'


class Arrivals:
    """When the change of each number was seen, by whoever sees it first."""

    def __init__(self) -> None:
        self.at: dict[bytes, float] = {}
        self.open: list[asyncio.Future[None]] = []

    async def follow(self, client: KubeClient, opened: asyncio.Future[None]) -> None:
        """One watch, from now on."""
        answer = await client.request("GET", "/api/v1/pods", query={"limit": 1})
        path = f"/api/v1/pods?watch=1&resourceVersion={answer.json()['metadata']['resourceVersion']}"
        rest = b""
        async with client.stream("GET", path) as response:
            opened.set_result(None)
            async for chunk in response.content.iter_any():
                now = time.perf_counter()
                *frames, rest = (rest + chunk).split(b"\n")
                for frame in frames:
                    start = frame.find(MARK) + len(MARK)
                    if start >= len(MARK):
                        self.at.setdefault(frame[start : start + 9], now)

    async def reach(self, number: int, seconds: float = 60) -> None:
        """Wait until so many were seen, or no longer."""
        deadline = time.monotonic() + seconds
        while len(self.at) < number and time.monotonic() < deadline:  # noqa: ASYNC110 - as a load
            await asyncio.sleep(0.05)


async def arrived(through: Arrivals, count: int) -> None:
    """Wait until so many events have come, a minute at most: a late one of those before would be counted with the next."""
    deadline = time.monotonic() + 60
    while len(through.at) < count and time.monotonic() < deadline:  # noqa: ASYNC110 - as a load
        await asyncio.sleep(0.05)


async def added(fleet: SimFleet, rate: int, seconds: float) -> tuple[tuple[float, float], float]:
    """((p50, p99) of milliseconds added, seconds of the aggregator's CPU per event). RuntimeError when events are missing."""
    direct, through = Arrivals(), Arrivals()
    loop = asyncio.get_running_loop()
    tasks, opened = [], []
    for arrivals, client in [*((direct, one) for one in fleet.members), (through, fleet.front)]:
        opened.append(loop.create_future())
        tasks.append(asyncio.create_task(arrivals.follow(client, opened[-1])))
    try:
        await asyncio.gather(*opened)
        await asyncio.sleep(1)
        opening = (await fleet.tell(op="churn", rate=min(rate, 100), seconds=1))["made"]  # opens what is opened on demand
        await through.reach(opening)
        await asyncio.sleep(1)  # watches of members: not all of them may be followed
        direct.at.clear()
        through.at.clear()
        spent = cpu(*fleet.serving())
        made = (await fleet.tell(op="churn", rate=rate, seconds=seconds))["made"]
        await through.reach(made)
        spent = cpu(*fleet.serving()) - spent
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if len(through.at) != made:
        raise RuntimeError(f"{made - len(through.at)} of {made} events did not come through the front")
    late = sorted(1000 * (through.at[mark] - at) for mark, at in direct.at.items())
    if not late:
        raise RuntimeError("no member told of a change")
    return (late[len(late) // 2], late[int(len(late) * 0.99)]), spent / made
