"""A torture run on real Kubernetes: `python -m tests.torture --minutes 5 --seed 7` (`make torture MINUTES=5`).

Three members, replicas of the aggregator, an etcd of three. Everything is killed, paused, cut off, slowed down and
compacted by a seeded schedule while informers watch and writers write; then every history is checked.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import tempfile
from pathlib import Path

from deploy.local.errors import FleetFailed
from tests.torture.report import Summary
from tests.torture.run import Say, Settings, torture


def main(argv: list[str] | None = None) -> int:
    """Exit code 1 for a breach, or when the run could not be carried out."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=0, help="of the schedule and of all clients; any by default")
    parser.add_argument("--watchers", type=int, default=50)
    parser.add_argument("--writes", type=float, default=120, help="a second")
    parser.add_argument("--no-faults", action="store_true", help="load and check alone")
    parser.add_argument("--dir", type=Path, help="where the fleet keeps its files; a temporary directory by default")
    arguments = parser.parse_args(argv)
    seed = arguments.seed or random.randrange(1, 1_000_000)
    settings = Settings(
        seed, arguments.minutes, arguments.watchers, arguments.writes, faults=not arguments.no_faults
    )
    directory = arguments.dir or Path(tempfile.gettempdir()) / f"reclock-torture-{seed}"

    def say(text: str) -> None:
        print(f"[torture] {text}", flush=True)

    say(f"seed {seed}, {arguments.minutes:g} minutes; again with: make torture MINUTES={arguments.minutes:g} SEED={seed}")
    try:
        summary = asyncio.run(_until_signal(directory, settings, say))
    except FleetFailed as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        say("stopped; nothing is left behind")
        return 130
    print(summary.table())
    if summary.breaches:
        print(summary.failures(), file=sys.stderr)
        return 1
    return 0


async def _until_signal(directory: Path, settings: Settings, say: Say) -> Summary:
    """A signal cancels the run, which stops the fleet in order."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    return await torture(directory, settings, say)


if __name__ == "__main__":
    sys.exit(main())
