"""Jobs, CronJobs, StatefulSets and DaemonSets."""

from __future__ import annotations

import json

from tests.kube.session.tools import Kubectl, RunningFleet, cluster_of, eventually


def job(name: str, *, suspend: bool = False, run_time: str = "") -> str:
    annotations = {"fleet.reclock.dev/run-time": run_time} if run_time else {}
    return json.dumps({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
        "spec": {
            "suspend": suspend,
            "template": {
                "metadata": {"annotations": annotations},
                "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "example/job:1"}]},
            },
        },
    })  # fmt: skip


def test_job_completes_and_its_logs_stay(fleet: RunningFleet, kubectl: Kubectl) -> None:
    kubectl("create", "job", "pi", "--image=example/pi:1")
    kubectl("wait", "--for=condition=complete", "job/pi", "--timeout=60s")
    assert kubectl("logs", "job/pi").strip()
    kubectl("delete", "job", "pi")
    for name in ("host", "east", "west"):
        eventually(lambda name=name: not fleet.member(name).within(kubectl.namespace).items("jobs,pods"))


def test_suspended_job_starts_and_stops(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=job("later", suspend=True, run_time="300s"))
    eventually(lambda: _condition(kubectl, "later", "Suspended") == "True", 30)
    assert not kubectl.items("pods", "-l", "job-name=later")
    kubectl("patch", "job", "later", "--type=merge", "-p", '{"spec":{"suspend":false}}')
    eventually(lambda: kubectl.json("get", "job", "later")["status"].get("active") == 1, 60)
    kubectl("patch", "job", "later", "--type=merge", "-p", '{"spec":{"suspend":true}}')
    eventually(lambda: not kubectl.json("get", "job", "later")["status"].get("active"), 60)
    eventually(lambda: _condition(kubectl, "later", "Suspended") == "True", 30)


def _condition(kubectl: Kubectl, name: str, kind: str) -> str:
    status = kubectl.json("get", "job", name).get("status", {})
    return next((c["status"] for c in status.get("conditions", []) if c["type"] == kind), "")


def test_cronjob_makes_jobs_that_are_placed(kubectl: Kubectl) -> None:
    kubectl("create", "cronjob", "tick", "--image=example/tick:1", "--schedule=* * * * *")
    made = eventually(lambda: kubectl.items("jobs"), 90)
    kubectl("wait", "--for=condition=complete", f"job/{made[0]['metadata']['name']}", "--timeout=60s")
    kubectl("delete", "cronjob", "tick")


def test_statefulset_with_its_service(fleet: RunningFleet, kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=json.dumps({
        "apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "db"},
             "spec": {"clusterIP": "None", "selector": {"app": "db"}, "ports": [{"port": 5432}]}},
            {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"},
             "spec": {"serviceName": "db", "replicas": 2, "selector": {"matchLabels": {"app": "db"}},
                      "template": {"metadata": {"labels": {"app": "db"}},
                                   "spec": {"containers": [{"name": "db", "image": "example/db:1"}]}}}},
        ],
    }))  # fmt: skip
    kubectl("rollout", "status", "statefulset/db", "--timeout=90s")
    pods = kubectl.items("pods", "-l", "app=db")
    assert sorted(pod["metadata"]["name"] for pod in pods) == ["db-0", "db-1"]
    home = {cluster_of(pod) for pod in pods}
    assert len(home) == 1
    service = fleet.member(home.pop()).within(kubectl.namespace).json("get", "service", "db")
    assert service["spec"]["clusterIP"] == "None"
    kubectl("delete", "statefulset/db", "service/db")


def test_daemonset_runs_on_both_members(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=json.dumps({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent"},
        "spec": {"selector": {"matchLabels": {"app": "agent"}},
                 "template": {"metadata": {"labels": {"app": "agent"}},
                              "spec": {"containers": [{"name": "agent", "image": "example/agent:1"}]}}},
    }))  # fmt: skip
    kubectl("rollout", "status", "daemonset/agent", "--timeout=90s")
    pods = kubectl.items("pods", "-l", "app=agent")
    assert sorted(cluster_of(pod) for pod in pods) == ["east", "east", "west", "west"]
    assert kubectl.json("get", "daemonset", "agent")["status"]["numberReady"] == 4
    kubectl("delete", "daemonset", "agent")
