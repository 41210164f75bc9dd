"""core/v1 and events.k8s.io/v1 Events are one set of objects under two spellings."""

from __future__ import annotations

from typing import Any

FIELDS = {
    **{f"involvedObject.{name}": f"involvedObject.{name}" for name in (
        "kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath",
    )},
    "reason": "reason", "reportingComponent": "reportingComponent", "source": "source.component", "type": "type",
}  # fmt: skip
NEW_FIELDS = {
    **{f"regarding.{name}": f"involvedObject.{name}" for name in (
        "kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath",
    )},
    "reason": "reason", "reportingController": "reportingComponent", "type": "type",
}  # fmt: skip

_NEW_NAMES = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "count": "deprecatedCount",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "reportingComponent": "reportingController",
}
_OLD_NAMES = {new: old for old, new in _NEW_NAMES.items()}


def from_core(event: dict[str, Any]) -> dict[str, Any]:
    """As events.k8s.io/v1 spells it."""
    return {_NEW_NAMES.get(name, name): value for name, value in event.items()}


def to_core(event: dict[str, Any]) -> dict[str, Any]:
    """As core/v1 spells it."""
    return {_OLD_NAMES.get(name, name): value for name, value in event.items()}
