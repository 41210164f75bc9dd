"""Several aggregators of one machine: who starts, restarts and stops them. The processes here are small scripts."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from services.aggregator.config import AggregatorConfig
from services.aggregator.processes import Supervisor, of_number
from services.common.config import ConfigError, gather

SCRIPT = """
import os, signal, sys, time
number, place = sys.argv[1:3]
with open(f"{place}/{number}.starts", "a") as log:
    log.write(f"{os.getpid()}\\n")
signal.signal(signal.SIGTERM, lambda *_: (open(f"{place}/{number}.stopped", "w").close(), sys.exit(int(sys.argv[3]))))
while True:
    time.sleep(0.01)
"""


def supervisor(place: Path, code: str = "0", script: str = SCRIPT) -> Supervisor:
    return Supervisor(2, [sys.executable, "-c", script, str(place), code])


async def started(place: Path, number: int, times: int) -> int:
    """Wait until a process was started so often; its pid."""
    log = place / f"{number}.starts"
    for _ in range(1000):
        if log.exists() and len(found := log.read_text().split()) >= times:
            return int(found[-1])
        await asyncio.sleep(0.01)
    raise AssertionError(f"process {number} was not started {times} times")


async def test_one_that_dies_is_started_again_and_the_others_stay(tmp_path: Path) -> None:
    one = supervisor(tmp_path)
    task = asyncio.create_task(one.run())
    first, other = await started(tmp_path, 0, 1), await started(tmp_path, 1, 1)
    os.kill(first, signal.SIGKILL)
    assert await started(tmp_path, 0, 2) != first
    assert await started(tmp_path, 1, 1) == other
    await asyncio.sleep(0.1)  # until the script has its handler
    one.stop(signal.SIGTERM)
    assert await task == 0
    assert (tmp_path / "0.stopped").exists() and (tmp_path / "1.stopped").exists(), "all stop in order"


async def test_the_exit_code_is_the_worst_of_theirs(tmp_path: Path) -> None:
    one = supervisor(tmp_path, "3")
    task = asyncio.create_task(one.run())
    await started(tmp_path, 0, 1)
    await started(tmp_path, 1, 1)
    await asyncio.sleep(0.1)  # until the scripts have their handlers
    one.stop(signal.SIGTERM)
    assert await task == 3


async def test_a_wrong_configuration_ends_all(tmp_path: Path) -> None:
    script = SCRIPT.replace("while True:", "time.sleep(0.2)\nsys.exit(2) if number == '1' else None\nwhile True:")
    assert await asyncio.wait_for(supervisor(tmp_path, "0", script).run(), 20) == 2
    assert (tmp_path / "0.stopped").exists()


def test_what_each_has_of_its_own() -> None:
    config = AggregatorConfig(http_address="127.0.0.1:8080", state_file="/x/state", processes=3)
    assert of_number(config, 0) == config
    third = of_number(config, 2)
    assert (third.http_address, third.state_file) == ("127.0.0.1:8082", "/x/state.2")
    assert (third.front_address, third.grpc_address) == (config.front_address, config.grpc_address)
    assert of_number(AggregatorConfig(http_address="[::1]:80"), 1).http_address == "[::1]:81"
    assert of_number(AggregatorConfig(http_address="127.0.0.1:0"), 1).http_address == "127.0.0.1:0"
    assert of_number(AggregatorConfig(http_address=""), 1).http_address == ""


@pytest.mark.parametrize(
    ("flags", "says"),
    [(["--processes", "0"], "allowed: 1 and more"),
     (["--processes", "2", "--front-address", "127.0.0.1:0"], "frontAddress: 127.0.0.1:0"),
     (["--processes", "2", "--grpc-address", "127.0.0.1:0"], "grpcAddress: 127.0.0.1:0")],
)  # fmt: skip
def test_what_cannot_be_shared_is_refused(flags: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        gather(AggregatorConfig, "aggregator", flags, {})


async def test_one_that_cannot_be_started_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, tries = asyncio.create_subprocess_exec, 0

    async def without_memory(*args: Any, **options: Any) -> asyncio.subprocess.Process:
        nonlocal tries
        tries += 1
        if tries <= 2:
            raise OSError(12, "Cannot allocate memory")
        return await real(*args, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", without_memory)
    one = supervisor(tmp_path)
    task = asyncio.create_task(one.run())
    await started(tmp_path, 0, 1)
    await started(tmp_path, 1, 1)
    await asyncio.sleep(0.1)  # until the scripts have their handlers
    one.stop(signal.SIGTERM)
    assert await task == 0 and tries == 4
