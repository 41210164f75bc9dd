"""Small readers of Kubernetes objects."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from services.reconciler.names import AT_MOST_ONCE, FINALIZER, HOST_UID, ORIGIN

NAME_LIMIT = 63


def uid(obj: Mapping[str, Any]) -> str:
    """Uid of an object as an apiserver gave it."""
    return str(obj["metadata"]["uid"])


def name_of(obj: Mapping[str, Any]) -> tuple[str, str]:
    """(namespace, name)."""
    meta = obj["metadata"]
    return meta.get("namespace", ""), meta["name"]


def labels_of(obj: Mapping[str, Any]) -> dict[str, str]:
    """Labels; empty when there are none."""
    return obj["metadata"].get("labels") or {}


def annotations_of(obj: Mapping[str, Any]) -> dict[str, str]:
    """Annotations; empty when there are none."""
    return obj["metadata"].get("annotations") or {}


def must_not_run_twice(kind: str, obj: Mapping[str, Any]) -> bool:
    """Whether an owner or its copy may never run in two clusters at once."""
    return kind == "statefulset" or (kind == "job" and annotations_of(obj).get(AT_MOST_ONCE) == "true")


def finalizers(obj: Mapping[str, Any]) -> list[str]:
    """Finalizers; empty when there are none."""
    return obj["metadata"].get("finalizers") or []


def deleting(obj: Mapping[str, Any]) -> bool:
    """Whether deletion was asked for."""
    return bool(obj["metadata"].get("deletionTimestamp"))


def held(obj: Mapping[str, Any]) -> bool:
    """Whether our finalizer keeps it until its copies are gone."""
    return FINALIZER in finalizers(obj)


def controller(obj: Mapping[str, Any]) -> dict[str, Any] | None:
    """The controller owner reference."""
    for reference in obj["metadata"].get("ownerReferences") or []:
        if reference.get("controller"):
            return dict(reference)
    return None


def host_uid(copy: Mapping[str, Any]) -> str:
    """Uid of the host object that a copy stands for."""
    return annotations_of(copy).get(HOST_UID, "")


def is_ours(obj: Mapping[str, Any], fleet_id: str) -> bool:
    """Whether this fleet's Reclock made it."""
    return labels_of(obj).get(ORIGIN) == fleet_id


def replicas(obj: Mapping[str, Any]) -> int:
    """`spec.replicas`, which Kubernetes defaults to 1."""
    value = (obj.get("spec") or {}).get("replicas")
    return 1 if value is None else int(value)


def count(status: Mapping[str, Any], field: str) -> int:
    """A counter of a status; absent is 0."""
    return int(status.get(field) or 0)


def condition(obj: Mapping[str, Any], kind: str) -> dict[str, Any] | None:
    """The condition of that type in `status.conditions`."""
    for entry in (obj.get("status") or {}).get("conditions") or []:
        if entry.get("type") == kind:
            return dict(entry)
    return None


def is_true(obj: Mapping[str, Any], kind: str) -> bool:
    """Whether that condition is True."""
    entry = condition(obj, kind)
    return entry is not None and entry.get("status") == "True"


def propagation(obj: Mapping[str, Any]) -> str:
    """What the finalizers of a deleting object say: Orphan, Foreground, or Background."""
    if "orphan" in finalizers(obj):
        return "Orphan"
    return "Foreground" if "foregroundDeletion" in finalizers(obj) else "Background"


def workload_name(kind: str, owner: str) -> str:
    """Name of an owner's Workload: `<kind>-<name>`, cut and hashed where it would be too long."""
    full = f"{kind}-{owner}"
    if len(full) <= NAME_LIMIT:
        return full
    digest = hashlib.sha256(full.encode()).hexdigest()[:8]
    return f"{full[: NAME_LIMIT - 9].rstrip('-.')}-{digest}"


def now() -> str:
    """The current time as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def set_condition(
    conditions: list[dict[str, Any]], kind: str, status: str, reason: str, message: str
) -> list[dict[str, Any]]:
    """The conditions with this one set; the transition time moves only with the status."""
    old = next((entry for entry in conditions if entry.get("type") == kind), None)
    same = old is not None and old.get("status") == status
    since = old["lastTransitionTime"] if same and old and old.get("lastTransitionTime") else now()
    entry = {
        "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since,
    }  # fmt: skip
    if old is None:
        return [*conditions, entry]
    return [entry if item is old else item for item in conditions]


def merge_diff(old: Any, new: Any) -> Any:
    """The JSON merge patch that turns `old` into `new` (both mappings); {} where they are equal."""
    patch: dict[str, Any] = {}
    for key in old.keys() - new.keys():
        patch[key] = None
    for key, value in new.items():
        before = old.get(key)
        if before == value and key in old:
            continue
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            patch[key] = merge_diff(before, value)
        else:
            patch[key] = value
    return patch
