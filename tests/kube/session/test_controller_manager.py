"""kube-controller-manager's ReplicaSet controller and garbage collector with the front as their API server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.local.binaries import Binaries
from tests.kube.session.tools import Kubectl, RunningFleet, cluster_of, eventually, ready_pods

SYNCED = "All resource monitors have synced"


@contextmanager
def controller_manager(fleet: RunningFleet, log: Path, *controllers: str) -> Iterator[None]:
    """A controller manager of its own, as it is run beside an API server."""
    kubeconfig = fleet.layout.state("reclock") / "controller-manager-front.kubeconfig"
    command = [
        str(Binaries.find().controller_manager), f"--kubeconfig={kubeconfig}", "--leader-elect=false",
        f"--controllers={','.join(controllers)}", "--secure-port=0", "--kube-api-qps=200", "--kube-api-burst=400",
        "--v=2",
    ]  # fmt: skip
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        eventually(lambda: process.poll() is not None or SYNCED.lower() in log.read_text().lower(), 90)
        assert process.poll() is None, log.read_text()[-3000:]
        yield
        assert process.poll() is None, log.read_text()[-3000:]
    finally:
        process.terminate()
        process.wait(20)


@contextmanager
def stopped(fleet: RunningFleet, name: str) -> Iterator[None]:
    fleet.do("stop", name)
    try:
        yield
    finally:
        fleet.do("start", name)


def local_workloads(member: Kubectl) -> None:
    """What a member's own users run: the front serves neither these objects nor their owners."""
    pod = {"containers": [{"name": "main", "image": "example/local:1"}]}
    labels = {"app": "local"}
    template = {"metadata": {"labels": labels}, "spec": pod}
    chosen = {"selector": {"matchLabels": labels}, "template": template}
    job = {"template": {"metadata": {"labels": labels}, "spec": {**pod, "restartPolicy": "Never"}}}
    for kind, version, spec in (
        ("Deployment", "apps/v1", {"replicas": 2, **chosen}), ("DaemonSet", "apps/v1", chosen), ("Job", "batch/v1", job),
    ):  # fmt: skip
        obj = {"apiVersion": version, "kind": kind, "metadata": {"name": f"local-{kind.lower()}"}, "spec": spec}
        if kind != "Job":
            spec = json.loads(json.dumps(spec).replace('"local"', f'"local-{kind.lower()}"'))
            obj["spec"] = spec
        member("create", "-f", "-", stdin=json.dumps(obj))


def uids(member: Kubectl) -> set[str]:
    return {pod["metadata"]["uid"] for pod in member.items("pods")}


@pytest.mark.parametrize("controllers", [("replicaset-controller", "garbage-collector-controller")])
def test_replica_sets_and_garbage_through_the_front(
    fleet: RunningFleet, kubectl: Kubectl, tmp_path: Path, controllers: tuple[str, ...]
) -> None:
    """Reclock's own placement is away: the ReplicaSet exists on the host alone, and its pods are made through the front.

    A garbage collector there sees the pods of the members' own Deployments, DaemonSets and Jobs, without an owner that it
    could miss; of a ReplicaSet that is deleted it collects the pods, on every member.
    """
    east = fleet.member("east").within(kubectl.namespace)
    east.run("create", "namespace", kubectl.namespace)
    local_workloads(east)
    local = eventually(lambda: len(uids(east)) == 5 and uids(east), 60)  # 2, one on each of two nodes, 1
    labels = {"app": "web"}
    spec = {
        "replicas": 4, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "example/web:1"}]}},
    }  # fmt: skip
    replica_set = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web"}, "spec": spec}
    with stopped(fleet, "reconciler"), controller_manager(fleet, tmp_path / "manager.log", *controllers):
        kubectl("create", "-f", "-", stdin=json.dumps(replica_set))
        pods = eventually(lambda: len(ready_pods(kubectl, "app=web")) == 4 and ready_pods(kubectl, "app=web"), 90)
        owner = kubectl.json("get", "replicaset", "web")["metadata"]["uid"]
        for pod in pods:
            assert [one["uid"] for one in pod["metadata"]["ownerReferences"]] == [owner]
        members = {cluster_of(pod) for pod in pods}
        assert members <= {"east", "west"}

        first = pods[0]["metadata"]["name"]
        kubectl("delete", "pod", first)
        kubectl("scale", "replicaset", "web", "--replicas=6")
        eventually(lambda: kubectl.json("get", "replicaset", "web")["status"].get("readyReplicas") == 6, 90)
        now = {pod["metadata"]["name"] for pod in ready_pods(kubectl, "app=web")}
        assert len(now) == 6 and first not in now
        assert uids(east) >= local

        kubectl("delete", "replicaset", "web", "--wait=false")
        eventually(lambda: not kubectl.items("pods", "-l", "app=web"), 90)
        assert uids(east) == local, "the members' own pods are untouched"
        for kind in ("deployment", "daemonset", "job"):
            assert east.items(kind), "and so are their owners"
