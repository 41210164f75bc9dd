"""Custom resources of members, shown merged by one APIAggregation."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.kube.session.tools import Kubectl, RunningFleet, cluster_of, eventually


def definition(plural: str, kind: str) -> str:
    return json.dumps({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": plural, "kind": kind, "singular": kind.lower()},
            "versions": [{
                "name": "v1", "served": True, "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}}},
                "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
            }],
        },
    })  # fmt: skip


def widget(kind: str, name: str, size: int) -> str:
    return json.dumps(
        {"apiVersion": "example.com/v1", "kind": kind, "metadata": {"name": name}, "spec": {"size": size}}
    )


@pytest.fixture
def aggregated(fleet: RunningFleet, request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """A CRD on the members that the parameter names, and its APIAggregation."""
    plural, kind, members = request.param
    for member in members:
        fleet.member(member)("apply", "-f", "-", stdin=definition(plural, kind))
    fleet.kubectl("apply", "-f", "-", stdin=json.dumps({
        "apiVersion": "reclock.dev/v1alpha1", "kind": "APIAggregation", "metadata": {"name": plural},
        "spec": {"group": "example.com", "version": "v1", "resource": plural},
    }))  # fmt: skip
    eventually(lambda: fleet.kubectl.run("get", f"{plural}.example.com", "-A").code == 0, 40)
    yield plural, kind
    fleet.kubectl.run("delete", "apiaggregation", plural)
    for member in members:
        fleet.member(member).run("delete", "crd", f"{plural}.example.com", "--wait=false")


@pytest.mark.parametrize("aggregated", [("widgets", "Widget", ("east", "west"))], indirect=True)
def test_type_of_two_members(fleet: RunningFleet, kubectl: Kubectl, aggregated: tuple[str, str]) -> None:
    for member in ("east", "west"):
        native = fleet.member(member)
        native.run("create", "namespace", kubectl.namespace)
        native.within(kubectl.namespace)("apply", "-f", "-", stdin=widget("Widget", f"of-{member}", 1))
    eventually(lambda: len(kubectl.items("widgets")) == 2, 30)
    assert {cluster_of(one) for one in kubectl.items("widgets")} == {"east", "west"}
    assert "SIZE" in kubectl("get", "widgets") and "CLUSTER" in kubectl("get", "widgets")
    watch = kubectl.start("get", "widgets", "-w", "-o", "name")
    kubectl("patch", "widget", "of-west", "--type=merge", "-p", '{"spec":{"size":5}}')
    native_west = fleet.member("west").within(kubectl.namespace)
    assert native_west.json("get", "widget", "of-west")["spec"]["size"] == 5
    kubectl("delete", "widget", "of-east")
    assert not fleet.member("east").within(kubectl.namespace).items("widgets")
    kubectl("apply", "-f", "-", stdin=widget("Widget", "fresh", 2))
    assert cluster_of(kubectl.json("get", "widget", "fresh")) in ("east", "west")
    watch.terminate()
    assert "widget.example.com/of-west" in watch.communicate(timeout=10)[0]


@pytest.mark.parametrize("aggregated", [("lonelies", "Lonely", ("west",))], indirect=True)
def test_type_that_one_member_has(fleet: RunningFleet, kubectl: Kubectl, aggregated: tuple[str, str]) -> None:
    kubectl("apply", "-f", "-", stdin=widget("Lonely", "one", 3))
    assert cluster_of(kubectl.json("get", "lonely", "one")) == "west"
    assert "lonelies" in fleet.kubectl("api-resources", "--api-group=example.com")
    kubectl("delete", "lonely", "one")
