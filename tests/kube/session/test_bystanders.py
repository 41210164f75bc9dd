"""What members run for themselves: shown, never touched, and not collected through the front."""

from __future__ import annotations

import json

from tests.kube.session.tools import Kubectl, RunningFleet, cluster_of, eventually, ready_pods


def test_a_members_own_deployment(fleet: RunningFleet, kubectl: Kubectl) -> None:
    """Owners case 3: the front does not serve its ReplicaSet, so a garbage collector there must not see a reference."""
    east = fleet.member("east").within(kubectl.namespace)
    east.run("create", "namespace", kubectl.namespace)
    east("create", "deployment", "local", "--image=example/local:1", "--replicas=2")
    east("rollout", "status", "deployment/local", "--timeout=60s")
    before = {pod["metadata"]["uid"] for pod in east.items("pods", "-l", "app=local")}

    shown = eventually(
        lambda: len(ready_pods(kubectl, "app=local")) == 2 and ready_pods(kubectl, "app=local"), 30
    )
    for pod in shown:
        metadata = pod["metadata"]
        assert cluster_of(pod) == "east"
        assert "ownerReferences" not in metadata
        hidden = json.loads(metadata["annotations"]["reclock.dev/member-owners"])
        assert [owner["kind"] for owner in hidden] == ["ReplicaSet"]
    assert not kubectl.items("deployments,replicasets")

    name = shown[0]["metadata"]["name"]
    kubectl("label", "pod", name, "seen=yes")
    current = kubectl.json("get", "pod", name)
    current["metadata"]["labels"]["seen"] = "twice"
    kubectl("replace", "-f", "-", stdin=json.dumps(current))
    native = east.json("get", "pod", name)["metadata"]
    assert native["labels"]["seen"] == "twice"
    assert native["ownerReferences"][0]["kind"] == "ReplicaSet", "the member's reference survives a write"
    assert "reclock.dev/member-owners" not in native.get("annotations", {})
    assert {pod["metadata"]["uid"] for pod in east.items("pods", "-l", "app=local")} == before
    east("delete", "deployment", "local")


def test_owner_of_a_placed_pod_is_the_hosts(fleet: RunningFleet, kubectl: Kubectl) -> None:
    """Owners case 1: the copy's uid on the member, the host's uid outside."""
    kubectl("create", "deployment", "web", "--image=example/web:1", "--replicas=2")
    kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    host_uid = kubectl.items("replicasets")[0]["metadata"]["uid"]
    for pod in ready_pods(kubectl, "app=web"):
        assert [owner["uid"] for owner in pod["metadata"]["ownerReferences"]] == [host_uid]
        native = fleet.member(cluster_of(pod)).within(kubectl.namespace)
        inner = native.json("get", "pod", pod["metadata"]["name"])["metadata"]["ownerReferences"][0]["uid"]
        assert inner != host_uid
        assert native.items("replicasets")[0]["metadata"]["uid"] == inner
