"""Runs a fleet's job until it is done, Ctrl-C, SIGTERM or SIGHUP; the job cleans up when it is cancelled."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

from deploy.local.errors import FleetFailed
from deploy.local.plane import Say

#: A job gets the function that ends it, as a signal would.
Job = Callable[[Callable[[], None]], Coroutine[Any, Any, None]]


def printer(tag: str) -> Say:
    """A `say` that prints lines with a tag."""

    def say(text: str) -> None:
        print(f"[{tag}] {text}", flush=True)

    return say


async def _until_signal(job: Job, say: Say) -> int:
    loop = asyncio.get_running_loop()
    began = 0.0

    def stop() -> None:
        nonlocal began
        if not began:
            say("stopping")
            began = time.monotonic()
            task.cancel()

    task = asyncio.create_task(job(stop), name="fleet")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop)
    try:
        await task
    except asyncio.CancelledError:
        say(f"stopped; nothing is left behind ({time.monotonic() - began:.0f} s)")
    except FleetFailed as failure:
        print(f"failed: {failure}", file=sys.stderr)
        return 1
    return 0


def run(job: Job, say: Say) -> int:
    """The exit code: 0 when it ended by itself or by a signal, 1 when the fleet failed (the reason is printed)."""
    return asyncio.run(_until_signal(job, say))
