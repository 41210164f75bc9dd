"""The example operator, unmodified: pods of its custom resource live on members and go with their owner."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.kube.session.tools import Kubectl, RunningFleet, cluster_of, eventually, ready_pods

OPERATOR = Path(__file__).resolve().parents[3] / "examples" / "python" / "podset_operator.py"


def test_example_operator(fleet: RunningFleet, kubectl: Kubectl, tmp_path: Path) -> None:
    log = (tmp_path / "operator.log").open("w")
    environment = {**os.environ, "KUBECONFIG": str(fleet.layout.kubeconfig)}
    operator = subprocess.Popen([sys.executable, str(OPERATOR)], env=environment, stdout=log, stderr=log)
    try:
        podset = json.dumps({
            "apiVersion": "examples.reclock.dev/v1", "kind": "PodSet",
            "metadata": {"name": "trio"}, "spec": {"replicas": 3},
        })  # fmt: skip
        eventually(lambda: kubectl.run("apply", "-f", "-", stdin=podset).code == 0, 60)
        eventually(
            lambda: sum(1 for one in kubectl.items("pods") if one["status"].get("phase") == "Running") == 3,
            60,
        )
        owner = kubectl.json("get", "podset", "trio")["metadata"]["uid"]
        pods = kubectl.items("pods")
        assert all(one["metadata"]["ownerReferences"][0]["uid"] == owner for one in pods)
        time.sleep(3)  # the members' own garbage collectors would have struck within one
        assert {one["metadata"]["uid"] for one in kubectl.items("pods")} == {
            one["metadata"]["uid"] for one in pods
        }
        for one in pods:
            native = fleet.member(cluster_of(one)).within(kubectl.namespace)
            assert "ownerReferences" not in native.json("get", "pod", one["metadata"]["name"])["metadata"]
        kubectl("delete", "podset", "trio")
        eventually(lambda: not kubectl.items("pods"), 60)
    finally:
        operator.kill()
        operator.wait()
        log.close()
        fleet.kubectl.run("delete", "crd", "podsets.examples.reclock.dev", "--wait=false")
    assert not ready_pods(kubectl, "")
