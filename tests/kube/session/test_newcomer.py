"""The first hour of a newcomer: each command works, or is refused or warned about with the next step."""

from __future__ import annotations

import json

import yaml

from tests.kube.session.tools import Kubectl, RunningFleet, cluster_of, eventually, ready_pods


def test_run_and_run_something_too_big(kubectl: Kubectl) -> None:
    kubectl("run", "small", "--image=example/web:1")
    kubectl("wait", "--for=condition=Ready", "pod/small", "--timeout=30s")
    big = kubectl.run(
        "run",
        "big",
        "--image=example/web:1",
        '--overrides={"spec":{"containers":[{"name":"big","image":"x","resources":{"requests":{"cpu":"900"}}}]}}',
    )
    assert big.code == 0
    assert "Warning" in big.err and "fits no cluster" in big.err
    assert kubectl.json("get", "pod", "big")["status"]["phase"] == "Pending"


def test_one_manifest_with_everything(fleet: RunningFleet, kubectl: Kubectl) -> None:
    suffix = kubectl.namespace.replace("-", "")
    kubectl("apply", "-f", "-", stdin="---\n".join(yaml.safe_dump(one) for one in [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
         "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"color": "blue"}},
        {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
         "metadata": {"name": f"{suffix}s.example.com"},
         "spec": {"group": "example.com", "scope": "Namespaced",
                  "names": {"plural": f"{suffix}s", "kind": suffix.title(), "singular": suffix},
                  "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {
                      "type": "object", "x-kubernetes-preserve-unknown-fields": True}}}]}},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
         "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}},
                  "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [
                      {"name": "web", "image": "example/web:1",
                       "envFrom": [{"configMapRef": {"name": "settings"}}]}]}}}},
    ]))  # fmt: skip
    kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    eventually(lambda: kubectl.run("apply", "-f", "-", stdin=json.dumps({
        "apiVersion": "example.com/v1", "kind": suffix.title(), "metadata": {"name": "one"}})).code == 0, 30)  # fmt: skip
    for member in {cluster_of(pod) for pod in ready_pods(kubectl, "app=web")}:
        native = fleet.member(member).within(kubectl.namespace)
        assert native.json("get", "configmap", "settings")["data"] == {"color": "blue"}
        eventually(
            lambda native=native: native.json("get", "service", "web")["spec"]["selector"] == {"app": "web"},
            20,
        )
    kubectl("delete", "crd", f"{suffix}s.example.com")


def test_autoscale_is_not_accepted_in_silence(kubectl: Kubectl) -> None:
    kubectl("create", "deployment", "web", "--image=example/web:1", "--replicas=1")
    done = kubectl.run("autoscale", "deployment", "web", "--min=1", "--max=3", "--cpu-percent=50")
    assert "Warning" in done.err


def test_delete_orphan_and_foreground(fleet: RunningFleet, kubectl: Kubectl) -> None:
    for name in ("keep", "gone"):
        kubectl("create", "deployment", name, "--image=example/web:1", "--replicas=2")
        kubectl("rollout", "status", f"deployment/{name}", "--timeout=60s")
    kubectl("delete", "deployment", "keep", "--cascade=orphan")
    assert len(kubectl.items("rs", "-l", "app=keep")) == 1
    kubectl("delete", "rs", "-l", "app=keep", "--cascade=orphan")
    assert len(ready_pods(kubectl, "app=keep")) == 2
    kubectl("delete", "deployment", "gone", "--cascade=foreground")
    eventually(
        lambda: not kubectl.items("rs", "-l", "app=gone") and not kubectl.items("pods", "-l", "app=gone"), 30
    )


def test_top_says_that_there_are_no_metrics(fleet: RunningFleet) -> None:
    assert "Metrics API not available" in fleet.kubectl.fails("top", "nodes")


def test_deleting_a_namespace_leaves_nothing_anywhere(fleet: RunningFleet) -> None:
    fleet.kubectl("create", "namespace", "passing")
    kubectl = fleet.kubectl.within("passing")
    kubectl("create", "deployment", "web", "--image=example/web:1", "--replicas=2")
    kubectl("run", "bare", "--image=example/web:1")
    kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    fleet.kubectl("delete", "namespace", "passing", "--timeout=90s", timeout=120)
    for name in ("host", "east", "west"):
        assert "passing" not in {
            one["metadata"]["name"]
            for one in fleet.member(name).items("namespaces")
            if one["status"]["phase"] == "Active"
        }
        assert not fleet.member(name).within("passing").items("pods")


def test_in_a_namespace_that_members_had_already_only_what_is_the_fleets_goes(fleet: RunningFleet) -> None:
    name = "shared"
    members = [fleet.member(cluster) for cluster in ("east", "west")]
    try:
        for member in members:
            member("create", "namespace", name)
            member("-n", name, "run", "local", "--image=example/web:1")
        front = fleet.kubectl.within(name)
        fleet.kubectl("create", "namespace", name)
        for pod in ("one", "two", "three"):
            front("run", pod, "--image=example/web:1", "--labels=app=mine")
        assert len(front.items("pods", "-l", "reclock.dev/routed,app=mine")) == 3
        front("wait", "--for=condition=Ready", "pod/one", "--timeout=60s")  # nobody else writes it then
        # The label survives writes that do not name it.
        body = front.json("get", "pod", "one")
        body["metadata"]["labels"] = {"app": "mine"}
        front("replace", "-f", "-", stdin=json.dumps(body))
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "applied", "labels": {"app": "mine"}},
                    "spec": {"containers": [{"name": "c", "image": "example/web:1"}]}}  # fmt: skip
        for version in ("1", "2"):
            manifest["metadata"]["annotations"] = {"version": version}  # type: ignore[index]
            front("apply", "--server-side", "-f", "-", stdin=json.dumps(manifest))
        assert len(front.items("pods", "-l", "reclock.dev/routed,app=mine")) == 4
        fleet.kubectl("delete", "namespace", name, timeout=90)
        for member in members:
            left = {pod["metadata"]["name"] for pod in member.within(name).items("pods")}
            assert left == {"local"}
    finally:
        fleet.kubectl.run("delete", "namespace", name, "--ignore-not-found")
        for member in members:
            member.run("delete", "namespace", name, "--ignore-not-found")
