"""A fleet in the foreground until Ctrl-C or SIGTERM: `python -m deploy.local.up --dir D --members east,west`."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from pathlib import Path

from deploy.local.binaries import BinariesMissing
from deploy.local.fleet import Fleet
from deploy.local.layout import DirectoryInUse
from deploy.local.process import ProcessFailed


def say(text: str) -> None:
    print(f"[fleet] {text}", flush=True)


async def run(directory: Path, members: list[str]) -> None:
    """Starts the fleet, prints its paths, and sleeps until cancelled."""
    async with Fleet.start(directory, members=members, keep_alive=True, ticks=True, say=say) as fleet:
        for name in fleet.clusters:
            say(f"{name}: {fleet.layout.cluster_kubeconfig(name)}")
        say(f"processes: {fleet.layout.fleet_json}; logs: {fleet.layout.logs}")
        say("ready; Ctrl-C stops everything and removes its files")
        await asyncio.Event().wait()


async def until_signal(job: asyncio.Task[None]) -> int:
    """Waits for the job; SIGINT and SIGTERM cancel it. Exit code: 0 when a signal ended it."""
    loop = asyncio.get_running_loop()
    began = 0.0

    def stop() -> None:
        nonlocal began
        if not began:
            say("stopping")
            began = time.monotonic()
            job.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop)
    try:
        await job
    except asyncio.CancelledError:
        say(f"stopped ({time.monotonic() - began:.0f} s)")
    except (BinariesMissing, DirectoryInUse, ProcessFailed, TimeoutError) as failure:
        print(f"[fleet] {failure}", file=sys.stderr)
        return 1
    return 0


async def _main(directory: Path, members: list[str]) -> int:
    return await until_signal(asyncio.create_task(run(directory, members), name="fleet"))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.local.up", description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="where the fleet keeps its files")
    parser.add_argument("--members", default="east,west", help="names, comma-separated")
    parser.add_argument("--no-services", action="store_true", help="clusters only")
    arguments = parser.parse_args(argv)
    return asyncio.run(_main(arguments.dir, [name for name in arguments.members.split(",") if name]))


if __name__ == "__main__":
    sys.exit(main())
