"""`reclock dev --provider kind controller.py`: what a controller needs, on this machine, and the controller on it.

Starts a host, discovery with the provider, the aggregator and the reconciler as processes (from a checkout: they are
no part of what is installed), then the controllers of the files; a file that is saved starts them anew.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import reclock
from reclock._settings import default_kubeconfig
from reclock.cli.access import DEMO
from reclock.cli.api import CliError
from reclock.cli.children import Child, until_signal
from reclock.cli.program import SUFFIX

CHECKOUT = Path(reclock.__file__).resolve().parents[1]
LOOK = 0.3
"""Seconds between two looks at the files."""
READY = "ready; Ctrl-C"
"""What the fleet prints when it is up."""

Say = Callable[[str], None]


def provider(word: str, given: Sequence[str]) -> dict[str, Any]:
    """Discovery's settings of a provider: its type, what is usual here, and `key=value`s (values as JSON, else text)."""
    made: dict[str, Any] = {"type": word}
    if word == "kubeconfig-file":
        made["paths"] = [default_kubeconfig()]
    for one in given:
        key, equals, text = one.partition("=")
        if not equals or not key:
            raise CliError(f"--set {one}: write key=value, as docs/providers.md has them")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        made[key] = [value] if key == "paths" and isinstance(value, str) else value
    return made


class Dev:
    """One run of `reclock dev`."""

    def __init__(self, files: Sequence[Path], say: Say) -> None:
        self._files, self._say = list(files), say
        self._environment: dict[str, str] = {}

    async def run(self, word: str, settings: Sequence[str], members: str, verbose: bool) -> int:
        """Until cancelled; everything has ended then. The exit code is not 0 when the fleet did not start."""
        if word == "demo" and DEMO.exists():
            self._say(f"using the fleet that runs here ({DEMO})")
            self._environment = _access(DEMO.parent)
            return await self._controllers()
        with tempfile.TemporaryDirectory(prefix="reclock-dev-") as parent:
            directory = Path(parent) / "fleet"
            command = self._fleet_command(directory, word, settings, members)
            self._say(f"starting a host and the services, with clusters of provider {word}")
            began, ready = time.monotonic(), asyncio.Event()
            fleet = await Child.start(
                command, environment={}, cwd=CHECKOUT, lines=lambda line: self._fleet_line(line, ready, verbose)
            )
            ended = asyncio.create_task(fleet.wait(), name="fleet")
            try:
                up = asyncio.create_task(ready.wait(), name="fleet is ready")
                await asyncio.wait({ended, up}, return_when=asyncio.FIRST_COMPLETED)
                up.cancel()
                if ended.done():
                    self._say("the fleet did not start (reason above)")
                    return ended.result() or 1
                self._environment = _access(directory)
                self._say(f"ready ({time.monotonic() - began:.0f} s): export KUBECONFIG={directory}/kubeconfig")
                controllers = asyncio.create_task(self._controllers(), name="controllers")
                try:
                    await asyncio.wait({ended, controllers}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    controllers.cancel()
                    await asyncio.wait({controllers})
                self._say("the fleet has ended")
                return 1
            finally:
                self._say("stopping")
                await asyncio.shield(asyncio.ensure_future(fleet.stop(60.0)))

    def _fleet_command(self, directory: Path, word: str, settings: Sequence[str], members: str) -> list[str]:
        command = [sys.executable, "-m", "deploy.local.up", "--dir", str(directory), "--no-placement"]
        if word == "demo":
            return [*command, "--members", members]
        return [*command, "--members", "", "--provider", json.dumps(provider(word, settings))]

    def _fleet_line(self, line: str, ready: asyncio.Event, verbose: bool) -> None:
        if READY in line:
            ready.set()
        elif verbose or not line.startswith("[fleet]"):
            self._say(line)

    async def _controllers(self) -> int:
        """Run the controllers, anew whenever a file beside them is saved."""
        for run in itertools.count(1):
            seen = _stamps(self._files)
            names = ", ".join(path.name for path in self._files)
            child = await Child.start(
                [sys.executable, "-m", "reclock.cli.program", *map(str, self._files)],
                environment={**self._environment, SUFFIX: f"dev{os.getpid()}-{run}", "PYTHONUNBUFFERED": "1"}, lines=lambda line: print(line, flush=True),
            )  # fmt: skip
            self._say(f"{names}: started")
            try:
                changed = await self._until_changed(child, seen)
            finally:
                await asyncio.shield(asyncio.ensure_future(child.stop()))
            self._say(f"{changed} was saved: starting anew")
        raise AssertionError("unreachable")

    async def _until_changed(self, child: Child, seen: Mapping[Path, float]) -> str:
        told = False
        while True:
            await asyncio.sleep(LOOK)
            now = _stamps(self._files)
            if now != seen:
                changed = {path for path in {*now, *seen} if now.get(path) != seen.get(path)}
                return ", ".join(sorted(path.name for path in changed))
            if not child.running and not told:
                told = True
                self._say("it has ended; save a file to start it anew")


def _stamps(files: Sequence[Path]) -> dict[Path, float]:
    """When the Python files beside the controllers were written."""
    found = {}
    for folder in {path.resolve().parent for path in files}:
        for path in folder.glob("*.py"):
            try:
                found[path] = path.stat().st_mtime
            except FileNotFoundError:
                continue  # an editor that replaces the file: the next look has it
    return found


def _access(directory: Path) -> dict[str, str]:
    """The environment that leads a controller to the fleet in a directory."""
    try:
        described = json.loads((directory / "fleet.json").read_text())
        address = str(described["services"]["reconciler"]["grpcAddress"])
    except (OSError, ValueError, KeyError) as error:
        raise CliError(f"{directory}: no fleet with services runs there ({error})") from error
    path = str((directory / "kubeconfig").absolute())
    return {"RECLOCK_FRONT": "", "RECLOCK_TLS_CA": "", "RECLOCK_KUBECONFIG": path, "RECLOCK_RECONCILER": address}


async def dev(files: Sequence[Path], word: str, settings: Sequence[str], members: str, verbose: bool) -> int:
    """Run until a signal; the exit code."""
    for path in files:
        if not path.is_file():
            raise CliError(f"{path}: no such file")
    chosen = provider(word, settings)
    # Discovery would try for ever, as it must where kind may be installed later; here a person waits for the fleet.
    if word == "kind" and shutil.which(command := str(chosen.get("command", "kind"))) is None:
        raise CliError(f"--provider kind needs the command {command}, which is not found: install it, or --set command=PATH")
    if not (CHECKOUT / "deploy" / "local").is_dir():
        raise CliError(
            "dev starts Reclock's services, which are not installed here: run it in a checkout, or point RECLOCK_KUBECONFIG "
            "and RECLOCK_RECONCILER at a fleet and use `reclock run`"
        )
    work = Dev(files, lambda line: print(f"[dev] {line}", flush=True)).run(word, settings, members, verbose)
    return await until_signal(asyncio.create_task(work, name="dev"))
