"""What one pod asks for: requests and the rules that say which nodes it may run on.

Pods of equal shape are interchangeable for placement, so results are cached by `Shape.key`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec

from services.common.kube import quantity
from services.common.kube.pod_requests import pod_requests
from services.scheduler.matching import Taint, node_terms_hold, untolerated

Terms = tuple[Mapping[str, Any], ...]


class _Expression(msgspec.Struct):
    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class _Term(msgspec.Struct, rename="camel"):
    match_expressions: list[_Expression] | None = None
    match_fields: list[_Expression] | None = None


class _Terms(msgspec.Struct, rename="camel"):
    node_selector_terms: list[_Term] | None = None


class _NodeAffinity(msgspec.Struct, rename="camel"):
    required_during_scheduling_ignored_during_execution: _Terms | None = None


class _Affinity(msgspec.Struct, rename="camel"):
    node_affinity: _NodeAffinity | None = None


class _Toleration(msgspec.Struct):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class _Rules(msgspec.Struct, rename="camel"):
    """What `Shape` reads of a pod spec. The API server has checked a pod's, nobody those of a Workload or a manifest."""

    node_name: str | None = None
    node_selector: dict[str, str] | None = None
    affinity: _Affinity | None = None
    tolerations: list[_Toleration] | None = None
    priority: int | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Shape:
    """One pod's requests (thousandths, `pods` included) and its node constraints."""

    requests: tuple[tuple[str, int], ...]
    node_name: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    node_terms: Terms | None = None
    tolerations: Terms = ()
    priority: int = 0
    key: bytes = b""
    node_key: bytes = b""
    """Equal for shapes that may run on the same nodes."""

    def refuses(self, name: str, labels: Mapping[str, str], taints: Iterable[Taint]) -> tuple[str, str] | None:
        """Return (filter, reason) when a node is out of the question whatever is free on it."""
        if self.node_name and self.node_name != name:
            return "NodeName", f"wants node {self.node_name}"
        for key, value in self.node_selector.items():
            if labels.get(key) != value:
                return "NodeSelector", f"wants {key}={value}"
        if self.node_terms is not None and not node_terms_hold(name, labels, self.node_terms):
            return "NodeAffinity", "matches no term of the required node affinity"
        taint = untolerated(taints, self.tolerations)
        if taint is not None:
            return "NodeTaint", f"does not tolerate {taint}"
        return None


def make_shape(requests: Mapping[str, int], constraints: Mapping[str, Any] | None = None) -> Shape:
    """Build a shape from parsed requests and the pod spec fields that bear on placement.

    ValueError where these are not of the types that a pod spec has.
    """
    amounts = {name: amount for name, amount in requests.items() if amount > 0}
    amounts[quantity.PODS] = quantity.MILLI
    ordered = tuple(sorted(amounts.items()))
    rules = {name: value for name, value in (constraints or {}).items() if value not in (None, "", [], {})}
    return _intern(ordered, msgspec.json.encode(rules, order="sorted"))


@lru_cache(maxsize=16384)
def _intern(requests: tuple[tuple[str, int], ...], rules: bytes) -> Shape:
    """One object per distinct shape: caches compare keys, not structures."""
    try:
        msgspec.json.decode(rules, type=_Rules)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
    fields = msgspec.json.decode(rules)
    affinity = (fields.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    terms: Terms | None = None if required is None else tuple(required.get("nodeSelectorTerms") or ())
    selector = fields.get("nodeSelector") or {}
    name, tolerations = str(fields.get("nodeName") or ""), tuple(fields.get("tolerations") or ())
    return Shape(
        requests=requests,
        node_name=name,
        node_selector=selector,
        node_terms=terms,
        tolerations=tolerations,
        priority=int(fields.get("priority") or 0),
        key=msgspec.json.encode([requests, rules.decode()]),
        node_key=msgspec.json.encode([name, selector, terms, tolerations], order="sorted"),
    )


CONSTRAINT_FIELDS = ("nodeName", "nodeSelector", "affinity", "tolerations", "priority", "topologySpreadConstraints")


def pod_shape(spec: Mapping[str, Any], status: Mapping[str, Any] | None = None) -> Shape:
    """Build the shape of a pod, of what it has while it is resized (`status`)."""
    return make_shape(pod_requests(spec, status), {name: spec.get(name) for name in CONSTRAINT_FIELDS})
