"""Which lists of the built-in types are maps by key, for strategic merge and for server-side apply.

Lists are told by the name of their field, and, where one name serves several types, by what their items hold.
Source: the `x-kubernetes-patch-merge-key` and `x-kubernetes-list-map-keys` of the API's OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: Field -> key of its items under strategic merge.
_MERGE_KEYS = {
    "containers": "name", "initContainers": "name", "ephemeralContainers": "name", "volumes": "name", "env": "name",
    "imagePullSecrets": "name", "volumeMounts": "mountPath", "volumeDevices": "devicePath", "hostAliases": "ip",
    "ownerReferences": "uid", "conditions": "type", "addresses": "type", "topologySpreadConstraints": "topologyKey",
    "podIPs": "ip", "hostIPs": "ip", "secrets": "name", "webhooks": "name", "taints": "key", "resourceClaims": "name",
    "schedulingGates": "name",
}  # fmt: skip
#: Field -> keys of its items under server-side apply, where they differ.
_APPLY_KEYS = {
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "hostIPs": None,
    "taints": None,
}
#: Lists of plain values that merge as sets.
PRIMITIVE_MERGES = frozenset({"finalizers"})
#: Lists of plain values that server-side apply treats as sets.
SETS = frozenset({"finalizers"})


def merge_key(path: Sequence[str], items: Sequence[Any]) -> str | None:
    """The key by which a strategic merge patch matches the items of this list; None when it replaces the list."""
    field = path[-1]
    if field == "ports":
        if any(isinstance(item, Mapping) and "containerPort" in item for item in items):
            return "containerPort"
        return "port"
    return _MERGE_KEYS.get(field)


def apply_keys(path: Sequence[str], items: Sequence[Any]) -> tuple[str, ...] | None:
    """The keys of the list's items under server-side apply; None for a list that one manager owns whole."""
    field = path[-1]
    if not all(isinstance(item, Mapping) for item in items):
        return None
    if field == "ports":
        name = "containerPort" if any("containerPort" in item for item in items) else "port"
        return (name, "protocol")
    if field in _APPLY_KEYS:
        return _APPLY_KEYS[field]
    key = _MERGE_KEYS.get(field)
    return (key,) if key is not None else None
