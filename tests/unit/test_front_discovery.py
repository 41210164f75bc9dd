"""Types are merged into discovery and OpenAPI documents; what is there already stays as it is."""

from __future__ import annotations

import pytest

from services.aggregator.front import openapi, own_types
from services.aggregator.front.discovery import (
    Added,
    made_up,
    merge_aggregated,
    merge_group,
    merge_groups,
    merge_resources,
    old_entries,
    served,
)

WIDGETS = {
    "resource": "widgets", "responseKind": {"group": "example.com", "version": "v1", "kind": "Widget"},
    "scope": "Namespaced", "singularResource": "widget", "verbs": ["get", "list"], "shortNames": ["wd"],
    "subresources": [{"subresource": "status", "responseKind": {"kind": "Widget"}, "verbs": ["get", "patch"]}],
}  # fmt: skip
ADDED = Added("example.com", "v1", WIDGETS, "east")
OWN = Added(own_types.GROUP, own_types.VERSION, own_types.ENTRY)
HOST = {
    "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {},
    "items": [
        {"metadata": {"name": "reclock.dev"}, "versions": [
            {"version": "v1alpha1", "freshness": "Current", "resources": [{"resource": "clusters", "verbs": ["get"]}]},
        ]},
    ],
}  # fmt: skip


def test_aggregated_documents_gain_types_in_old_and_new_groups() -> None:
    merged = merge_aggregated(HOST, [OWN, ADDED])
    index = served([merged])
    assert set(index) == {("reclock.dev", "clusters"), ("reclock.dev", "versionmarkers"), ("example.com", "widgets")}
    assert index["example.com", "widgets"] == {"v1": WIDGETS}
    assert merged["apiVersion"] == HOST["apiVersion"]
    assert len(HOST["items"]) == 1 and len(HOST["items"][0]["versions"][0]["resources"]) == 1  # the input is untouched
    assert merge_aggregated(merged, [OWN, ADDED]) == merged


def test_old_documents() -> None:
    groups = merge_groups({"kind": "APIGroupList", "groups": [{"name": "apps", "versions": []}]}, [ADDED])
    assert [group["name"] for group in groups["groups"]] == ["apps", "example.com"]
    version = {"groupVersion": "example.com/v1", "version": "v1"}
    assert groups["groups"][1] == {"name": "example.com", "versions": [version], "preferredVersion": version}
    group = merge_group(None, "example.com", [ADDED])
    assert (group["kind"], group["versions"]) == ("APIGroup", [version])
    resources = merge_resources(None, "example.com/v1", [ADDED])
    assert resources["groupVersion"] == "example.com/v1"
    assert resources["resources"] == old_entries(WIDGETS)
    assert merge_resources(resources, "example.com/v1", [ADDED]) == resources


def test_old_entries_name_subresources() -> None:
    main, status = old_entries(WIDGETS)
    assert main == {
        "name": "widgets", "singularName": "widget", "namespaced": True, "kind": "Widget", "verbs": ["get", "list"],
        "shortNames": ["wd"],
    }  # fmt: skip
    assert (status["name"], status["verbs"], status["namespaced"]) == ("widgets/status", ["get", "patch"], True)


def test_a_type_that_nobody_serves_is_made_up_from_its_aggregation() -> None:
    entry = made_up("example.com", "v2", "gadgets", "Gadget", namespaced=False)
    assert old_entries(entry)[0]["kind"] == "Gadget" and not old_entries(entry)[0]["namespaced"]
    assert "watch" in entry["verbs"]


def test_openapi_v2_in_json() -> None:
    host = {"swagger": "2.0", "definitions": {"A": {"x": 1}}, "paths": {"/api/v1/pods": {}}}
    member = {
        "definitions": {"A": {"x": 2}, "com.example.v1.Widget": {}},
        "paths": {"/apis/example.com/v1/widgets": {}, "/apis/other.com/v1/things": {}},
    }
    merged = openapi.merge_v2(host, [(member, openapi.prefixes([ADDED]))])
    assert merged["definitions"]["A"] == {"x": 1}
    assert {"com.example.v1.Widget", own_types.DEFINITION} < set(merged["definitions"])
    assert "/apis/example.com/v1/widgets" in merged["paths"] and "/apis/other.com/v1/things" not in merged["paths"]
    assert "/apis/reclock.dev/v1alpha1/versionmarkers" in merged["paths"]


def test_openapi_v3_in_json_and_its_index() -> None:
    merged = openapi.merge_v3({"openapi": "3.0.0", "paths": {}, "components": {}}, [], own=True)
    reference = merged["components"]["schemas"][own_types.DEFINITION]["properties"]["metadata"]["$ref"]
    assert reference.startswith("#/components/schemas/")
    host = {"paths": {
        "apis/reclock.dev/v1alpha1": {"serverRelativeURL": "/openapi/v3/apis/reclock.dev/v1alpha1?hash=AA"},
        "api/v1": {"serverRelativeURL": "/openapi/v3/api/v1?hash=BB"},
    }}  # fmt: skip
    member = {"paths": {"apis/example.com/v1": {"serverRelativeURL": "/openapi/v3/apis/example.com/v1?hash=CC"}}}
    paths = openapi.merge_v3_index(host, [(member, [ADDED])], "OWN")["paths"]
    assert paths["api/v1"] == host["paths"]["api/v1"]
    assert paths["apis/example.com/v1"]["serverRelativeURL"].endswith("/apis/example.com/v1?hash=CC")
    assert paths["apis/reclock.dev/v1alpha1"]["serverRelativeURL"].endswith("?hash=AAOWN")


def protobuf_document(definitions: list[str], paths: list[str]) -> bytes:
    """A gnostic Document of empty definitions and paths."""
    named = b"".join(openapi._field(1, openapi._field(1, name.encode()) + openapi._field(2, b"")) for name in definitions)
    items = b"".join(openapi._field(2, openapi._field(1, path.encode()) + openapi._field(2, b"")) for path in paths)
    return openapi._field(1, b"2.0") + openapi._field(9, named) + openapi._field(8, items)


def test_openapi_v2_in_protobuf_grows_by_concatenation() -> None:
    host = protobuf_document(["A"], ["/api/v1/pods"])
    member = protobuf_document(["A", "com.example.v1.Widget"], ["/apis/example.com/v1/widgets", "/apis/other.com/v1/x"])
    merged = openapi.merge_v2_protobuf(host, [(member, openapi.prefixes([ADDED]))])
    assert merged.startswith(host)
    assert list(openapi._named(merged, 9, 1)) == ["A", own_types.DEFINITION, "com.example.v1.Widget"]
    assert list(openapi._named(merged, 8, 2)) == ["/api/v1/pods", "/apis/example.com/v1/widgets"]


def test_cut_off_protobuf_is_refused() -> None:
    document = protobuf_document(["A"], [])
    whole = {5, len(document) - 2, len(document)}  # where a field ends: swagger, definitions, (empty) paths
    for size in set(range(1, len(document))) - whole:
        with pytest.raises(ValueError, match="cut off"):
            openapi._named(document[:size], 9, 1)
