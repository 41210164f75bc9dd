"""Child processes of the command line: output in whole lines with a tag, an orderly end, nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

GRACE = 15.0
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

Lines = Callable[[str], None]


def _die_with_parent() -> None:  # runs in the child, between fork and exec
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Child:
    """A running command in a process group of its own."""

    def __init__(self, process: asyncio.subprocess.Process, reader: asyncio.Task[None]) -> None:
        self._process = process
        self._reader = reader

    @classmethod
    async def start(
        cls, command: Sequence[str], *, environment: Mapping[str, str], lines: Lines, cwd: Path | None = None
    ) -> Child:
        """Start it; `lines` gets each line of its output (stdout and stderr). Raises OSError."""
        process = await asyncio.create_subprocess_exec(
            *command, env={**os.environ, **environment}, cwd=cwd, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True,
            preexec_fn=_die_with_parent,
        )  # fmt: skip
        assert process.stdout is not None
        return cls(process, asyncio.create_task(_read(process.stdout, lines), name=f"output of {command[0]}"))

    @property
    def running(self) -> bool:
        """It has not ended."""
        return self._process.returncode is None

    async def wait(self) -> int:
        """Its exit code, once it has ended and its output was read; negative: the signal that ended it."""
        code = await self._process.wait()
        self._signal_group(signal.SIGKILL)  # what it left behind would keep the output open
        await self._reader
        return code

    async def stop(self, grace: float = GRACE) -> int:
        """SIGTERM, after `grace` seconds SIGKILL; returns the exit code."""
        if self.running:
            self._signal_group(signal.SIGTERM)
            try:
                async with asyncio.timeout(grace):
                    await self._process.wait()
            except TimeoutError:
                self._signal_group(signal.SIGKILL)
        return await self.wait()

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


async def _read(stream: asyncio.StreamReader, lines: Lines) -> None:
    rest = b""
    while chunk := await stream.read(65536):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            lines(line.decode(errors="replace"))
    if rest:
        lines(rest.decode(errors="replace"))


async def until_signal(work: asyncio.Task[int]) -> int:
    """The exit code of `work`; Ctrl-C and SIGTERM cancel it once: it ends in order then, and the code is 0."""
    loop = asyncio.get_running_loop()
    stopping = False

    def stop() -> None:
        nonlocal stopping
        if not stopping:
            stopping = True
            work.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop)
    try:
        return await work
    except asyncio.CancelledError:
        if not stopping:
            raise
        return 0
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)
