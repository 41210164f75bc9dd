"""`Cluster` objects: what needs no host to be seen."""

from __future__ import annotations

from kube_fake import kubeconfig

from services.common.errors import StatusError
from services.common.kube.client import KubeClient
from services.discovery.hub import Hub
from services.discovery.objects import ClusterObjects, conflicting_labels, differs
from services.discovery.providers.base import Reading, found
from services.discovery.registry import Registry


async def test_a_cordoned_cluster_that_comes_back_never_looks_open() -> None:
    registry = Registry(Hub(), ["files"])
    client = await KubeClient.connect(kubeconfig("host", {"server": "http://127.0.0.1:1"}), name="")
    objects = ClusterObjects(client, registry)
    registry.add_keeper(objects)
    objects.informer.store["", "east"] = {
        "metadata": {"name": "east", "labels": {"region": "eu", "tier": "one"}},
        "spec": {"taints": [{"key": "reclock.dev/maintenance", "effect": "NoSchedule"}]},
    }
    before = registry.hub.version
    east = found("east", kubeconfig("east", {"server": "https://east:1"}), "x", {"tier": "one"})
    registry.reading("files", Reading((east,)))
    ((_, _, first),) = registry.hub.since(before, with_access=False)
    assert [taint.effect for taint in first.taints] == ["NoSchedule"]
    assert dict(first.labels) == {"region": "eu", "tier": "one"}
    assert registry.records["east"].operator.labels == {"region": "eu"}
    await client.close()


def test_latency_alone_is_no_difference() -> None:
    assert not differs({"uid": "1", "latency": "1ms"}, {"uid": "1", "latency": "9ms"})
    assert differs({"uid": "1"}, {"uid": "2"})


def test_labels_that_others_hold_are_read_from_the_conflict() -> None:
    causes = [
        {"reason": "FieldManagerConflict", "field": ".metadata.labels.region"},
        {"reason": "FieldManagerConflict", "field": '.metadata.labels["a.b/c"]'},
        {"reason": "FieldManagerConflict", "field": ".spec.taints"},
    ]
    error = StatusError(409, "Conflict", "x", details={"causes": causes})
    assert conflicting_labels(error) == {"region", "a.b/c"}
