"""Merges types into discovery documents: the aggregated ones and the old ones. Pure functions on plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Document = dict[str, Any]

API_GROUP_DISCOVERY = "apidiscovery.k8s.io"


@dataclass(frozen=True)
class Added:
    """A type that the host does not serve; `entry` is its `APIResourceDiscovery`, `member` who serves it."""

    group: str
    version: str
    entry: Document
    member: str = ""

    @property
    def resource(self) -> str:
        return str(self.entry["resource"])


def served(documents: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], dict[str, Document]]:
    """Index aggregated documents: (group, resource) -> version -> entry."""
    found: dict[tuple[str, str], dict[str, Document]] = {}
    for document in documents:
        for group in document.get("items") or []:
            name = group.get("metadata", {}).get("name", "")
            for version in group.get("versions") or []:
                for entry in version.get("resources") or []:
                    found.setdefault((name, entry["resource"]), {})[version["version"]] = entry
    return found


def merge_aggregated(document: Document, added: Iterable[Added]) -> Document:
    """Add to an `APIGroupDiscoveryList` (v2 or v2beta1) of `/apis` or `/api`."""
    items = [dict(item) for item in document.get("items") or []]
    for one in added:
        item = next((item for item in items if item.get("metadata", {}).get("name", "") == one.group), None)
        if item is None:
            item = {"metadata": {"name": one.group, "creationTimestamp": None}, "versions": []}
            items.append(item)
        versions = item["versions"] = [dict(version) for version in item.get("versions") or []]
        version = next((version for version in versions if version["version"] == one.version), None)
        if version is None:
            version = {"version": one.version, "resources": [], "freshness": "Current"}
            versions.append(version)
        resources = list(version.get("resources") or [])
        version["resources"] = [entry for entry in resources if entry["resource"] != one.resource] + [one.entry]
    return {**document, "items": items}


def merge_groups(document: Document, added: Iterable[Added]) -> Document:
    """Add to an `APIGroupList` (`/apis`)."""
    groups = {group["name"]: group for group in document.get("groups") or []}
    for one in added:
        if one.group:
            groups[one.group] = merge_group(groups.get(one.group), one.group, [one], kind=False)
    return {**document, "groups": list(groups.values())}


def merge_group(document: Document | None, group: str, added: Iterable[Added], *, kind: bool = True) -> Document:
    """Add to an `APIGroup` (`/apis/<group>`), or make one."""
    merged: Document = dict(document or ({"kind": "APIGroup", "apiVersion": "v1"} if kind else {}))
    merged.setdefault("name", group)
    versions = list(merged.get("versions") or [])
    for one in added:
        entry = {"groupVersion": f"{group}/{one.version}", "version": one.version}
        if entry not in versions:
            versions.append(entry)
    merged["versions"] = versions
    merged.setdefault("preferredVersion", versions[0])
    return merged


def merge_resources(document: Document | None, group_version: str, added: Iterable[Added]) -> Document:
    """Add to an `APIResourceList` (`/api/v1`, `/apis/<group>/<version>`), or make one."""
    merged: Document = dict(
        document or {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version}
    )
    resources = list(merged.get("resources") or [])
    for one in added:
        fresh = old_entries(one.entry)
        names = {entry["name"] for entry in fresh}
        resources = [entry for entry in resources if entry["name"] not in names] + fresh
    merged["resources"] = resources
    return merged


def old_entries(entry: Document) -> list[Document]:
    """The `APIResource` entries (one, and one per subresource) of an `APIResourceDiscovery`."""
    namespaced = entry.get("scope") == "Namespaced"
    main: Document = {
        "name": entry["resource"], "singularName": entry.get("singularResource", ""), "namespaced": namespaced,
        "kind": (entry.get("responseKind") or {}).get("kind", ""), "verbs": list(entry.get("verbs") or []),
    }  # fmt: skip
    for key in ("shortNames", "categories"):
        if entry.get(key):
            main[key] = list(entry[key])
    subresources = [
        {
            "name": f"{entry['resource']}/{sub['subresource']}", "singularName": "", "namespaced": namespaced,
            "kind": (sub.get("responseKind") or {}).get("kind", ""), "verbs": list(sub.get("verbs") or []),
        }
        for sub in entry.get("subresources") or []
    ]  # fmt: skip
    return [main, *subresources]


def made_up(group: str, version: str, resource: str, kind: str, namespaced: bool) -> Document:
    """The entry of a type that no cluster serves now: its APIAggregation says what it is."""
    return {
        "resource": resource,
        "responseKind": {"group": group, "version": version, "kind": kind},
        "scope": "Namespaced" if namespaced else "Cluster",
        "singularResource": kind.lower(),
        "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
    }
