"""Stock client-go clients (`tests/kube/clients`) that follow one namespace's pods, as a process to ask."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from deploy.local.gotool import go_version
from tests.kube.session.tools import RunningFleet, eventually

SOURCES = Path(__file__).parents[1] / "clients"
CLIENTS = ("retry", "typed", "metadata", "dynamic", "protobuf")


def build(directory: Path) -> Path:
    """Compile the clients; skips without a Go. What the local fleet was built with comes out of Go's cache."""
    version = go_version("go")
    if version is None:
        pytest.skip("no Go on PATH to build the client-go clients with")
    binary = directory / "clients"
    subprocess.run(
        ["go", "build", "-p", "1", "-mod=readonly", "-trimpath", "-ldflags", "-s -w", "-o", str(binary), "."],
        cwd=SOURCES,
        env={**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "GO111MODULE": "on"},
        check=True,
    )
    return binary


class Followers:
    """The clients of one process, with WatchList on or off, from their start to the end of the block.

    `events`: what they were told so far, in order, each {client, type, uid, name, resourceVersion}.
    """

    def __init__(self, binary: Path, fleet: RunningFleet, namespace: str, *, watch_list: bool) -> None:
        self.watch_list = watch_list
        self.events: list[dict[str, str]] = []
        self._reports: list[dict[str, Any]] = []
        self._ready = threading.Event()
        self._log = binary.with_name(f"{namespace}-{'watchlist' if watch_list else 'list'}.log")
        self._command = [
            str(binary),
            "-kubeconfig",
            str(fleet.layout.kubeconfig),
            "-namespace",
            namespace,
        ]
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Followers:
        environment = {**os.environ, "KUBE_FEATURE_WatchListClient": str(self.watch_list).lower()}
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )
        self._thread.start()
        try:
            eventually(self._started, 70)
        except AssertionError:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _started(self) -> bool:
        assert self._process.poll() is None, f"the clients did not start: {self._log.read_text()[-2000:]}"
        return self._ready.is_set()

    def _end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        finally:
            self._process.kill()
        self._thread.join(20)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            if "report" in told:
                self._reports.append(told["report"])
            elif "ready" in told:
                self._ready.set()
            else:
                self.events.append(told)

    def report(self) -> dict[str, Any]:
        """Per client: store (uid -> version), requests, breaches, events."""
        seen = len(self._reports)
        assert self._process.stdin is not None
        self._process.stdin.write("report\n")
        self._process.stdin.flush()
        eventually(lambda: len(self._reports) > seen, 20, every=0.05)
        return self._reports[-1]

    def stores(self) -> dict[str, dict[str, str]]:
        """Per client what it holds: uid -> version."""
        return {name: part["store"] for name, part in self.report().items()}

    def of(self, client: str) -> list[dict[str, str]]:
        return [told for told in self.events if told["client"] == client]

    def faults(self) -> list[str]:
        """What went against the contract of lists and watches, a line each."""
        found = []
        for name, part in self.report().items():
            found += [f"{name}: {breach}" for breach in part["breaches"]]
            asked = part["requests"]
            starts = {"lists": asked["lists"], "streams": asked["streams"]}
            streams = 1 if self.watch_list and name != "retry" else 0
            if starts != {"lists": 1 - streams, "streams": streams}:
                found.append(f"{name}: took the state again: {asked}; {self._log.read_text()[-1500:]}")
        return found
