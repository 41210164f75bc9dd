"""A worker in a process of its own, for tests that kill it: `NAME JOURNAL REGISTER LONG ADDRESS…` (REGISTER: protobuf in hex; LONG: seconds).

It writes what it does to a file, line by line, each before the next thing happens: what is there after kill -9 is all it did.
Times are of the machine's monotonic clock, which all processes have in common.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reclock.reconciler.v1 import reconciler_pb2 as pb
from tests.integration.work_processes import Client, Held, History, Key, Run


def slow_now_and_then(seed: str, long: float) -> Callable[[Key], float]:
    """How long handlers take, in seconds: short, and one of fifty `long`."""
    chance = random.Random(seed)
    return lambda key: chance.choice([0.0, 0.01, 0.05]) if chance.random() < 0.98 else long


class Journal(History):
    """Writes a history to a file."""

    def __init__(self, name: str, path: Path) -> None:
        super().__init__()
        self._name = name
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def _write(self, what: str, *values: object) -> None:
        os.write(self._file, json.dumps([what, *values]).encode() + b"\n")

    def begins(self, held: Held) -> None:
        """Before anything is done of it."""
        run = Run(held.key, held.began, held.until, self._name, held.request.token, held.request.fence)
        self._write("begins", *run)

    def renewed(self, token: str, until: float) -> None:
        """How long a handler that is killed may have gone on."""
        self._write("renewed", token, until)

    def ended(self, run: Run, well: bool) -> None:
        """Before its answer is sent."""
        self._write("ended", run.token, run.ended, well)

    def stalled(self, began: float, ended: float) -> None:
        """As its own event loop saw it."""
        self._write("stalled", began, ended)


class WorkerProcess:
    """The process, and what it has written so far as part of a history."""

    def __init__(self, name: str, journal: Path, child: asyncio.subprocess.Process, history: History) -> None:
        self.name = name
        self.child = child
        self._journal = journal
        self._history = history
        self._place = 0
        self._open: dict[str, Run] = {}
        self.cut_off = 0
        """Handlers that ran when it was killed."""

    @classmethod
    async def start(
        cls, name: str, register: pb.Register, addresses: list[str], history: History, directory: Path, long: float
    ) -> WorkerProcess:
        """Start it; it connects by itself."""
        journal = directory / f"{name}.journal"
        journal.touch()
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.integration.work_worker",
            name, str(journal), register.SerializeToString().hex(), str(long), *addresses,
        )  # fmt: skip
        return cls(name, journal, child, history)

    def read(self) -> None:
        """Take over what was written since the last time."""
        assert self.child.returncode in (None, -signal.SIGKILL), f"{self.name} has ended by itself: {self.child.returncode}"
        with self._journal.open("rb") as file:
            file.seek(self._place)
            *lines, _ = file.read().split(b"\n")
        self._place += sum(len(line) + 1 for line in lines)
        for line in lines:
            what, *values = json.loads(line)
            self._take(what, values)

    def _take(self, what: str, values: list[Any]) -> None:
        if what == "begins":
            run = Run(tuple(values[0]), *values[1:])
            self._open[run.token] = run
        elif what == "renewed":
            self._open[values[0]] = self._open[values[0]]._replace(ended=values[1])
        elif what == "ended":
            self._history.ended(self._open.pop(values[0])._replace(ended=values[1]), values[2])
        else:
            self._history.stalled(values[0], values[1])

    async def die(self) -> None:
        """kill -9. What it held then was its until that moment, or until the end of its lease where that came first."""
        assert self.child.returncode is None, f"{self.name} has ended by itself: {self.child.returncode}"
        killed = time.monotonic()
        self.child.kill()
        await self.child.wait()
        self.read()
        for run in self._open.values():
            self._history.ended(run._replace(ended=max(run.began, min(run.ended, killed))), False)
        self.cut_off = len(self._open)
        self._open.clear()


async def main(name: str, journal: str, register: str, long: str, *addresses: str) -> None:
    """Work until killed."""
    history = Journal(name, Path(journal))
    client = Client(
        name, pb.Register.FromString(bytes.fromhex(register)), lambda: list(addresses), history,
        slow_now_and_then(name, float(long)),
    )  # fmt: skip
    await asyncio.gather(history.watch_stalls(), client.ended())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
