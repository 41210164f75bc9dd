"""Who may do what: RBAC of the host decides for every cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.kube.session.tools import Kubectl, RunningFleet, eventually


@pytest.fixture
def alice(fleet: RunningFleet, kubectl: Kubectl, tmp_path: Path) -> Kubectl:
    """A service account with rights in one namespace only, by token."""
    kubectl("create", "serviceaccount", "alice")
    kubectl("create", "role", "reader", "--verb=get,list,watch", "--resource=pods,pods/log")
    kubectl("create", "role", "executor", "--verb=create,get", "--resource=pods/exec")
    kubectl("create", "rolebinding", "reader", "--role=reader", f"--serviceaccount={kubectl.namespace}:alice")
    kubectl(
        "create", "rolebinding", "executor", "--role=executor", f"--serviceaccount={kubectl.namespace}:alice"
    )
    token = kubectl("create", "token", "alice").strip()
    config = yaml.safe_load(fleet.layout.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    path = tmp_path / "alice.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return Kubectl(kubectl.binary, path, kubectl.namespace)


def test_rights_in_one_namespace(kubectl: Kubectl, alice: Kubectl) -> None:
    kubectl("create", "deployment", "web", "--image=example/web:1", "--replicas=2")
    kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    pods = [pod["metadata"]["name"] for pod in alice.items("pods")]
    assert len(pods) == 2
    for pod in pods:
        assert alice("logs", pod).strip()
        assert alice("exec", pod, "--", "echo", "hi").strip() == "hi"
    watch = alice.run("get", "pods", "-w", "--request-timeout=2s")
    assert "web-" in watch.out


def test_forbidden_elsewhere(alice: Kubectl) -> None:
    assert "Forbidden" in alice.within("kube-system").fails("get", "pods")
    assert "Forbidden" in alice.fails("get", "nodes")
    assert "Forbidden" in alice.fails("delete", "pod", "any")
    assert "Forbidden" in alice.fails("get", "--raw", "/clusters/east/api/v1/nodes")


def test_impersonation_only_where_allowed(kubectl: Kubectl, alice: Kubectl) -> None:
    assert "impersonate" in alice.fails("get", "pods", "--as=admin")
    assert kubectl("auth", "whoami", "--as=bob").count("bob")
    assert "Forbidden" in kubectl.fails("get", "nodes", "--as=bob")


def test_a_member_addressed_directly(fleet: RunningFleet) -> None:
    nodes = json.loads(fleet.kubectl("get", "--raw", "/clusters/east/api/v1/nodes"))["items"]
    assert {node["metadata"]["name"] for node in nodes} == {"east-n0", "east-n1"}
    native = {
        node["metadata"]["name"]: node["metadata"]["resourceVersion"]
        for node in fleet.member("east").items("nodes")
    }
    assert set(native) == {node["metadata"]["name"] for node in nodes}


def test_host_rights_apply_to_labels_of_clusters(fleet: RunningFleet) -> None:
    fleet.kubectl("label", "cluster", "east", "region=eu", "--overwrite")
    eventually(lambda: "eu" in fleet.kubectl("get", "cluster", "east", "--show-labels"))
