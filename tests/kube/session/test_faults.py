"""kill -9 of Reclock's parts and a member that goes away, while work goes on."""

from __future__ import annotations

import json

import pytest

from tests.kube.session.informer import Informer
from tests.kube.session.tools import Kubectl, RunningFleet, eventually, ready_pods


def total(kubectl: Kubectl, count: int) -> bool:
    return len(ready_pods(kubectl, "fault=1")) == count


def deployment(name: str, replicas: int) -> str:
    labels = {"app": name, "fault": "1"}
    return json.dumps({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}},
                 "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "example/web:1"}]}}},
    })  # fmt: skip


@pytest.mark.parametrize("process", ["aggregator", "etcd", "scheduler", "reconciler"])
def test_kill_while_workloads_are_created(fleet: RunningFleet, kubectl: Kubectl, process: str) -> None:
    victim = next(name for name in fleet.processes if name in (process, f"reclock-{process}"))
    with Informer(fleet, f"/api/v1/namespaces/{kubectl.namespace}/pods") as informer:
        for number in range(3):
            retried(kubectl, deployment(f"before-{number}", 2))
        fleet.do("kill9", victim)
        fleet.do("start", victim)
        for number in range(3):
            retried(kubectl, deployment(f"after-{number}", 2))
        eventually(lambda: total(kubectl, 12), 90)
        truth = {pod["metadata"]["uid"] for pod in kubectl.items("pods")}
        eventually(lambda: set(informer.store) == truth, 30)
    assert informer.relists == 1, "the informer must go on from its version"
    assert informer.problems == []
    placed = {
        member: len(fleet.member(member).within(kubectl.namespace).items("replicasets"))
        for member in ("east", "west")
    }
    assert sum(placed.values()) >= 6
    native = [
        pod
        for member in ("east", "west")
        for pod in fleet.member(member).within(kubectl.namespace).items("pods")
    ]
    assert len(native) == 12, "every workload is placed exactly once"


def retried(kubectl: Kubectl, manifest: str) -> None:
    eventually(lambda: kubectl.run("apply", "-f", "-", stdin=manifest).code == 0, 60)


def test_member_away_and_back(fleet: RunningFleet, kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=deployment("web", 4))
    kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    before = {pod["metadata"]["uid"] for pod in kubectl.items("pods")}
    path = f"/api/v1/namespaces/{kubectl.namespace}/pods"
    with Informer(fleet, path) as informer:
        eventually(lambda: set(informer.store) == before, 20)
        fleet.do("kill9", "east-apiserver")
        eventually(lambda: "east" in kubectl.run("get", "pods").err, 60)  # a Warning names it
        with Informer(fleet, path) as late:
            eventually(lambda: late.store, 30)
            assert set(informer.store) == before, "nothing is deleted"
            fleet.do("start", "east-apiserver")
            eventually(lambda: set(late.store) == before, 120)
            assert late.relists == 1
        eventually(lambda: not kubectl.run("get", "pods").err, 60)
    assert informer.problems == []
    assert informer.relists == 1


def test_a_third_cluster_joins_and_leaves(fleet: RunningFleet) -> None:
    fleet.do("add-member", "north")
    try:
        eventually(lambda: {"north-n0", "north-n1"} <= nodes(fleet), 90)
        assert "north" in fleet.kubectl("get", "clusters")
    finally:
        fleet.do("remove-member", "north")
    eventually(lambda: not {"north-n0", "north-n1"} & nodes(fleet), 90)
    eventually(lambda: "north" not in fleet.kubectl("get", "clusters"), 60)


def nodes(fleet: RunningFleet) -> set[str]:
    return {node["metadata"]["name"] for node in fleet.kubectl.items("nodes")}
