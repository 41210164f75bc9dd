"""Looking at the fleet as at one cluster."""

from __future__ import annotations

import pytest
import yaml

from tests.kube.session.tools import Kubectl, RunningFleet


def test_clusters_and_nodes_of_both_members(fleet: RunningFleet) -> None:
    clusters = fleet.kubectl("get", "clusters")
    assert "east" in clusters and "west" in clusters
    nodes = {node["metadata"]["name"] for node in fleet.kubectl.items("nodes")}
    assert nodes == {"east-n0", "east-n1", "west-n0", "west-n1"}


def test_a_node_is_described_with_its_heartbeat(fleet: RunningFleet) -> None:
    described = fleet.kubectl("describe", "node", "east-n0")
    assert "RenewTime:" in described and "Failed to get lease" not in described


def test_pods_wide_has_a_cluster_column(fleet: RunningFleet) -> None:
    header = fleet.kubectl("get", "pods", "-A", "-o", "wide").splitlines()
    assert not header or "CLUSTER" in header[0]


def test_aggregations_are_accepted(fleet: RunningFleet) -> None:
    for one in fleet.kubectl.items("apiaggregations"):
        conditions = {c["type"]: c["status"] for c in one["status"]["conditions"]}
        assert conditions["Accepted"] == "True", one


def test_versionmarkers_of_both_types(fleet: RunningFleet) -> None:
    markers = yaml.safe_load(fleet.kubectl("get", "versionmarkers", "-A", "-o", "yaml"))["items"]
    assert {marker["type"] for marker in markers} == {"Mapping", "Bookmark"}
    mapping = next(marker for marker in markers if marker["type"] == "Mapping")
    assert int(mapping["template"]["metadata"]["resourceVersion"]) > int(mapping["object"]["resourceVersion"])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("api-resources",), "versionmarkers"),
        (("explain", "deployment.spec"), "DeploymentSpec"),
        (("explain", "pod.spec"), "PodSpec"),
        (("cluster-info",), "Kubernetes control plane"),
        (("version",), "reclock"),
        (("auth", "can-i", "create", "pods"), "yes"),
        (("auth", "whoami"), "system:masters"),
    ],
)
def test_client_commands(fleet: RunningFleet, arguments: tuple[str, ...], expected: str) -> None:
    assert expected in fleet.kubectl(*arguments)


def test_newest_kubectl_lists(fleet: RunningFleet) -> None:
    newest = Kubectl(fleet.kubectls["newest"], fleet.layout.kubeconfig)
    assert "east-n0" in newest("get", "nodes")
