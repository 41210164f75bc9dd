"""Drains: ReplicaSets surge, StatefulSets stop first, Jobs finish, volumes stay; stopped half-way, and through kill -9."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.kube.session.informer import Informer
from tests.kube.session.test_jobs import job
from tests.kube.session.tools import Done, Kubectl, RunningFleet, cluster_of, eventually, ready_pods

Obj = dict[str, Any]


class Watched(Informer):
    """Judges the collection after every event; `problems` has what did not hold."""

    def __init__(self, fleet: RunningFleet, path: str, judge: Callable[[list[Obj]], str]) -> None:
        super().__init__(fleet, path)
        self._judge = judge
        self.armed = threading.Event()

    def _take(self, event: dict[str, Any]) -> None:
        super()._take(event)
        if self.armed.is_set() and event["type"] != "BOOKMARK" and (wrong := self._judge(list(self.store.values()))):
            self.problems.append(wrong)


def ready(pod: Obj) -> bool:
    conditions = pod["status"].get("conditions", [])
    return "deletionTimestamp" not in pod["metadata"] and any(
        c["type"] == "Ready" and c["status"] == "True" for c in conditions
    )


def four_of_web(pods: list[Obj]) -> str:
    number = sum(1 for pod in pods if pod["metadata"]["labels"].get("app") == "web" and ready(pod))
    return "" if number >= 4 else f"{number} pods of web are available"


def sane_web(deployments: list[Obj]) -> str:
    for one in deployments:
        status = one["status"]
        counts = [status.get(f, 0) for f in ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")]
        if one["metadata"]["name"] == "web" and counts != [4, 4, 4, 4]:
            return f"the Deployment says {counts}"
    return ""


def one_of_each_name(pods: list[Obj]) -> str:
    """A StatefulSet's ordinals: a name must never be there twice."""
    names = Counter(pod["metadata"]["name"] for pod in pods if pod["metadata"]["labels"].get("app") == "db")
    twice = [name for name, number in names.items() if number > 1]
    return f"twice: {twice}" if twice else ""


def reclock(fleet: RunningFleet, *args: str, timeout: float = 200) -> Done:
    command = [sys.executable, "-c", "from reclock.cli import main; main()", *args]
    done = subprocess.run(
        [*command, "--kubeconfig", str(fleet.layout.kubeconfig)],
        capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def undrained(fleet: RunningFleet) -> Iterator[None]:
    yield
    for name in ("east", "west"):
        reclock(fleet, "uncordon", name)


def workload(kind: str, name: str, replicas: int, *, delay: str = "", claim: str = "") -> str:
    labels = {"app": name}
    pod: Obj = {"containers": [{"name": "main", "image": "example/web:1"}]}
    if claim:
        pod["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
    annotations = {"fleet.reclock.dev/start-delay": delay} if delay else {}
    return json.dumps({
        "apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels},
                 **({"serviceName": name} if kind == "StatefulSet" else {}),
                 "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod}},
    })  # fmt: skip


def apply(kubectl: Kubectl, *manifests: str) -> None:
    for manifest in manifests:
        kubectl("apply", "-f", "-", stdin=manifest)


def volume(fleet: RunningFleet, cluster: str, claim: str, namespace: str) -> str:
    """A volume on a member for the claim of that name, as nothing provisions any there."""
    name = f"{namespace}-{claim}"
    fleet.member(cluster)("apply", "-f", "-", stdin=json.dumps({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/data"},
                 "storageClassName": "", "claimRef": {"namespace": namespace, "name": claim}},
    }))  # fmt: skip
    return name


def claim(name: str) -> str:
    return json.dumps({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}},
    })  # fmt: skip


@contextmanager
def policy(fleet: RunningFleet, name: str, namespace: str, kind: str, **spec: Any) -> Iterator[None]:
    """A PlacementPolicy for one kind in one namespace."""
    fleet.kubectl("apply", "-f", "-", stdin=json.dumps({
        "apiVersion": "reclock.dev/v1alpha1", "kind": "PlacementPolicy", "metadata": {"name": name},
        "spec": {"resourceSelectors": [{"kind": kind, "namespace": namespace}], **spec},
    }))  # fmt: skip
    try:
        yield
    finally:
        fleet.kubectl("delete", "placementpolicy", name)


def homes(kubectl: Kubectl, selector: str) -> Counter[str]:
    return Counter(cluster_of(pod) for pod in ready_pods(kubectl, selector))


def status_of(kubectl: Kubectl, name: str) -> Obj:
    found: Obj = kubectl.json("get", "workload", name).get("status", {})
    return found


def condition(kubectl: Kubectl, name: str, kind: str) -> Obj:
    conditions: list[Obj] = status_of(kubectl, name).get("conditions", [])
    return next((c for c in conditions if c["type"] == kind), {})


@pytest.fixture
def volumes(fleet: RunningFleet, kubectl: Kubectl) -> Iterator[None]:
    names = [(cluster, volume(fleet, cluster, "data", kubectl.namespace)) for cluster in ("east", "west")]
    yield
    for cluster, name in names:
        fleet.member(cluster).run("delete", "pv", name, "--wait=false")


@pytest.mark.usefixtures("undrained", "volumes")
def test_drain_of_all_kinds(fleet: RunningFleet, kubectl: Kubectl) -> None:
    """Available pods never below four, ordinals never twice; the command shows what is left and why."""
    assert reclock(fleet, "cordon", "west").code == 0
    eventually(lambda: fleet.kubectl.json("get", "cluster", "west")["spec"].get("taints"), 20)
    apply(kubectl, claim("data"), workload("Deployment", "data", 1, claim="data"), workload("StatefulSet", "db", 2))
    kubectl("rollout", "status", "statefulset/db", "--timeout=90s")
    kubectl("rollout", "status", "deployment/data", "--timeout=90s")
    assert reclock(fleet, "uncordon", "west").code == 0
    apply(kubectl, workload("Deployment", "web", 4, delay="1500ms"))
    kubectl("rollout", "status", "deployment/web", "--timeout=90s")
    assert homes(kubectl, "app=web") == {"east": 2, "west": 2}
    stayed = {pod["metadata"]["uid"] for pod in ready_pods(kubectl, "app=web") if cluster_of(pod) == "west"}

    with policy(fleet, f"east-{kubectl.namespace}", kubectl.namespace, "Job", clusterNames=["east"]):
        apply(kubectl, job("work", run_time="15s"))
        eventually(lambda: kubectl.json("get", "job", "work")["status"].get("active") == 1, 60)

    base = f"/namespaces/{kubectl.namespace}"
    pods = Watched(fleet, f"/api/v1{base}/pods", lambda found: four_of_web(found) or one_of_each_name(found))
    deployments = Watched(fleet, f"/apis/apps/v1{base}/deployments", sane_web)
    with pods, deployments:
        eventually(lambda: pods.store and deployments.store, 20)
        pods.armed.set()
        deployments.armed.set()
        drained = reclock(fleet, "drain", "east", "--timeout", "150")
        assert drained.code == 1, drained.out + drained.err
        kubectl("rollout", "status", "statefulset/db", "--timeout=90s")
    assert pods.problems == [] and deployments.problems == []

    assert "job/work" in drained.out and "JobRuns" in drained.out and "deployment/web" in drained.out
    assert "deployment/data" in drained.err and "HasVolumes" in drained.err and "job/work" not in drained.err
    assert homes(kubectl, "app=web") == {"west": 4}
    assert stayed <= {pod["metadata"]["uid"] for pod in ready_pods(kubectl, "app=web")}
    assert homes(kubectl, "app=db") == {"west": 2}
    assert homes(kubectl, "app=data") == {"east": 1}
    assert kubectl.json("get", "job", "work")["status"]["succeeded"] == 1
    assert not [rs for rs in fleet.member("east").within(kubectl.namespace).items("rs") if "web" in rs["metadata"]["name"]]
    why = reclock(fleet, "explain", "deployment/data", "-n", kubectl.namespace)
    assert "DrainBlocked=True" in why.out and "moveVolumes: Discard" in why.out.replace("\n", " ")
    assert "DrainBlocked" in {event["reason"] for event in kubectl.items("events")}

    with policy(fleet, f"discard-{kubectl.namespace}", kubectl.namespace, "Deployment", moveVolumes="Discard"):
        eventually(lambda: condition(kubectl, "deployment-data", "DrainBlocked").get("status") == "False", 60)
        again = reclock(fleet, "drain", "east", "--timeout", "90")
        assert again.code == 0, again.out + again.err
        assert homes(kubectl, "app=data") == {"west": 1}


@pytest.mark.usefixtures("undrained")
def test_drain_through_kill_9_and_stopped_half_way(fleet: RunningFleet, kubectl: Kubectl) -> None:
    apply(kubectl, workload("Deployment", "web", 4, delay="10s"))
    kubectl("rollout", "status", "deployment/web", "--timeout=120s")
    before = {pod["metadata"]["uid"]: cluster_of(pod) for pod in ready_pods(kubectl, "app=web")}
    assert Counter(before.values()) == {"east": 2, "west": 2}
    pods = Watched(fleet, f"/api/v1/namespaces/{kubectl.namespace}/pods", four_of_web)

    def surging() -> bool:
        return bool(condition(kubectl, "deployment-web", "Moving").get("status") == "True")

    with pods:
        eventually(lambda: pods.store, 20)
        pods.armed.set()
        assert reclock(fleet, "drain", "east", "--no-wait").code == 0
        eventually(lambda: len(kubectl.items("pods", "-l", "app=web")) == 6, 60, every=0.1)
        six = {pod["metadata"]["uid"] for pod in kubectl.items("pods", "-l", "app=web")}
        assert reclock(fleet, "uncordon", "east").code == 0
        eventually(lambda: len(kubectl.items("pods", "-l", "app=web")) == 4, 60)
        after = {pod["metadata"]["uid"]: cluster_of(pod) for pod in ready_pods(kubectl, "app=web")}
        assert set(after) <= six, "nothing was started to move back"
        moved = set(after) - set(before)
        assert Counter(after.values()) == Counter(east=2 - len(moved), west=2 + len(moved)), "what had not left stayed"
        eventually(lambda: not status_of(kubectl, "deployment-web").get("moving"), 30)

        # On a busy machine all may have moved before it was stopped: then there is something to move back.
        left, home = ("east", "west") if len(moved) < 2 else ("west", "east")
        assert reclock(fleet, "drain", left, "--no-wait").code == 0
        for name in ("scheduler", "reconciler"):
            fleet.do("kill9", name)
        for name in ("scheduler", "reconciler"):
            fleet.do("start", name)
        eventually(surging, 90, every=0.1)
        for name in ("reconciler", "scheduler"):
            fleet.do("kill9", name)
            fleet.do("start", name)
        done = reclock(fleet, "drain", left, "--timeout", "120")
        assert done.code == 0, done.out + done.err
    assert pods.problems == []
    assert homes(kubectl, "app=web") == {home: 4}
    assert len(kubectl.items("pods", "-l", "app=web")) == 4, "nothing is doubled"
    assert condition(kubectl, "deployment-web", "Moving")["reason"] == "Moved"


@pytest.mark.usefixtures("undrained")
def test_jobs_that_a_drain_may_suspend_run_again_elsewhere(fleet: RunningFleet, kubectl: Kubectl) -> None:
    with policy(fleet, f"suspend-{kubectl.namespace}", kubectl.namespace, "Job", drainJobs="Suspend"):
        apply(kubectl, job("work", run_time="600s"))
        eventually(lambda: kubectl.json("get", "job", "work")["status"].get("ready") == 1, 60)
        home = cluster_of(ready_pods(kubectl, "job-name=work")[0])
        done = reclock(fleet, "drain", home, "--timeout", "90")
        assert done.code == 0, done.out + done.err
        eventually(lambda: kubectl.json("get", "job", "work")["status"].get("ready") == 1, 60)
        assert homes(kubectl, "job-name=work") == {"west" if home == "east" else "east": 1}
        assert not kubectl.json("get", "job", "work")["status"].get("failed")
