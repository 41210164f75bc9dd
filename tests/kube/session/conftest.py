"""One fleet with all services for the session's tests; a namespace for each test."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.binaries import Binaries
from deploy.local.errors import FleetFailed
from tests.kube.session.collector import Collector
from tests.kube.session.followers import build
from tests.kube.session.tools import Kubectl, RunningFleet, eventually

START_LIMIT = 240


def _kubectls() -> dict[str, str]:
    """The kubectl of PATH, and the newest one, which comes as a wheel beside this interpreter."""
    wheel = Path(sys.executable).with_name("kubectl")
    outside = [part for part in os.environ["PATH"].split(os.pathsep) if Path(part) != wheel.parent]
    found = {"path": shutil.which("kubectl", path=os.pathsep.join(outside)) or str(wheel)}
    if wheel.exists():
        found["newest"] = str(wheel)
    return found


@pytest.fixture(scope="session")
def collector() -> Iterator[Collector]:
    """Where the fleet's aggregator sends its traces."""
    one = Collector()
    yield one
    one.close()


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[RunningFleet]:
    """Start it once; skipped where the Kubernetes binaries are missing."""
    try:
        Binaries.find()
    except FleetFailed as error:
        pytest.skip(f"no Kubernetes binaries: {error}")
    directory = tmp_path_factory.mktemp("session") / "fleet"
    log = directory.with_suffix(".log").open("w")
    process = subprocess.Popen(
        [sys.executable, "-m", "deploy.local.up", "--dir", str(directory), "--members", "east,west"],
        stdout=log,
        stderr=subprocess.STDOUT,
        env={
            **os.environ, "RECLOCK_AGGREGATOR_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.port}",
            "RECLOCK_AGGREGATOR_TRACE_RATIO": "1",  # of each twentieth event, as it is by default, a test would wait in vain
        },
    )
    running = RunningFleet(directory, _kubectls())
    try:
        _wait_ready(process, Path(log.name))
        _settle(running)
        yield running
    finally:
        if running.layout.logs.exists():  # the fleet takes its own away with it
            shutil.copytree(running.layout.logs, directory.parent / "logs")
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        log.close()


def _wait_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT
    while "ready; Ctrl-C" not in log.read_text():
        assert process.poll() is None, f"the fleet did not start:\n{log.read_text()[-4000:]}"
        assert time.monotonic() < deadline, (
            f"the fleet is not ready after {START_LIMIT} s:\n{log.read_text()[-4000:]}"
        )
        time.sleep(0.2)


def _settle(running: RunningFleet) -> None:
    """Wait until the front shows both members' nodes."""
    eventually(lambda: len(running.kubectl.items("nodes")) == 4, 120)


@pytest.fixture(scope="session")
def go_clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The clients of tests/kube/clients, built once."""
    return build(tmp_path_factory.mktemp("go-clients"))


@pytest.fixture
def kubectl(fleet: RunningFleet) -> Iterator[Kubectl]:
    """kubectl at the front, in a namespace of this test, which is deleted afterwards."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    fleet.kubectl("create", "namespace", name)
    yield fleet.kubectl.within(name)
    fleet.kubectl.run("delete", "namespace", name, "--wait=false")
