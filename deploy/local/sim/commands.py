"""Commands that `kubectl exec` runs in a simulated pod: processes of this machine, in a directory of the cluster."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import struct
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.local.sim.channels import STDERR, STDOUT, Channels

_CHUNK = 32 * 1024


async def run(
    command: Sequence[str], channels: Channels, query: Mapping[str, str], cluster: str, directory: Path
) -> None:
    """Runs it with the session's input and output until it ends or the client leaves."""
    if not command:
        await channels.finish(1, "you must specify at least one command for the container")
        return
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(directory),
        "KUBERNETES_CLUSTER": cluster,
        "PS1": f"{cluster}$ ",
        "TERM": "xterm",
        "LANG": "C.UTF-8",
    }
    try:
        if _flag(query, "tty"):
            code = await _with_terminal(command, channels, environment, directory)
        else:
            code = await _with_pipes(command, channels, _flag(query, "stdin"), environment, directory)
    except FileNotFoundError:
        name = command[0]
        text = f'exec: "{name}": executable file not found in $PATH'
        await channels.finish(127, f"Internal error occurred: error executing command in container: {text}")
        return
    await channels.finish(code)


def _flag(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "") in ("true", "1")


async def _with_pipes(
    command: Sequence[str], channels: Channels, stdin: bool, environment: Mapping[str, str], directory: Path
) -> int:
    child = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        cwd=directory,
        start_new_session=True,
    )
    assert child.stdout is not None and child.stderr is not None
    feeding = asyncio.create_task(_feed(child, channels)) if stdin else None
    leaving = asyncio.create_task(_end_with_client(child, channels))
    try:
        await asyncio.gather(
            _pump(child.stdout, channels, STDOUT), _pump(child.stderr, channels, STDERR), child.wait()
        )
    finally:
        _kill(child)
        for task in filter(None, (feeding, leaving)):
            task.cancel()
        await asyncio.gather(*filter(None, (feeding, leaving)), return_exceptions=True)
    return child.returncode or 0


async def _pump(reader: asyncio.StreamReader, channels: Channels, channel: int) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(_CHUNK):
            await channels.send(channel, data)


async def _feed(child: asyncio.subprocess.Process, channels: Channels) -> None:
    assert child.stdin is not None
    with contextlib.suppress(ConnectionError):
        while (data := await channels.input()) is not None:
            child.stdin.write(data)
            await child.stdin.drain()
    child.stdin.close()


async def _end_with_client(child: asyncio.subprocess.Process, channels: Channels) -> None:
    await channels.closed.wait()
    _kill(child)


def _kill(child: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


async def _with_terminal(
    command: Sequence[str], channels: Channels, environment: Mapping[str, str], directory: Path
) -> int:
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    child = await asyncio.create_subprocess_exec(
        *command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=directory,
        preexec_fn=_take_terminal,
    )  # fmt: skip
    os.close(theirs)
    output: asyncio.Queue[bytes] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    loop.add_reader(ours, lambda: output.put_nowait(_read(ours)))
    typing = asyncio.create_task(_type(ours, channels))
    leaving = asyncio.create_task(_end_with_client(child, channels))
    try:
        with contextlib.suppress(ConnectionError):
            while data := await output.get():
                await channels.send(STDOUT, data)
        return await child.wait()
    finally:
        loop.remove_reader(ours)
        _kill(child)
        for task in (typing, leaving):
            task.cancel()
        await asyncio.gather(typing, leaving, return_exceptions=True)
        os.close(ours)


def _take_terminal() -> None:
    """In the child: a session whose terminal is its standard input."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _CHUNK)
    except OSError:
        return b""  # Linux: the other side has been closed


async def _type(descriptor: int, channels: Channels) -> None:
    while (data := await channels.input()) is not None:
        if channels.resized is not None:
            columns, rows = channels.resized
            fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        while data:
            try:
                data = data[os.write(descriptor, data) :]
            except BlockingIOError:
                await asyncio.sleep(0.01)
