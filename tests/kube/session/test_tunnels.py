"""logs, exec, attach, cp and port-forward on pods of both clusters, with the oldest and the newest kubectl here."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kube.session.tools import Kubectl, RunningFleet, cluster_of, eventually, ready_pods


@pytest.fixture(scope="module")
def namespace(fleet: RunningFleet) -> Iterator[str]:
    fleet.kubectl("create", "namespace", "tunnels")
    yield "tunnels"
    fleet.kubectl.run("delete", "namespace", "tunnels", "--wait=false")


@pytest.fixture(scope="module")
def pods(fleet: RunningFleet, namespace: str) -> dict[str, str]:
    kubectl = fleet.kubectl.within(namespace)
    kubectl("create", "deployment", "web", "--image=example/web:1", "--replicas=6")
    kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    return {cluster_of(pod): pod["metadata"]["name"] for pod in ready_pods(kubectl, "app=web")}


@pytest.fixture(params=["path", "newest"])
def kubectl(request: pytest.FixtureRequest, fleet: RunningFleet, namespace: str) -> Kubectl:
    if request.param not in fleet.kubectls:
        pytest.skip("the wheel with the newest kubectl is not installed")
    return Kubectl(fleet.kubectls[request.param], fleet.layout.kubeconfig, namespace)


@pytest.fixture(params=["east", "west"])
def pod(request: pytest.FixtureRequest, pods: dict[str, str]) -> str:
    return pods[request.param]


def test_logs(kubectl: Kubectl, pod: str) -> None:
    assert kubectl("logs", pod).strip()
    assert len(kubectl("logs", pod, "--tail=1").strip().splitlines()) == 1
    assert kubectl("logs", "deploy/web", "--tail=1").strip()


def test_logs_follow(kubectl: Kubectl, pod: str) -> None:
    follow = kubectl.start("logs", "-f", pod, "--tail=1")
    try:
        assert follow.stdout is not None
        assert follow.stdout.readline().strip()
    finally:
        follow.terminate()
        follow.wait(10)
        follow.stdout.close()  # type: ignore[union-attr]


def test_exec_output_input_and_exit_code(kubectl: Kubectl, pod: str) -> None:
    assert kubectl("exec", pod, "--", "echo", "hello").strip() == "hello"
    assert kubectl("exec", "-i", pod, "--", "cat", stdin="from outside\n") == "from outside\n"
    assert kubectl.run("exec", pod, "--", "sh", "-c", "exit 7").code == 7


def test_what_a_short_command_writes_to_a_terminal_is_all_shown(kubectl: Kubectl, pod: str) -> None:
    for _ in range(5):
        ours, theirs = pty.openpty()
        process = subprocess.Popen(kubectl.command("exec", "-it", pod, "--", "echo", "done"), stdin=theirs, stdout=theirs)
        os.close(theirs)
        try:
            read_until(ours, b"done")
        finally:
            process.wait(20)
            os.close(ours)


def test_exec_with_a_terminal(kubectl: Kubectl, pod: str) -> None:
    ours, theirs = pty.openpty()
    command = kubectl.command(
        "exec", "-it", pod, "--", "sh", "-c", "test -t 0 && echo ter''minal; read line; echo got $line"
    )
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    try:
        seen = read_until(ours, b"terminal")
        os.write(ours, b"typed\n")
        seen += read_until(ours, b"got typed")
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until(terminal: int, text: bytes) -> bytes:
    seen, deadline = b"", time.monotonic() + 20
    while text not in seen:
        assert time.monotonic() < deadline, seen
        if select.select([terminal], [], [], 0.5)[0]:
            try:
                seen += os.read(terminal, 4096)
            except OSError as error:  # the other side has ended
                raise AssertionError(f"ended after {seen!r}") from error
    return seen


def test_attach(kubectl: Kubectl, pod: str) -> None:
    attach = kubectl.start("attach", pod)
    try:
        assert attach.stdout is not None
        assert attach.stdout.readline()
    finally:
        attach.terminate()
        attach.wait(10)
        attach.stdout.close()  # type: ignore[union-attr]


def test_copy_there_and_back(kubectl: Kubectl, pod: str, tmp_path: Path) -> None:
    there, back = tmp_path / "there", tmp_path / "back"
    there.write_text("payload " * 10_000)
    remote = tmp_path / "remote"  # exec runs on this machine
    kubectl("cp", str(there), f"{pod}:{remote}")
    kubectl("cp", f"{pod}:{remote}", str(back))
    assert back.read_text() == there.read_text()


def test_port_forward_to_a_pod(kubectl: Kubectl, pod: str) -> None:
    with forwarded(kubectl, f"pod/{pod}", "80") as port:
        assert fetch(port)


def test_port_forward_to_a_service(kubectl: Kubectl, pods: dict[str, str]) -> None:
    kubectl.run("expose", "deployment", "web", "--port=80")
    with forwarded(kubectl, "svc/web", "80") as port:
        assert fetch(port)


@contextlib.contextmanager
def forwarded(kubectl: Kubectl, target: str, remote: str) -> Iterator[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = kubectl.start("port-forward", target, f"{port}:{remote}")
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "Forwarding from" in line, line
        yield port
    finally:
        process.terminate()
        process.wait(10)
        process.stdout.close()  # type: ignore[union-attr]


def fetch(port: int) -> bytes:
    def once() -> bytes:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
                return bytes(answer.read())
        except OSError as error:
            raise AssertionError(str(error)) from error

    time.sleep(0.1)
    return eventually(once, 15)
