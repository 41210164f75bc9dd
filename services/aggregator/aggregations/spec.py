"""Turns the spec of an `APIAggregation` into an `Aggregated`, once its kind and scope are known."""

from __future__ import annotations

from typing import Any

from services.aggregator.types import Aggregated

ALIASES = {("events.k8s.io", "events"): ("", "events")}
"""Resources that are the same objects under another group: one marker each (same etcd key on the member)."""

OPERATORS = {"In": "in", "NotIn": "notin"}


def canonical(group: str, resource: str) -> tuple[str, str]:
    """Return the group and resource under which markers are kept."""
    return ALIASES.get((group, resource), (group, resource))


def selector_text(selector: dict[str, Any] | None) -> str:
    """Write a `metav1.LabelSelector` as a label selector string; "" selects everything."""
    if not selector:
        return ""
    parts = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for rule in selector.get("matchExpressions") or []:
        key, operator = rule.get("key", ""), rule.get("operator", "")
        if operator in OPERATORS:
            parts.append(f"{key} {OPERATORS[operator]} ({','.join(rule.get('values') or [])})")
        elif operator == "Exists":
            parts.append(key)
        elif operator == "DoesNotExist":
            parts.append(f"!{key}")
        else:
            raise ValueError(
                f"spec.clusters.matchExpressions: operator {operator!r} is none of In, NotIn, Exists, DoesNotExist"
            )
    return ",".join(parts)


def aggregated(obj: dict[str, Any], kind: str, namespaced: bool) -> Aggregated:
    """Build the `Aggregated` of an `APIAggregation`; ValueError names a field that cannot be used."""
    spec = obj["spec"]
    return Aggregated(
        name=obj["metadata"]["name"],
        group=spec.get("group", ""),
        version=spec["version"],
        resource=spec["resource"],
        kind=kind,
        namespaced=namespaced,
        cluster_selector=selector_text(spec.get("clusters")),
        include_host=bool(spec.get("includeHost", False)),
        unreachable=spec.get("unreachable", "Keep"),
        authorization=spec.get("authorization", "Host"),
        create=spec.get("create", "Schedule"),
    )
