"""One supervised child process: started, awaited until ready, stopped, killed, paused, started again.

A child runs in a process group of its own (Ctrl-C in a terminal reaches only the supervisor, which stops things
in order) and is killed by the kernel when the supervisor dies, however it dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from deploy.local.errors import FleetFailed
from deploy.local.seccomp import refuse_inotify

#: Asked until it answers None; a string says what is not ready yet.
Probe = Callable[[], Awaitable[str | None]]

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
_RESTART_FIRST, _RESTART_MOST = 0.5, 10.0
_STEADY_SECONDS = 30.0
_HOPELESS_RESTARTS = 5


class ProcessFailed(FleetFailed):
    """A process that ended or did not become ready; the message holds the end of its log."""


def _die_with(parent: int, then: Callable[[], None]) -> Callable[[], None]:
    def prepare() -> None:  # runs in the child, between fork and exec
        if _libc is not None:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # the parent died before the line above
                os._exit(1)
        then()

    return prepare


class Process:
    """A named child process with a log file; `keep_alive` starts it again when it ends by itself.

    `inotify=False` keeps it from taking inotify instances (see `deploy.local.seccomp`).
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        ready: Probe | None = None,
        grace: float = 15.0,
        keep_alive: bool = False,
        ports: Mapping[str, int] | None = None,
        inotify: bool = True,
    ) -> None:
        self.name = name
        self.command = [str(part) for part in command]
        self.log = log
        self.env = dict(env) if env is not None else None
        self.cwd = cwd
        self.ready = ready
        self.grace = grace
        self.keep_alive = keep_alive
        self.ports = dict(ports or {})
        self._prepare: Callable[[], None] = (lambda: None) if inotify else refuse_inotify()
        self.restarts = 0  # by itself, after an exit nobody asked for
        self._child: asyncio.subprocess.Process | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._wanted = False
        self._paused = False
        self._lock = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """The running process's id; None when it is not running."""
        return self._child.pid if self._child is not None and self._child.returncode is None else None

    @property
    def running(self) -> bool:
        return self.pid is not None

    @property
    def state(self) -> str:
        if self.running:
            return "paused" if self._paused else "running"
        return "restarting" if self._wanted and self.keep_alive else "stopped"

    async def start(self) -> None:
        """Starts it, unless it runs; does not wait until it is ready."""
        async with self._lock:
            if self.running and self._wanted:
                return
            if self._child is not None and self.running:
                # A stop that was broken off while it waited: it is ending, and whoever asks now wants it anew.
                self._kill_group(self._child.pid)
                await self._child.wait()
            await self._cancel_watcher()
            self._wanted = True
            await self._spawn()
            self._watcher = asyncio.create_task(self._watch(), name=f"watch {self.name}")

    async def wait_ready(self, timeout: float = 90.0) -> None:
        """Returns when the readiness probe answers; raises ProcessFailed when it ended or takes too long."""
        deadline = time.monotonic() + timeout
        enough = self.restarts + _HOPELESS_RESTARTS
        reason: str | None = "not asked yet"
        while True:
            gone = not self.running and not (self.keep_alive and self._wanted)
            if gone or self.restarts >= enough:
                code = self._child.returncode if self._child else None
                ended = f"ended (code {code})" if gone else f"ended {_HOPELESS_RESTARTS} times"
                raise ProcessFailed(f"{self.name} {ended}:\n{self.log_tail()}")
            if self.running:
                reason = await self.ready() if self.ready else None
                if reason is None:
                    return
            if time.monotonic() > deadline:
                raise ProcessFailed(
                    f"{self.name} is not ready after {timeout:.0f} s: {reason}\n{self.log_tail()}"
                )
            await asyncio.sleep(0.1)

    async def stop(self, grace: float | None = None) -> None:
        """SIGTERM, then SIGKILL when it has not ended after `grace` seconds; 0 kills at once."""
        async with self._lock:
            self._wanted = False
            await self._cancel_watcher()
            child = self._child
            if child is None:
                return
            grace = self.grace if grace is None else grace
            if child.returncode is None and grace > 0:
                self._signal(signal.SIGTERM)
                self._signal(signal.SIGCONT)  # a paused process would never see the first
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(child.wait(), grace)
            self._kill_group(child.pid)
            await child.wait()

    async def kill9(self) -> None:
        """SIGKILL, as the kernel's OOM killer would; stays down until `start`."""
        await self.stop(grace=0)

    async def restart(self, timeout: float = 90.0) -> None:
        """Stop, start, and wait until ready."""
        await self.stop()
        await self.start()
        await self.wait_ready(timeout)

    def pause(self) -> None:
        """SIGSTOP: keeps its connections open and answers nothing."""
        self._signal(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)
        self._paused = False

    def log_tail(self, lines: int = 15) -> str:
        """The last lines of its log, for error messages."""
        try:
            text = self.log.read_text(errors="replace")
        except FileNotFoundError:
            return "(no log)"
        return "\n".join(f"    {line[:400]}" for line in text.splitlines()[-lines:])

    async def _spawn(self) -> None:
        self._paused = False
        with self._open_log() as sink:
            self._child = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                cwd=self.cwd,
                env=self.env,
                start_new_session=True,
                preexec_fn=_die_with(os.getpid(), self._prepare),
            )

    def _open_log(self) -> BinaryIO:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        return open(self.log, "ab")

    async def _watch(self) -> None:
        """Starts the process again, with a growing pause, each time it ends without being asked to."""
        pause = _RESTART_FIRST
        while self._child is not None:
            began = time.monotonic()
            await self._child.wait()
            self._kill_group(self._child.pid)
            if not (self._wanted and self.keep_alive):
                return
            pause = _RESTART_FIRST if time.monotonic() - began > _STEADY_SECONDS else pause
            await asyncio.sleep(pause)
            pause = min(pause * 2, _RESTART_MOST)
            self.restarts += 1
            await self._spawn()

    async def _cancel_watcher(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
            self._watcher = None

    def _signal(self, number: signal.Signals) -> None:
        pid = self.pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    @staticmethod
    def _kill_group(pid: int) -> None:
        # Also what the process left behind in its group: commands that `kubectl exec` runs on a node.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
