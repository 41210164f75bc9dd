"""Discovery documents: /api, /apis, one per group version, and both aggregated (apidiscovery.k8s.io/v2)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from deploy.local.sim.catalog import Catalog
from deploy.local.sim.types import Object, ResourceType

_AGGREGATED = "apidiscovery.k8s.io"
#: Subresource -> (kind, group, version, verbs); what is not here has the kind of its resource.
_SUB_KINDS: dict[str, tuple[str, str, str]] = {
    "scale": ("Scale", "autoscaling", "v1"),
    "binding": ("Binding", "", "v1"),
    "eviction": ("Eviction", "policy", "v1"),
    "token": ("TokenRequest", "authentication.k8s.io", "v1"),
    "exec": ("PodExecOptions", "", "v1"),
    "attach": ("PodAttachOptions", "", "v1"),
    "portforward": ("PodPortForwardOptions", "", "v1"),
    "proxy": ("PodProxyOptions", "", "v1"),
}
_SUB_VERBS: dict[str, tuple[str, ...]] = {
    "binding": ("create",),
    "eviction": ("create",),
    "token": ("create",),
    "exec": ("create", "get"),
    "attach": ("create", "get"),
    "portforward": ("create", "get"),
    "proxy": ("create", "delete", "get", "patch", "update"),
    "log": ("get",),
    "finalize": ("update",),
}
_CUSTOM_VERBS = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")
_DEFAULT_SUB_VERBS = ("get", "patch", "update")


def wants_aggregated(accept: str) -> bool:
    return f"g={_AGGREGATED}" in accept and "as=APIGroupDiscoveryList" in accept


def versions_document(server: str) -> Object:
    """/api."""
    addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": server}]
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": addresses}


def groups(catalog: Catalog) -> dict[str, list[str]]:
    """Group -> its versions in order of preference; the core group is left out."""
    found: dict[str, list[str]] = {}
    for type_ in catalog.types():
        if type_.group:
            versions = found.setdefault(type_.group, [])
            if type_.version not in versions:
                versions.append(type_.version)
    return {group: sorted(versions, key=_preference) for group, versions in found.items()}


def _preference(version: str) -> tuple[int, int, int, str]:
    """GA before beta before alpha, newer first: the order of KEP-1111's version priority."""
    match = re.fullmatch(r"v(\d+)(?:(alpha|beta)(\d+))?", version)
    if match is None:
        return (3, 0, 0, version)
    major, stage, minor = match.groups()
    return ({None: 0, "beta": 1, "alpha": 2}[stage], -int(major), -int(minor or 0), version)


def group_document(group: str, versions: Iterable[str]) -> Object:
    """/apis/<group>."""
    entries = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": group,
        "versions": entries,
        "preferredVersion": entries[0],
    }


def groups_document(catalog: Catalog) -> Object:
    """/apis."""
    found = [group_document(group, versions) for group, versions in groups(catalog).items()]
    for one in found:
        del one["kind"], one["apiVersion"]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": found}


def resources_document(catalog: Catalog, group: str, version: str) -> Object | None:
    """/api/v1 and /apis/<group>/<version>; None when nothing is served there."""
    types = [t for t in catalog.types() if (t.group, t.version) == (group, version)]
    if not types:
        return None
    entries: list[dict[str, Any]] = []
    for type_ in sorted(types, key=lambda t: t.plural):
        entries.append(_resource(type_))
        entries.extend(_subresource(type_, sub) for sub in sorted(type_.subresources, reverse=type_.custom))
    document = {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": types[0].group_version,
        "resources": entries,
    }
    if not group:
        del document["apiVersion"]
    return document


def _resource(type_: ResourceType) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": type_.plural,
        "singularName": type_.singular,
        "namespaced": type_.namespaced,
        "kind": type_.kind,
        "verbs": list(_CUSTOM_VERBS) if type_.custom else sorted(type_.verbs),
    }
    if type_.short_names:
        entry["shortNames"] = list(type_.short_names)
    if type_.categories:
        entry["categories"] = list(type_.categories)
    return entry


def _subresource(type_: ResourceType, sub: str) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": f"{type_.plural}/{sub}",
        "singularName": "",
        "namespaced": type_.namespaced,
    }
    kind, group, version = _SUB_KINDS.get(sub, (type_.kind, type_.group, type_.version))
    kind = _proxy_kind(type_, sub, kind)
    if sub in _SUB_KINDS and group != type_.group:
        entry.update(group=group, version=version)
    return {**entry, "kind": kind, "verbs": list(_SUB_VERBS.get(sub, _DEFAULT_SUB_VERBS))}


def aggregated(catalog: Catalog, *, core: bool) -> Object:
    """/api or /apis as one document with everything in it."""
    by_group = {"": ["v1"]} if core else groups(catalog)
    items = []
    for group, versions in by_group.items():
        found = []
        for version in versions:
            types = sorted(
                (t for t in catalog.types() if (t.group, t.version) == (group, version)),
                key=lambda t: t.plural,
            )
            entries = [_aggregated_resource(type_) for type_ in types]
            found.append({"version": version, "resources": entries, "freshness": "Current"})
        meta: dict[str, Any] = {"creationTimestamp": None}
        if group:
            meta["name"] = group
        items.append({"metadata": meta, "versions": found})
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"{_AGGREGATED}/v2",
        "metadata": {},
        "items": items,
    }


def _proxy_kind(type_: ResourceType, sub: str, kind: str) -> str:
    return f"{type_.kind}ProxyOptions" if sub == "proxy" else kind


def _response_kind(type_: ResourceType, kind: str, group: str, version: str) -> dict[str, str]:
    """Group and version are left out where they are the resource's own."""
    if (group, version) == (type_.group, type_.version):
        return {"group": "", "version": "", "kind": kind}
    return {"group": group, "version": version, "kind": kind}


def _aggregated_resource(type_: ResourceType) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "resource": type_.plural,
        "responseKind": {"group": "", "version": "", "kind": type_.kind},
        "scope": "Namespaced" if type_.namespaced else "Cluster",
        "singularResource": type_.singular,
        "verbs": sorted(type_.verbs),
    }
    if type_.short_names:
        entry["shortNames"] = list(type_.short_names)
    if type_.categories:
        entry["categories"] = list(type_.categories)
    subs = []
    for sub in sorted(type_.subresources):
        kind, group, version = _SUB_KINDS.get(sub, (type_.kind, type_.group, type_.version))
        subs.append(
            {
                "subresource": sub,
                "responseKind": _response_kind(type_, _proxy_kind(type_, sub, kind), group, version),
                "verbs": list(_SUB_VERBS.get(sub, _DEFAULT_SUB_VERBS)),
            }
        )
    if subs:
        entry["subresources"] = subs
    return entry
