"""Changing pods of both clusters with kubectl's editing commands."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.kube.session.tools import Kubectl, RunningFleet, cluster_of, eventually, ready_pods


@pytest.fixture
def pods(kubectl: Kubectl) -> dict[str, str]:
    """One ready pod on each member, made by a Deployment: cluster -> name."""
    kubectl("create", "deployment", "web", "--image=example/web:1", "--replicas=4")
    kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    found = {cluster_of(pod): pod["metadata"]["name"] for pod in ready_pods(kubectl, "app=web")}
    assert set(found) == {"east", "west"}
    return found


def test_label_annotate_patch_on_both_clusters(
    fleet: RunningFleet, kubectl: Kubectl, pods: dict[str, str]
) -> None:
    for cluster, name in pods.items():
        kubectl("label", "pod", name, "color=red")
        kubectl("annotate", "pod", name, "note=hello")
        kubectl("patch", "pod", name, "--type=merge", "-p", '{"metadata":{"labels":{"merge":"1"}}}')
        kubectl("patch", "pod", name, "--type=strategic", "-p", '{"metadata":{"labels":{"strategic":"1"}}}')
        kubectl(
            "patch",
            "pod",
            name,
            "--type=json",
            "-p",
            '[{"op":"add","path":"/metadata/annotations/json","value":"1"}]',
        )
        native = fleet.member(cluster).within(kubectl.namespace).json("get", "pod", name)["metadata"]
        assert native["labels"].items() >= {"color": "red", "merge": "1", "strategic": "1"}.items()
        assert native["annotations"]["note"] == "hello" and native["annotations"]["json"] == "1"
        assert "reclock.dev/cluster" not in native["annotations"]
        shown = kubectl.json("get", "pod", name)["metadata"]
        assert shown["annotations"]["reclock.dev/cluster"] == cluster
        assert shown["resourceVersion"] != native["resourceVersion"]


def test_edit(
    kubectl: Kubectl, pods: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i \'s/^    app: web$/    app: web\\n    edited: "yes"/\' "$1"\n')
    editor.chmod(0o755)
    monkeypatch.setitem(os.environ, "KUBE_EDITOR", str(editor))
    name = pods["west"]
    kubectl("edit", "pod", name)
    assert kubectl.json("get", "pod", name)["metadata"]["labels"]["edited"] == "yes"


def test_apply_and_server_side_apply_with_a_conflict(kubectl: Kubectl) -> None:
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "solo", "labels": {"v": "1"}},
        "spec": {"containers": [{"name": "main", "image": "example/solo:1"}]},
    }  # fmt: skip
    kubectl("apply", "-f", "-", stdin=json.dumps(pod))
    pod["metadata"]["labels"] = {"v": "2"}  # type: ignore[index]
    assert "configured" in kubectl("apply", "-f", "-", stdin=json.dumps(pod))
    other = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "solo", "labels": {"ssa": "a"}}}
    kubectl("apply", "--server-side", "--field-manager=one", "-f", "-", stdin=json.dumps(other))
    other["metadata"]["labels"] = {"ssa": "b"}  # type: ignore[index]
    refused = kubectl.fails(
        "apply", "--server-side", "--field-manager=two", "-f", "-", stdin=json.dumps(other)
    )
    assert "conflict" in refused.lower()
    kubectl(
        "apply",
        "--server-side",
        "--field-manager=two",
        "--force-conflicts",
        "-f",
        "-",
        stdin=json.dumps(other),
    )
    assert kubectl.json("get", "pod", "solo")["metadata"]["labels"]["ssa"] == "b"


def test_server_side_apply_creates(kubectl: Kubectl) -> None:
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "applied"},
        "spec": {"containers": [{"name": "main", "image": "example/solo:1"}]},
    }  # fmt: skip
    kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(pod))
    assert cluster_of(kubectl.json("get", "pod", "applied")) in ("east", "west")


def test_replace_with_a_stale_version_conflicts(kubectl: Kubectl, pods: dict[str, str]) -> None:
    for name in pods.values():
        old = kubectl.json("get", "pod", name)
        kubectl("label", "pod", name, "touched=1")
        assert "Conflict" in kubectl.fails("replace", "-f", "-", stdin=json.dumps(old))
        new = kubectl.json("get", "pod", name)
        new["metadata"]["labels"]["replaced"] = "1"
        kubectl("replace", "-f", "-", stdin=json.dumps(new))


def test_delete_all_and_force(kubectl: Kubectl) -> None:
    for name in ("a", "b", "c"):
        kubectl("run", name, "--image=example/solo:1")
    kubectl("delete", "pod", "a", "--grace-period=0", "--force")
    kubectl("delete", "pods", "--all")
    eventually(lambda: not kubectl.items("pods"), 30)


def test_name_that_exists_on_a_member_is_refused(fleet: RunningFleet, kubectl: Kubectl) -> None:
    kubectl("run", "one", "--image=example/solo:1")
    assert "AlreadyExists" in kubectl.fails("create", "-f", "-", stdin=json.dumps({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"},
        "spec": {"containers": [{"name": "main", "image": "example/solo:1"}]},
    }))  # fmt: skip
