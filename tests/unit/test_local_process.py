"""A supervised process: started, awaited, stopped, killed, paused, kept alive, never outliving its supervisor."""

from __future__ import annotations

import asyncio
import errno
import os
import platform
import signal
import sys
from pathlib import Path

import pytest

from deploy.local.probes import until
from deploy.local.process import Probe, Process, ProcessFailed
from deploy.local.seccomp import program


def shell(tmp_path: Path, script: str, **options: object) -> Process:
    return Process("thing", ["sh", "-c", script], log=tmp_path / "logs" / "thing.log", **options)  # type: ignore[arg-type]


def has(path: Path, text: str) -> Probe:
    async def probe() -> str | None:
        return None if text in content(path) else f"no {text!r} in {path}"

    return probe


def content(path: Path) -> str:
    """The text of a file; nothing when there is none."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


def letter(pid: int | None) -> str:
    """The kernel's letter for the state of a process: S, R, T (stopped), Z; X when it is gone."""
    text = content(Path(f"/proc/{pid}/stat"))
    return text.rsplit(")", 1)[1].split()[0] if text else "X"


async def until_state(pid: int | None, letters: str) -> None:
    async def probe() -> str | None:
        return None if letter(pid) in letters else letter(pid)

    await until(probe, f"process {pid} is not in state {letters}", 20)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_ready_when_its_probe_says_so(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "thing.log"
    process = shell(tmp_path, "echo up; sleep 60", ready=has(log, "up"))
    assert (process.pid, process.state) == (None, "stopped")
    await process.start()
    await process.wait_ready(20)
    pid = process.pid
    assert pid and process.state == "running"
    await process.start()  # it runs: nothing happens
    assert process.pid == pid
    await process.stop()
    assert (process.pid, process.state) == (None, "stopped")
    assert not alive(pid)


async def test_one_that_ends_fails_with_the_end_of_its_log(tmp_path: Path) -> None:
    process = shell(tmp_path, "echo cannot go on; exit 3", ready=has(tmp_path / "never", "x"))
    await process.start()
    with pytest.raises(ProcessFailed, match=r"thing ended \(code 3\):\n    cannot go on"):
        await process.wait_ready(20)


async def test_one_that_is_never_ready_fails_with_the_reason(tmp_path: Path) -> None:
    process = shell(tmp_path, "sleep 60", ready=has(tmp_path / "never", "x"))
    await process.start()
    with pytest.raises(ProcessFailed, match=r"thing is not ready after 0 s: no 'x' in "):
        await process.wait_ready(0.2)
    await process.stop()


async def test_stop_terminates_first_and_kills_what_ignores_it(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "thing.log"
    polite = shell(
        tmp_path, "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done", ready=has(log, "up")
    )
    await polite.start()
    await polite.wait_ready(20)
    await polite.stop()
    assert log.read_text().splitlines() == ["up", "bye"]

    log.unlink()
    stubborn = shell(
        tmp_path, "trap '' TERM; echo up; while :; do sleep 0.05; done", ready=has(log, "up"), grace=0.3
    )
    await stubborn.start()
    await stubborn.wait_ready(20)
    pid = stubborn.pid
    await stubborn.stop()
    assert pid and not alive(pid)


async def test_stop_ends_the_whole_group_and_a_paused_process_too(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "thing.log"
    process = shell(tmp_path, "sleep 600 & echo child=$!; wait", ready=has(log, "child="))
    await process.start()
    await process.wait_ready(20)
    child = int(log.read_text().split("=")[1])
    process.pause()
    assert process.state == "paused"
    await process.stop()
    await until_state(child, "XZ")  # Z: its parent is gone, and whoever adopts orphans here may not reap


async def test_start_after_a_stop_that_was_broken_off_starts_it_anew(tmp_path: Path) -> None:
    one = shell(tmp_path, "trap '' TERM; echo up; while :; do sleep 0.1; done", ready=has(tmp_path / "logs" / "thing.log", "up"), grace=30)
    await one.start()
    await one.wait_ready(20)
    first = one.pid
    stopping = asyncio.create_task(one.stop())
    await asyncio.sleep(0.2)
    stopping.cancel()
    await asyncio.gather(stopping, return_exceptions=True)
    assert one.running and one.pid == first, "it ignores the signal"
    await one.start()
    await one.wait_ready(20)
    assert one.running and one.pid != first
    await one.stop(grace=0)


async def test_pause_and_resume(tmp_path: Path) -> None:
    process = shell(tmp_path, "sleep 60")
    await process.start()
    process.pause()
    await until_state(process.pid, "T")
    process.resume()
    await until_state(process.pid, "SR")
    await process.kill9()
    assert not process.running


async def test_kept_alive_until_stopped(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "thing.log"
    process = shell(tmp_path, "echo up; sleep 60", keep_alive=True)
    await process.start()
    first = process.pid
    assert first
    await until(has(log, "up"), "first start", 20)
    os.kill(first, signal.SIGKILL)

    async def again() -> str | None:
        return None if process.restarts == 1 and process.running else process.state

    await until(again, "second start", 20)
    assert process.pid != first
    await process.kill9()
    await asyncio.sleep(0.8)  # longer than the first pause before a restart
    assert (process.restarts, process.state) == (1, "stopped")


async def test_kept_alive_but_hopeless_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploy.local.process._RESTART_FIRST", 0.01)
    monkeypatch.setattr("deploy.local.process._RESTART_MOST", 0.01)
    process = shell(tmp_path, "echo bad configuration; exit 2", keep_alive=True)
    await process.start()
    with pytest.raises(ProcessFailed, match="thing ended 5 times:\n    bad configuration"):
        await asyncio.wait_for(_never_ready(process), 20)
    await process.stop()


async def _never_ready(process: Process) -> None:
    async def never() -> str | None:
        return "not yet"

    process.ready = never
    await process.wait_ready(20)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a child with its parent")
async def test_a_killed_supervisor_takes_it_along(tmp_path: Path) -> None:
    script = (
        "import asyncio, pathlib, sys\n"
        "from deploy.local.process import Process\n"
        "async def main():\n"
        "    process = Process('p', ['sleep', '600'], log=pathlib.Path(sys.argv[1]))\n"
        "    await process.start()\n"
        "    print(process.pid, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    supervisor = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(tmp_path / "log"), stdout=asyncio.subprocess.PIPE
    )
    assert supervisor.stdout is not None
    child = int(await supervisor.stdout.readline())
    assert alive(child)
    supervisor.kill()
    await supervisor.wait()
    await until_state(child, "XZ")


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"),
    reason="filters are of Linux on these",
)
async def test_inotify_is_refused_to_those_who_do_without(tmp_path: Path) -> None:
    script = "import ctypes; libc = ctypes.CDLL(None, use_errno=True); print(libc.inotify_init1(0), ctypes.get_errno())"
    said = {}
    for inotify in (True, False):
        log = tmp_path / f"{inotify}.log"
        process = Process("p", [sys.executable, "-c", script], log=log, inotify=inotify)
        await process.start()
        await until(has(log, "\n"), "the answer", 20)
        await process.stop()
        said[inotify] = content(log).split()
    assert said[False] == ["-1", str(errno.EMFILE)]
    # Whether the kernel has one left is not ours to say: the filter must not be what refuses it.
    assert said[True][0] != "-1" or said[True][1] == str(errno.EMFILE)


def test_the_filter_jumps_to_its_verdicts() -> None:
    for machine in ("x86_64", "aarch64"):
        instructions = program(machine)
        allow, refuse = len(instructions) - 2, len(instructions) - 1
        for position, (code, if_true, if_false, _) in enumerate(instructions):
            if code == 0x15 and position == 1:
                assert (if_true, position + 1 + if_false) == (0, allow)
            elif code == 0x15:
                assert (position + 1 + if_true, if_false) == (refuse, 0)
    assert program("an unknown machine") == []
