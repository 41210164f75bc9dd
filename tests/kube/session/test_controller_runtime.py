"""A controller-runtime manager through the front, unmodified: leader election, cache, queue, typed clients, owned pods."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kube.session.tools import Kubectl, RunningFleet, cluster_of, eventually, ready_pods


@pytest.fixture
def manager(fleet: RunningFleet, kubectl: Kubectl, tmp_path: Path, go_clients: Path) -> Iterator[Path]:
    """Its log, once it leads; it ends with the test, in order."""
    log = tmp_path / "manager.log"
    command = [
        str(go_clients), "-mode", "manager", "-kubeconfig", str(fleet.layout.kubeconfig), "-namespace", kubectl.namespace,
    ]  # fmt: skip
    with log.open("w") as out:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, text=True)
    try:
        eventually(lambda: process.poll() is not None or '"ready":true' in log.read_text(), 60)
        assert process.poll() is None, log.read_text()[-3000:]
        yield log
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(30) == 0, log.read_text()[-3000:]
    finally:
        process.kill()


def test_manager_keeps_its_pods(fleet: RunningFleet, kubectl: Kubectl, manager: Path) -> None:
    sized = {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "trio", "labels": {"app": "sized"}},
        "data": {"size": "3"},
    }  # fmt: skip
    kubectl("create", "-f", "-", stdin=json.dumps(sized))

    def ready(count: int) -> bool:
        told = kubectl.json("get", "configmap", "trio")["data"].get("ready")
        return told == str(count) and len(ready_pods(kubectl, "")) == count

    def becomes(look: Callable[[], bool]) -> None:
        try:
            eventually(look, 60)
        except AssertionError as error:
            pods = kubectl("get", "pods", "-o", "wide")
            raise AssertionError(f"{error}\n{pods}\n{manager.read_text()[-3000:]}") from error

    becomes(lambda: ready(3))
    owner = kubectl.json("get", "configmap", "trio")["metadata"]["uid"]
    before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in kubectl.items("pods")}
    for pod in kubectl.items("pods"):
        assert [one["uid"] for one in pod["metadata"]["ownerReferences"]] == [owner]
        assert cluster_of(pod) in ("east", "west")

    kubectl("delete", "pod", "trio-1")
    becomes(lambda: kubectl.run("get", "pod", "trio-1").code == 0 and ready(3))
    after = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in kubectl.items("pods")}
    assert [name for name in before if after[name] != before[name]] == ["trio-1"]

    kubectl("patch", "configmap", "trio", "--type=merge", "-p", '{"data":{"size":"1"}}')
    becomes(lambda: ready(1))
    kubectl("delete", "configmap", "trio")
    eventually(lambda: not kubectl.items("pods"), 60)
    assert kubectl.items("leases")[0]["spec"]["holderIdentity"], "it was elected through the front"
    assert "panic" not in manager.read_text()
