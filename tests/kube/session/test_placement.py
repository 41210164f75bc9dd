"""Cordon, explain, and an operator whose pods are owned by its custom resource."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

from tests.kube.session.tools import Kubectl, RunningFleet, cluster_of, eventually, ready_pods


def reclock(fleet: RunningFleet, *args: str) -> str:
    command = [
        sys.executable,
        "-c",
        "from reclock.cli import main; main()",
        *args,
        "--kubeconfig",
        str(fleet.layout.kubeconfig),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_cordoned_cluster_gets_no_new_work(fleet: RunningFleet, kubectl: Kubectl) -> None:
    reclock(fleet, "cordon", "east")
    try:
        eventually(lambda: "maintenance" in reclock(fleet, "clusters", "-o", "json"), 10)
        kubectl("create", "deployment", "web", "--image=example/web:1", "--replicas=2")
        kubectl("rollout", "status", "deployment/web", "--timeout=60s")
        assert {cluster_of(pod) for pod in ready_pods(kubectl, "app=web")} == {"west"}
        answer = json.loads(
            reclock(fleet, "explain", "deployment/web", "-n", kubectl.namespace, "-o", "json")
        )
        verdicts = {one["cluster"]: one for one in answer["verdicts"]}
        assert not verdicts["east"]["eligible"] and "maintenance" in verdicts["east"]["message"]
        assert verdicts["west"]["eligible"] and verdicts["west"]["replicas"] == 2
    finally:
        reclock(fleet, "uncordon", "east")


def test_a_duplicated_deployment_runs_whole_on_every_cluster(fleet: RunningFleet, kubectl: Kubectl) -> None:
    name = f"everywhere-{kubectl.namespace}"
    selector = {"kind": "Deployment", "namespace": kubectl.namespace}
    fleet.kubectl("apply", "-f", "-", stdin=json.dumps({
        "apiVersion": "reclock.dev/v1alpha1", "kind": "PlacementPolicy", "metadata": {"name": name},
        "spec": {"resourceSelectors": [selector], "type": "Duplicated"},
    }))  # fmt: skip

    def on_each(count: int) -> None:
        kubectl("rollout", "status", "deployment/web", "--timeout=90s")
        ready = Counter(cluster_of(pod) for pod in ready_pods(kubectl, "app=web"))
        assert ready == {"east": count, "west": count}, "rollout status tells the truth about all clusters"
        status = kubectl.json("get", "deployment", "web")["status"]
        assert (status["replicas"], status["availableReplicas"]) == (count, count)

    try:
        kubectl("create", "deployment", "web", "--image=example/web:1", "--replicas=2")
        on_each(2)
        kubectl("set", "image", "deployment/web", "web=example/web:2")
        on_each(2)
        kubectl("scale", "deployment/web", "--replicas=3")
        on_each(3)
    finally:
        fleet.kubectl("delete", "placementpolicy", name)


def test_command_line(fleet: RunningFleet, kubectl: Kubectl) -> None:
    assert "east" in reclock(fleet, "clusters")
    kubectl("run", "one", "--image=example/web:1")
    assert "one" in reclock(fleet, "markers", "-n", kubectl.namespace)
    assert "reclock" in reclock(fleet, "version", "-o", "json")
    assert "/clusters/west" in reclock(fleet, "kubeconfig", "west")


def test_operator_owning_pods_by_its_custom_resource(fleet: RunningFleet, kubectl: Kubectl) -> None:
    """The member has no such owner: its garbage collector would delete the pods within a second."""
    kubectl("create", "configmap", "owner")  # any host object may own
    owner = kubectl.json("get", "configmap", "owner")
    kubectl("apply", "-f", "-", stdin=json.dumps({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "owned", "ownerReferences": [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}]},
        "spec": {"containers": [{"name": "main", "image": "example/web:1"}]},
    }))  # fmt: skip
    kubectl("wait", "--for=condition=Ready", "pod/owned", "--timeout=30s")
    shown = kubectl.json("get", "pod", "owned")["metadata"]
    assert shown["ownerReferences"][0]["uid"] == owner["metadata"]["uid"]
    kubectl("delete", "configmap", "owner")
    eventually(lambda: not kubectl.items("pods"), 60)
