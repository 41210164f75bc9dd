"""What the front serves by itself: `versionmarkers` of reclock.dev, described as a CRD's type would be."""

from __future__ import annotations

from typing import Any

GROUP, VERSION, KIND, RESOURCE = "reclock.dev", "v1alpha1", "VersionMarker", "versionmarkers"
VERBS = ["get", "list", "watch"]
DEFINITION = "dev.reclock.v1alpha1.VersionMarker"
_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_GVK = {"group": GROUP, "version": VERSION, "kind": KIND}

ENTRY: dict[str, Any] = {
    "resource": RESOURCE,
    "responseKind": dict(_GVK),
    "scope": "Namespaced",
    "singularResource": "versionmarker",
    "verbs": VERBS,
    "categories": ["reclock"],
}
"""Its `APIResourceDiscovery`."""

WORKLOAD_EXPLAIN: dict[str, Any] = {
    "subresource": "explain",
    "responseKind": {"group": GROUP, "version": VERSION, "kind": "Explanation"},
    "verbs": ["get"],
}


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _object(description: str, properties: dict[str, Any] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "description": description}
    return {**found, "properties": properties} if properties else found


def schema(reference: str) -> dict[str, Any]:
    """The type's schema; `reference` is the prefix of references in the document it goes into."""
    return {
        "description": "VersionMarker ties the version that Reclock shows for an object to a cluster and the version "
        "that this cluster gave. Read-only.",
        "type": "object",
        "properties": {
            "apiVersion": _text("Version of this representation of an object."),
            "kind": _text("Kind of the object."),
            "metadata": {"description": "Standard object metadata.", "$ref": reference + _META},
            "type": _text("Mapping: of one object. Bookmark: how far one cluster has been read."),
            "store": _object("The cluster that holds the object.", {
                "cluster": _text("Name of the cluster; empty for the host."),
                "incarnation": _text("Identity of the cluster's store: another one after a restore from a backup."),
            }),
            "object": _object("The object as its cluster has it.", {
                "apiVersion": _text("API version that the cluster is read in."),
                "kind": _text("Kind."),
                "namespace": _text("Namespace."),
                "name": _text("Name."),
                "uid": _text("UID."),
                "resourceVersion": _text("Version that the cluster gave."),
            }),
            "template": _object("What Reclock shows: resourceVersion and labels, under metadata."),
        },
        "x-kubernetes-group-version-kind": [dict(_GVK)],
    }  # fmt: skip


def paths(document: int) -> dict[str, Any]:
    """The type's paths for an OpenAPI document of version 2 or 3."""
    base = f"/apis/{GROUP}/{VERSION}"
    return {
        f"{base}/{RESOURCE}": {"get": _operation("list", "ForAllNamespaces", document)},
        f"{base}/namespaces/{{namespace}}/{RESOURCE}": {"get": _operation("list", "", document)},
        f"{base}/namespaces/{{namespace}}/{RESOURCE}/{{name}}": {"get": _operation("get", "", document)},
    }


def _operation(action: str, suffix: str, document: int) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": "OK"}
    if document == 3:
        answer["content"] = {"application/json": {"schema": {"$ref": f"#/components/schemas/{DEFINITION}"}}}
    else:
        answer["schema"] = {"$ref": f"#/definitions/{DEFINITION}"}
    verb = "read" if action == "get" else action
    return {
        "description": f"{verb} {KIND} objects",
        "operationId": f"{verb}ReclockDevV1alpha1{'Namespaced' if not suffix else ''}{KIND}{suffix}",
        "responses": {"200": answer},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": dict(_GVK),
    }
