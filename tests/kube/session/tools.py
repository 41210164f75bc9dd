"""What the session's tests share: a kubectl, patience, and the running fleet."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from deploy.local.ask import ask
from deploy.local.layout import Layout

T = TypeVar("T")


class KubectlFailed(AssertionError):
    """kubectl ended with an exit code that the test did not expect."""


@dataclass
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


@dataclass
class Kubectl:
    """One kubectl binary with one kubeconfig and default namespace."""

    binary: str
    kubeconfig: Path
    namespace: str = ""
    extra: Sequence[str] = field(default=())

    def command(self, *args: str) -> list[str]:
        scope = ["-n", self.namespace] if self.namespace else []
        return [self.binary, f"--kubeconfig={self.kubeconfig}", *scope, *self.extra, *args]

    def run(self, *args: str, stdin: str | None = None, timeout: float = 90) -> Done:
        """Run to the end, whatever the exit code."""
        done = subprocess.run(
            self.command(*args), input=stdin, capture_output=True, text=True, timeout=timeout, check=False
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def __call__(self, *args: str, stdin: str | None = None, timeout: float = 90) -> str:
        """Run and return stdout; KubectlFailed with stderr when it fails."""
        done = self.run(*args, stdin=stdin, timeout=timeout)
        if done.code:
            raise KubectlFailed(f"kubectl {' '.join(args)}: exit {done.code}\n{done.err}\n{done.out}")
        return done.out

    def fails(self, *args: str, stdin: str | None = None, timeout: float = 90) -> str:
        """Run what must fail; returns stderr."""
        done = self.run(*args, stdin=stdin, timeout=timeout)
        assert done.code != 0, f"kubectl {' '.join(args)} succeeded: {done.out}"
        return done.err

    def json(self, *args: str) -> Any:
        return json.loads(self(*args, "-o", "json"))

    def items(self, *args: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.json("get", *args)["items"]
        return found

    def start(self, *args: str, **kwargs: Any) -> subprocess.Popen[str]:
        """Start in the background."""
        return subprocess.Popen(
            self.command(*args), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kwargs
        )

    def within(self, namespace: str) -> Kubectl:
        return Kubectl(self.binary, self.kubeconfig, namespace, self.extra)


def eventually(look: Callable[[], T], timeout: float = 60, every: float = 0.3) -> T:
    """Call until it returns something true without an AssertionError; the last failure is raised."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            found = look()
            if found or time.monotonic() > deadline:
                assert found, f"still {found!r} after {timeout} s"
                return found
        except AssertionError:
            if time.monotonic() > deadline:
                raise
        time.sleep(every)


@dataclass
class RunningFleet:
    """A fleet with Reclock's services, started for the whole test session."""

    directory: Path
    kubectls: dict[str, str]

    @property
    def layout(self) -> Layout:
        return Layout(self.directory)

    @property
    def kubectl(self) -> Kubectl:
        """The front, as an administrator, with the kubectl of PATH."""
        return Kubectl(self.kubectls["path"], self.layout.kubeconfig)

    def member(self, name: str) -> Kubectl:
        """Straight at a member (or `host`)."""
        return Kubectl(self.kubectls["path"], self.layout.cluster_kubeconfig(name))

    def do(self, op: str, name: str = "") -> None:
        """Stop, start, kill9, … a process."""
        ask(self.layout.control, op, name)

    @property
    def processes(self) -> dict[str, dict[str, Any]]:
        listed = ask(self.layout.control, "ps", "")["processes"]
        return {process["name"]: process for process in listed}


def cluster_of(obj: dict[str, Any]) -> str:
    return str(obj["metadata"]["annotations"]["reclock.dev/cluster"])


def ready_pods(kubectl: Kubectl, selector: str) -> list[dict[str, Any]]:
    """Pods of a selector that are Ready and not going."""
    return [
        pod
        for pod in kubectl.items("pods", "-l", selector)
        if "deletionTimestamp" not in pod["metadata"]
        and any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
    ]
