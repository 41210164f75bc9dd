"""Writes whose rules only real apiservers show: dry runs, collections with hidden objects, subresources, owners."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kube.session.tools import Kubectl, RunningFleet, cluster_of, eventually, ready_pods

GROUP = "writes.example.com"
CRD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"engines.{GROUP}"},
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"plural": "engines", "singular": "engine", "kind": "Engine"},
        "versions": [{
            "name": "v1", "served": True, "storage": True,
            "subresources": {"status": {}, "scale": {
                "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
            "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": True,
                "properties": {
                    "spec": {"type": "object", "properties": {"replicas": {"type": "integer"}}},
                    "status": {"type": "object", "properties": {"replicas": {"type": "integer"}}},
                },
            }},
        }],
    },
}  # fmt: skip
AGGREGATION = {
    "apiVersion": "reclock.dev/v1alpha1", "kind": "APIAggregation", "metadata": {"name": "engines"},
    "spec": {"group": GROUP, "version": "v1", "resource": "engines"},
}  # fmt: skip


def pod(name: str, **fields: Any) -> str:
    metadata = {"name": name, **fields.pop("metadata", {})}
    spec = {"containers": [{"name": "main", "image": "example/solo:1"}], **fields}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def raw(kubectl: Kubectl, path: str) -> str:
    return f"/api/v1/namespaces/{kubectl.namespace}/{path}"


def test_dry_runs_change_nothing(fleet: RunningFleet, kubectl: Kubectl) -> None:
    done = kubectl.run("create", "-f", "-", "--dry-run=server", "-o", "json", stdin=pod("dry"))
    assert done.code == 0, done.err
    assert "resourceVersion" not in json.loads(done.out)["metadata"]
    assert "the host judged this dry run" in done.err
    for member in ("east", "west"):
        assert "NotFound" in fleet.member(member).fails("get", "namespace", kubectl.namespace)
    kubectl("create", "-f", "-", stdin=pod("real"))
    before = kubectl.json("get", "pod", "real")["metadata"]
    kubectl("delete", "pod", "real", "--dry-run=server")
    kubectl("delete", "pods", "--all", "--dry-run=server")
    kubectl("label", "pod", "real", "a=b", "--dry-run=server")
    kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", stdin=pod("other"))
    after = [p["metadata"] for p in kubectl.items("pods")]
    assert [(m["uid"], m.get("labels")) for m in after] == [(before["uid"], before.get("labels"))]


def test_pod_that_names_what_its_member_lacks_is_warned_about(kubectl: Kubectl) -> None:
    volume = {"name": "v", "secret": {"secretName": "password"}}
    done = kubectl.run("create", "-f", "-", stdin=pod("needy", volumes=[volume]))
    assert done.code == 0 and "Secret 'password'" in done.err and "/clusters/" in done.err
    refused = kubectl.fails("create", "-f", "-", stdin=pod("robot", serviceAccountName="robot"))
    assert "ServiceAccount 'robot'" in refused and "Forbidden" in refused


def test_generated_names(kubectl: Kubectl) -> None:
    made = json.loads(pod("x"))
    made["metadata"] = {"generateName": "made-"}
    names = {kubectl("create", "-f", "-", "-o", "name", stdin=json.dumps(made)) for _ in range(3)}
    assert len(names) == 3 and all(name.startswith("pod/made-") for name in names)


def test_collection_keeps_what_is_hidden(fleet: RunningFleet, kubectl: Kubectl) -> None:
    """The older of two objects of one name is shown; the other is nobody's to delete through the merged view."""
    for member in ("east", "west"):
        fleet.member(member).run("create", "namespace", kubectl.namespace)
    for member, name in (("east", "twin"), ("west", "twin"), ("west", "single")):
        fleet.member(member).within(kubectl.namespace)("create", "-f", "-", stdin=pod(name))
        eventually(lambda n=name: kubectl.run("get", "pod", n).code == 0, 20)  # type: ignore[misc]
    eventually(lambda: len(kubectl.items("versionmarkers.reclock.dev")) >= 3, 20)
    kubectl("delete", "--raw", raw(kubectl, "pods") + "?gracePeriodSeconds=0")
    west = fleet.member("west").within(kubectl.namespace)
    assert [p["metadata"]["name"] for p in west.items("pods")] == ["twin"]
    shown = eventually(lambda: kubectl.items("pods"), 20)
    assert [(p["metadata"]["name"], cluster_of(p)) for p in shown] == [("twin", "west")]
    kubectl("delete", "--raw", raw(kubectl, "pods") + "?gracePeriodSeconds=0")
    assert west.items("pods") == []
    for member in ("east", "west"):
        fleet.member(member).run("delete", "namespace", kubectl.namespace, "--wait=false")


def test_eviction_status_and_debug(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=pod("solo"))
    kubectl("debug", "solo", "--image=example/tools:1", "--profile=general", "--attach=false")
    assert kubectl.json("get", "pod", "solo")["spec"]["ephemeralContainers"]
    kubectl("patch", "pod", "solo", "--subresource=status", "--type=merge", "-p", '{"status":{"message":"a"}}')
    operations = [{"op": "test", "path": "/status/message", "value": "a"},
                  {"op": "replace", "path": "/status/message", "value": "b"},
                  {"op": "remove", "path": "/metadata/resourceVersion"}]  # fmt: skip
    kubectl("patch", "pod", "solo", "--subresource=status", "--type=json", "-p", json.dumps(operations))
    shown = kubectl.json("get", "pod", "solo")
    assert shown["status"]["message"] == "b"
    stale = {"uid": shown["metadata"]["uid"], "resourceVersion": "1"}
    eviction: dict[str, Any] = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "solo"}}
    path = raw(kubectl, "pods/solo/eviction")
    refused = kubectl.fails(
        "create", "--raw", path, "-f", "-", stdin=json.dumps(eviction | {"deleteOptions": {"preconditions": stale}})
    )
    assert "the object has been modified" in refused
    kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
    left = kubectl.items("pods")
    assert not left or "deletionTimestamp" in left[0]["metadata"], "the next read sees what was evicted"


@pytest.mark.parametrize("how", ["merge", "json", "put"])
def test_the_last_finalizer_goes_and_the_object_with_it(kubectl: Kubectl, how: str) -> None:
    """kube-apiserver answers the version before the deletion: the next read must not show the object all the same."""
    kubectl("create", "-f", "-", stdin=pod("held", metadata={"finalizers": ["example.com/held"]}))
    kubectl("delete", "pod", "held", "--grace-period=0", "--force", "--wait=false")
    shown = eventually(lambda: kubectl.json("get", "pod", "held"), 20)
    version = shown["metadata"]["resourceVersion"]
    assert shown["metadata"]["deletionTimestamp"]
    if how == "put":
        del shown["metadata"]["finalizers"]
        del shown["metadata"]["resourceVersion"]
        answer = kubectl("replace", "--raw", raw(kubectl, "pods/held"), "-f", "-", stdin=json.dumps(shown))
    else:
        operations = [{"op": "remove", "path": "/metadata/finalizers"}]
        body: Any = operations if how == "json" else {"metadata": {"finalizers": None}}
        answer = kubectl("patch", "pod", "held", f"--type={how}", "-p", json.dumps(body), "-o", "json")
    assert json.loads(answer)["metadata"]["resourceVersion"] == version
    assert kubectl.items("pods") == []


def test_replace_by_force_and_in_yaml(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=pod("again"))
    shown = kubectl("get", "pod", "again", "-o", "yaml")
    uid = kubectl.json("get", "pod", "again")["metadata"]["uid"]
    kubectl("replace", "--force", "--grace-period=0", "-f", "-", stdin=shown)
    assert kubectl.json("get", "pod", "again")["metadata"]["uid"] != uid


def test_owners_survive_patches_and_puts(fleet: RunningFleet, kubectl: Kubectl) -> None:
    """A pod of a copied ReplicaSet: shown with the host's uid, kept with the member's, whatever is written."""
    kubectl("create", "deployment", "web", "--image=example/web:1", "--replicas=1")
    (one,) = eventually(lambda: ready_pods(kubectl, "app=web"), 60)  # its kubelet writes no more then
    name, cluster = one["metadata"]["name"], cluster_of(one)
    (set_,) = kubectl.items("replicasets", "-l", "app=web")
    member = fleet.member(cluster).within(kubectl.namespace)
    (native,) = member.json("get", "pod", name)["metadata"]["ownerReferences"]
    assert one["metadata"]["ownerReferences"][0]["uid"] == set_["metadata"]["uid"] != native["uid"]

    def unchanged() -> None:
        assert member.json("get", "pod", name)["metadata"]["ownerReferences"] == [native]
        now = kubectl.json("get", "pod", name)["metadata"]
        assert now["ownerReferences"] == one["metadata"]["ownerReferences"]

    kubectl("patch", "pod", name, "--type=json", "-p", '[{"op":"add","path":"/metadata/annotations/a","value":"1"}]')
    unchanged()
    kubectl("replace", "-f", "-", stdin=json.dumps(kubectl.json("get", "pod", name)))
    unchanged()
    references = {"metadata": {"ownerReferences": one["metadata"]["ownerReferences"]}}
    kubectl("patch", "pod", name, "--type=strategic", "-p", json.dumps(references))
    unchanged()
    kubectl("patch", "pod", name, "--type=merge", "-p", '{"metadata":{"annotations":null}}')
    unchanged()
    shown = kubectl("get", "pod", name, "-o", "json", "--show-managed-fields")
    assert native["uid"] not in shown, "no uid of a copy is shown, managedFields included"


@pytest.fixture
def engines(fleet: RunningFleet, kubectl: Kubectl) -> Iterator[Kubectl]:
    """A type with status and scale that only the members have, aggregated."""
    for member in ("east", "west"):
        fleet.member(member)("apply", "-f", "-", stdin=json.dumps(CRD))
    kubectl("apply", "-f", "-", stdin=json.dumps(AGGREGATION))
    eventually(lambda: kubectl.run("get", "engines").code == 0, 60)
    yield kubectl
    kubectl("delete", "apiaggregation", "engines")
    for member in ("east", "west"):
        fleet.member(member)("delete", "crd", CRD["metadata"]["name"], "--wait=false")


def test_scale_and_status_of_a_custom_type(engines: Kubectl) -> None:
    engine = {"apiVersion": f"{GROUP}/v1", "kind": "Engine", "metadata": {"name": "v8"}, "spec": {"replicas": 1}}
    engines("create", "-f", "-", stdin=json.dumps(engine))
    engines("scale", "engine", "v8", "--replicas=3")
    shown = engines.json("get", "engine", "v8")
    assert shown["spec"]["replicas"] == 3
    path = f"/apis/{GROUP}/v1/namespaces/{engines.namespace}/engines/v8/scale"
    scale = json.loads(engines("get", "--raw", path))
    assert scale["metadata"]["resourceVersion"] == shown["metadata"]["resourceVersion"]
    scale["spec"]["replicas"] = 5
    answered = json.loads(engines("replace", "--raw", path, "-f", "-", stdin=json.dumps(scale)))
    assert answered["kind"] == "Scale" and answered["spec"]["replicas"] == 5
    assert "Conflict" in engines.fails("replace", "--raw", path, "-f", "-", stdin=json.dumps(scale))
    operations = [{"op": "test", "path": "/metadata/resourceVersion", "value": answered["metadata"]["resourceVersion"]},
                  {"op": "replace", "path": "/spec/replicas", "value": 7}]  # fmt: skip
    engines("patch", "engine", "v8", "--subresource=scale", "--type=json", "-p", json.dumps(operations))
    engines("patch", "engine", "v8", "--subresource=status", "--type=merge", "-p", '{"status":{"replicas":7}}')
    shown = engines.json("get", "engine", "v8")
    assert (shown["spec"]["replicas"], shown["status"]["replicas"]) == (7, 7)
    engines("delete", "engine", "v8")
    assert engines.items("engines") == []
