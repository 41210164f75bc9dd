"""Simulated members in a process of their own, for bench_work.py: `watched_members.py NAME…`. Whoever sees them, sees them by a watch.

Prints its port. Each line on stdin, `COUNT SECONDS`, lets so many ConfigMaps come over so many seconds, in one member after the
other; a line on stdout when that is over. Names end with when they were made, `@` and CLOCK_MONOTONIC's nanoseconds, which
all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import sys
import time

from tests.integration.work_fleet import FakeCluster, FakeFleet

STEP = 0.01
MOST = 1000
"""Objects at once: a process that was late makes up for it, but not with one burst."""


async def come(clusters: list[FakeCluster], count: int, seconds: float) -> None:
    """So many objects over so many seconds, or somewhat more on a busy machine."""
    steps = max(1.0, seconds / STEP)
    share, owed, made, due = count / steps, 0.0, 0, time.monotonic()
    while made < count:
        owed = min(owed + share, MOST)
        while owed >= 1 and made < count:
            clusters[made % len(clusters)].put("configmaps", f"ns{made % 10}", f"m{made}@{time.monotonic_ns()}")
            made, owed = made + 1, owed - 1
        due = max(due + STEP, time.monotonic() - STEP)
        await asyncio.sleep(max(0.0, due - time.monotonic()))


async def main(names: list[str]) -> None:
    """Serve until stdin ends."""
    fleet = FakeFleet()
    clusters = [fleet.add(name) for name in names]
    await fleet.start()
    print(fleet.port, flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        count, seconds = line.split()
        await come(clusters, int(count), float(seconds))
        print("over", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
