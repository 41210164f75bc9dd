"""Engaging: how long until a service has 1,000 clusters that were not there before, and until all of them are probed.

Method: simulated clusters over TLS, each with its own client certificate in its own kubeconfig, in one process; discovery in
another, following a folder; here a FleetWatcher with access, as every service has one: each cluster counts once its
client is made and listeners were told. The clock runs from the first file that is moved into the folder. Probes share
the two processes' cores with it. Run: python benchmarks/bench_engage.py [--short] [CLUSTERS]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import uvloop
from report import line, note

from services.common.fleet import FleetWatcher
from services.common.tasks import Tasks

GOAL = 10.0
LIMIT = 300.0


async def until(holds: Callable[[], bool]) -> None:
    """Wait, not for ever."""
    async with asyncio.timeout(LIMIT):
        while True:
            if holds():
                return
            await asyncio.sleep(0.02)


async def start(*arguments: str, log: Path) -> asyncio.subprocess.Process:
    """Start a Python module."""
    with log.open("wb") as file:
        return await asyncio.create_subprocess_exec(sys.executable, "-m", *arguments, stdout=file, stderr=file)


def resident(pid: int) -> float:
    """MB that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def move(source: Path, target: Path) -> None:
    """Put all kubeconfigs into the folder that discovery follows."""
    for path in sorted(source.glob("*.kubeconfig")):
        path.rename(target / path.name)


def empty(folder: Path) -> None:
    """Take them away again."""
    for path in folder.iterdir():
        path.unlink()


async def measure(number: int, folder: Path) -> None:
    """Start everything, then count."""
    live = folder / "live"
    live.mkdir()
    sim = await start(
        "deploy.local.sim", "--members", str(number), "--nodes", "0", "--dir", str(folder / "sim"), log=folder / "sim.log"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    providers = json.dumps([{"type": "kubeconfig-file", "paths": [str(live)]}])
    discovery = await start(
        "services.discovery", "--grpcAddress", address, "--httpAddress", "", "--providers", providers,
        log=folder / "discovery.log",
    )  # fmt: skip
    tasks, watcher = Tasks("bench"), FleetWatcher(address)
    try:
        staged = folder / "sim" / "clusters"
        await until(lambda: staged.is_dir() and len(list(staged.glob("*.kubeconfig"))) >= number)
        tasks.spawn(watcher.run(), "watcher")
        await until(watcher.synced.is_set)  # discovery has read the empty folder
        small = resident(discovery.pid)
        await _count(number, staged, live, watcher)
        note("discovery's memory", (resident(discovery.pid) - small) / number * 1000, "KB per cluster")
    finally:
        await tasks.close()
        for process in (discovery, sim):
            process.send_signal(signal.SIGTERM)
            await process.wait()


async def _count(number: int, staged: Path, live: Path, watcher: FleetWatcher) -> None:
    began = time.perf_counter()
    await asyncio.to_thread(move, staged, live)
    await until(lambda: len(watcher.members) == number)
    line(f"{number} clusters engaged", time.perf_counter() - began, "s", GOAL, at_least=False)
    await until(lambda: all(member.ready for member in watcher.members.values()))
    note(f"{number} clusters probed and ready", time.perf_counter() - began, "s")
    began = time.perf_counter()
    await asyncio.to_thread(empty, live)
    await until(lambda: not watcher.members)
    note(f"{number} clusters disengaged", time.perf_counter() - began, "s")


def main() -> None:
    """Run once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("clusters", type=int, nargs="?", default=1000)
    given = parser.parse_args()
    number = 10 if given.short else given.clusters
    with tempfile.TemporaryDirectory(prefix="reclock-bench-") as folder:
        uvloop.run(measure(number, Path(folder)))


if __name__ == "__main__":
    main()
