"""`reclock run --each-cluster -- CMD`: an existing single-cluster controller, once for each cluster of the fleet.

Each process gets a kubeconfig of its own cluster, through the front: no credentials of members are needed.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path

from reclock._errors import ReclockError
from reclock._fleet import Fleet
from reclock.cli import kubeconfig as kubeconfig_command
from reclock.cli.access import kubeconfig_path
from reclock.cli.api import CliError
from reclock.cli.children import GRACE, Child, until_signal

FIRST, MOST = 1.0, 60.0
"""Seconds before a command that has ended is started again: the first time, and at most."""
STEADY = 30.0
"""Seconds that it must have run for the pause to begin anew."""

Say = Callable[[str], None]


class EachCluster:
    """Starts and stops the command as clusters come and go."""

    def __init__(
        self, command: Sequence[str], kubeconfig: str | None, say: Say, *, grace: float = GRACE, first: float = FIRST
    ) -> None:
        self._command, self._kubeconfig, self._say = list(command), kubeconfig, say
        self._grace, self._first = grace, first
        self._running: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    async def run(self, fleet: Fleet, where: str) -> int:
        """Until cancelled; all processes have ended then."""
        with tempfile.TemporaryDirectory(prefix="reclock-run-") as directory:
            try:
                async with aclosing(fleet.watch_clusters(where)) as changes:
                    async for change in changes:
                        name = change.cluster.name
                        if change.type == "JOINED":
                            self._join(name, Path(directory))
                        elif change.type == "LEFT":
                            self._leave(name)
            finally:
                for name in list(self._running):
                    self._leave(name)
                if self._ending:
                    await asyncio.shield(asyncio.wait(set(self._ending)))
        return 0

    def _join(self, name: str, directory: Path) -> None:
        if name not in self._running:
            self._running[name] = asyncio.create_task(self._keep(name, directory), name=f"process of {name}")

    def _leave(self, name: str) -> None:
        task = self._running.pop(name, None)
        if task is not None:
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            task.cancel()

    async def _keep(self, name: str, directory: Path) -> None:
        path = directory / f"{name}.kubeconfig"
        pause = self._first
        while True:
            try:
                _write(path, kubeconfig_command.text(self._kubeconfig, name))
                began = time.monotonic()
                code = await self._once(name, path)
            except (OSError, CliError) as error:
                self._say(f"[{name}] cannot start: {error}")
                code, began = 0, time.monotonic()
            else:
                self._say(f"[{name}] ended ({_ended(code)})")
            if time.monotonic() - began > STEADY:
                pause = self._first
            self._say(f"[{name}] starting it again in {pause:g} s")
            await asyncio.sleep(pause)
            pause = min(pause * 2, MOST)

    async def _once(self, name: str, path: Path) -> int:
        environment = {"KUBECONFIG": str(path), "RECLOCK_CLUSTER": name}
        child = await Child.start(
            self._command, environment=environment, lines=lambda line: self._say(f"[{name}] {line}")
        )
        self._say(f"[{name}] started")
        try:
            return await child.wait()
        finally:
            if child.running:
                await asyncio.shield(asyncio.ensure_future(self._end(name, child)))

    async def _end(self, name: str, child: Child) -> None:
        self._say(f"[{name}] stopped ({_ended(await child.stop(self._grace))})")


def _write(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def _ended(code: int) -> str:
    return f"code {code}" if code >= 0 else f"signal {-code}"


async def each_cluster(command: Sequence[str], kubeconfig: str | None, where: str) -> int:
    """Run until a signal; the exit code."""
    path = kubeconfig_path(kubeconfig)
    try:
        async with Fleet.connect(path) as fleet:
            work = EachCluster(command, path, lambda line: print(line, flush=True)).run(fleet, where)
            return await until_signal(asyncio.create_task(work, name="each cluster"))
    except ReclockError as error:
        raise CliError(str(error)) from error
