"""The fields that objects can be selected by, and their values in an object's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from services.aggregator.reads.selectors import NAME_FIELDS, FieldSelector, FieldTerm
from services.common.errors import bad_request

_EVENT = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
KNOWN: dict[tuple[str, str], frozenset[str]] = {
    ("", "pods"): frozenset({
        "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
        "spec.hostNetwork", "status.phase", "status.podIP", "status.podIPs", "status.nominatedNodeName",
    }),
    ("", "nodes"): frozenset({"spec.unschedulable"}),
    ("", "events"): frozenset({
        *(f"involvedObject.{part}" for part in _EVENT), "reason", "reportingComponent", "source", "type",
    }),
    ("events.k8s.io", "events"): frozenset({
        *(f"regarding.{part}" for part in _EVENT), "reason", "reportingController", "type",
    }),
    ("apps", "controllerrevisions"): frozenset(),
}  # fmt: skip
UID_FIELDS = ("involvedObject.uid", "regarding.uid")


def check_fields(selector: FieldSelector, group: str, resource: str, namespaced: bool) -> FieldSelector:
    """Refuse fields that the type cannot be selected by (400), and put old names right.

    Types that are not known here (custom resources may name fields of their own) are left to the members.
    """
    known = KNOWN.get((group, resource))
    terms = []
    for term in selector.terms:
        field = "spec.nodeName" if (group, resource, term.field) == ("", "pods", "spec.host") else term.field
        allowed = field in NAME_FIELDS and (namespaced or field == "metadata.name")
        if known is not None and field not in known and not allowed:
            raise bad_request(f"field label not supported: {field}")
        terms.append(FieldTerm(field, term.value, term.equal))
    return FieldSelector(tuple(terms))


def decode(body: bytes) -> dict[str, Any]:
    """The object as Python; ValueError when it is no JSON object."""
    value = msgspec.json.decode(body)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def values_of(selector: FieldSelector, body: bytes, group: str, resource: str) -> dict[str, str]:
    """The values of the selector's fields in an object of this type."""
    value = decode(body)
    return {term.field: value_of(value, term.field, group, resource) for term in selector.terms}


def value_of(value: Mapping[str, Any], field: str, group: str, resource: str) -> str:
    """One field's value as Kubernetes compares it."""
    if (group, resource) == ("", "pods"):
        if field == "spec.hostNetwork":
            return text_of(at(value, field)) or "false"
        if field in ("status.podIP", "status.podIPs"):
            ips = at(value, "status.podIPs")
            first = ips[0].get("ip", "") if isinstance(ips, list) and ips and isinstance(ips[0], dict) else ""
            return text_of(first) or text_of(at(value, "status.podIP"))
    elif (group, resource, field) == ("", "nodes", "spec.unschedulable"):
        return text_of(at(value, field)) or "false"
    elif (group, resource, field) == ("", "events", "source"):
        return text_of(at(value, "source.component")) or text_of(at(value, "reportingComponent"))
    return text_of(at(value, field))


def at(value: Any, path: str) -> Any:
    """The value at a dotted path, None when there is none."""
    for part in path.lstrip(".").split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def text_of(value: Any) -> str:
    """A scalar as text; "" for what is absent or no scalar."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else ""
