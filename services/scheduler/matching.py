"""Kubernetes' matching rules: label selectors, node selector terms, taints and tolerations.

Sources: k8s.io/apimachinery labels, core/v1 NodeSelectorRequirement, core/v1 Toleration.ToleratesTaint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from services.scheduler import clock

NO_SCHEDULE = "NoSchedule"
NO_EXECUTE = "NoExecute"


@dataclass(frozen=True, slots=True)
class Taint:
    """Keeps work away from a node or a cluster."""

    key: str
    value: str = ""
    effect: str = NO_SCHEDULE
    added_at: datetime | None = None

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


def requirement_holds(labels: Mapping[str, str], requirement: Mapping[str, Any]) -> bool:
    """Say whether one `{key, operator, values}` holds; an unknown operator does not."""
    key, operator = requirement.get("key", ""), requirement.get("operator", "")
    values: Sequence[str] = requirement.get("values") or ()
    value = labels.get(key)
    match operator:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _compares(value, values, greater=operator == "Gt")
    return False


def _compares(value: str | None, values: Sequence[str], *, greater: bool) -> bool:
    try:
        left, right = int(value or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return left > right if greater else left < right


def selector_holds(labels: Mapping[str, str], selector: Mapping[str, Any] | None) -> bool:
    """Say whether a `metav1.LabelSelector` selects; an absent or empty one selects everything."""
    if not selector:
        return True
    wanted: Mapping[str, str] = selector.get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    return all(requirement_holds(labels, term) for term in selector.get("matchExpressions") or ())


def describe_selector(selector: Mapping[str, Any] | None) -> str:
    """Write a label selector as kubectl takes it."""
    parts = [f"{key}={value}" for key, value in ((selector or {}).get("matchLabels") or {}).items()]
    for term in (selector or {}).get("matchExpressions") or ():
        values = ",".join(term.get("values") or ())
        parts.append(f"{term.get('key')} {term.get('operator')}" + (f" ({values})" if values else ""))
    return ", ".join(parts) or "everything"


def node_terms_hold(name: str, labels: Mapping[str, str], terms: Iterable[Mapping[str, Any]]) -> bool:
    """Say whether any term of a required node affinity holds; an empty term never does."""
    fields = {"metadata.name": name}
    for term in terms:
        expressions, names = term.get("matchExpressions") or (), term.get("matchFields") or ()
        if not expressions and not names:
            continue
        if all(requirement_holds(labels, item) for item in expressions) and all(
            requirement_holds(fields, item) for item in names
        ):
            return True
    return False


def tolerates(toleration: Mapping[str, Any], taint: Taint) -> bool:
    """Say whether one toleration tolerates one taint."""
    effect, key = toleration.get("effect"), toleration.get("key") or ""
    if effect and effect != taint.effect:
        return False
    if key and key != taint.key:
        return False
    operator = toleration.get("operator") or "Equal"
    if operator == "Exists":
        return True
    return operator == "Equal" and bool(key) and (toleration.get("value") or "") == taint.value


def untolerated(taints: Iterable[Taint], tolerations: Iterable[Mapping[str, Any]]) -> Taint | None:
    """Return the first taint that keeps new work away and is not tolerated."""
    known = tuple(tolerations)
    for taint in taints:
        if taint.effect in (NO_SCHEDULE, NO_EXECUTE) and not any(tolerates(item, taint) for item in known):
            return taint
    return None


@dataclass(frozen=True, slots=True)
class Eviction:
    """A NoExecute taint and when it moves what runs there; `at` may lie ahead."""

    taint: Taint
    at: datetime


def eviction(taints: Iterable[Taint], tolerations: Iterable[Mapping[str, Any]], now: datetime) -> Eviction | None:
    """Return the first eviction that NoExecute taints cause, or None where all are tolerated for good.

    Of several `tolerationSeconds` for a taint the smallest counts, as for nodes.
    """
    known, first = tuple(tolerations), None
    for taint in taints:
        if taint.effect != NO_EXECUTE:
            continue
        matching = [item for item in known if tolerates(item, taint)]
        limits = [item["tolerationSeconds"] for item in matching if item.get("tolerationSeconds") is not None]
        if matching and not limits:
            continue
        found = Eviction(taint, clock.after(taint.added_at or now, max(min(limits, default=0), 0)))
        if first is None or found.at < first.at:
            first = found
    return first
