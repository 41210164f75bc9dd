"""kill -9 of Reclock's parts and a member that goes away, while work goes on."""

from __future__ import annotations

import json
from functools import partial

import pytest

from tests.kube.session.informer import Informer
from tests.kube.session.tools import Kubectl, RunningFleet, cluster_of, eventually, ready_pods


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


def test_everything_restarts_while_discovery_is_away(fleet: RunningFleet, kubectl: Kubectl) -> None:
    """No answer may look as if the fleet had no members, and an open watch must see nothing go."""
    kubectl("apply", "-f", "-", stdin=deployment("web", 4))
    eventually(lambda: total(kubectl, 4), 60)
    before = {pod["metadata"]["uid"] for pod in kubectl.items("pods")}
    with Informer(fleet, f"/api/v1/namespaces/{kubectl.namespace}/pods") as informer:
        eventually(lambda: set(informer.store) == before, 30)
        fleet.do("kill9", "discovery")
        try:
            for victim in ("aggregator", "scheduler", "reconciler"):
                fleet.do("kill9", victim)
                fleet.do("start", victim)
            answers = []

            def served() -> bool:
                found = kubectl.run("get", "pods", "-o", "json")
                if found.code == 0:
                    answers.append({pod["metadata"]["uid"] for pod in json.loads(found.out)["items"]})
                return bool(answers)

            eventually(served, 60)
            assert answers[0] == before, "the first answer is whole"
            retried(kubectl, deployment("more", 2))
            eventually(lambda: total(kubectl, 6), 90)
            kubectl("run", "bare", "--image=example/web:1")
        finally:
            fleet.do("start", "discovery")
        truth = {pod["metadata"]["uid"] for pod in kubectl.items("pods")}
        eventually(lambda: set(informer.store) == truth, 30)
        assert before < truth
    assert informer.relists == 1
    assert informer.problems == []


def retried(kubectl: Kubectl, manifest: str) -> None:
    eventually(lambda: kubectl.run("apply", "-f", "-", stdin=manifest).code == 0, 60)


def test_member_away_and_back(fleet: RunningFleet, kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=deployment("web", 4))
    kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    pods = kubectl.items("pods")
    before = {pod["metadata"]["uid"] for pod in pods}
    there = next(pod["metadata"]["name"] for pod in pods if cluster_of(pod) == "east")
    path = f"/api/v1/namespaces/{kubectl.namespace}/pods"
    with Informer(fleet, path) as informer:
        eventually(lambda: set(informer.store) == before, 20)
        fleet.do("kill9", "east-apiserver")
        eventually(lambda: "east" in kubectl.run("get", "pods").err, 60)  # a Warning names it
        for asked in (("get", "pod", there), ("logs", there), ("label", "pod", there, "a=b"), ("delete", "pod", there)):
            eventually(partial(_is_told, kubectl, asked), 60)
        with Informer(fleet, path) as late:
            eventually(lambda: late.store, 30)
            assert set(informer.store) == before, "nothing is deleted"
            fleet.do("start", "east-apiserver")
            eventually(lambda: set(late.store) == before, 120)
            assert late.relists == 1
        eventually(lambda: not kubectl.run("get", "pods").err, 60)
    assert informer.problems == []
    assert informer.relists == 1


def _is_told(kubectl: Kubectl, asked: tuple[str, ...]) -> bool:
    """Whether a command about an object on a cluster that is away fails for that reason."""
    return "cluster east cannot be reached since" in kubectl.fails(*asked)


def test_a_third_cluster_joins_and_leaves(fleet: RunningFleet) -> None:
    fleet.do("add-member", "north")
    try:
        eventually(lambda: {"north-n0", "north-n1"} <= nodes(fleet), 90)
        assert "north" in fleet.kubectl("get", "clusters")
    finally:
        fleet.do("remove-member", "north")
    eventually(lambda: not {"north-n0", "north-n1"} & nodes(fleet), 90)
    # Its kubeconfig is gone and so is the cluster: what may be left there is waited for, unless somebody knows better.
    fleet.kubectl("create", "--raw", "/apis/reclock.dev/v1alpha1/clusters/north/forget", "-f", "-", stdin="{}")
    eventually(lambda: _is_gone(fleet, "north"), 60)


def _is_gone(fleet: RunningFleet, name: str) -> bool:
    """Whether a cluster's object has gone. One that was away before all of it was read stays, and says to delete it."""
    if name not in fleet.kubectl("get", "clusters"):
        return True
    if "left behind there" in fleet.kubectl("get", "cluster", name, "-o", "yaml"):
        fleet.kubectl("delete", "cluster", name, "--ignore-not-found")
    return False


def nodes(fleet: RunningFleet) -> set[str]:
    return {node["metadata"]["name"] for node in fleet.kubectl.items("nodes")}
