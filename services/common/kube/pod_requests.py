"""What one pod asks of a node, as kube-scheduler counts it (k8s.io/component-helpers, resource.PodRequests)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.common.kube import quantity

Amounts = dict[str, int]


def pod_requests(spec: Mapping[str, Any], status: Mapping[str, Any] | None = None) -> Amounts:
    """Sum a pod's requests, in thousandths. ValueError for a malformed quantity.

    Containers and restartable init containers (sidecars) add up; each other init container needs its own
    requests plus those of the sidecars started before it; the larger of both counts, plus the overhead.
    Pod-level requests (KEP-2837) win where they are set. While a pod is resized in place (KEP-1287) its `status`
    says what it has: the largest of asked, allocated and actual counts, without the asked where that is infeasible.
    """
    resized = _resized(status or {})
    running: Amounts = {}
    for container in spec.get("containers") or ():
        quantity.add(running, _requests(container, resized).items())
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in spec.get("initContainers") or ():
        restarts = container.get("restartPolicy") == "Always"
        amounts = _requests(container, resized if restarts else {})
        if restarts:
            quantity.add(running, amounts.items())
            quantity.add(sidecars, amounts.items())
            amounts = {}
        for name in {*amounts, *sidecars}:
            peak[name] = max(peak.get(name, 0), amounts.get(name, 0) + sidecars.get(name, 0))
    total = {name: max(running.get(name, 0), peak.get(name, 0)) for name in {*running, *peak}}
    total.update(quantity.parse_all((spec.get("resources") or {}).get("requests")))
    quantity.add(total, quantity.parse_all(spec.get("overhead")).items())
    return total


def _requests(container: Mapping[str, Any], resized: Mapping[str, tuple[bool, Amounts]]) -> Amounts:
    """A container's requests; a limit without a request is one, as the API server defaults it."""
    resources = container.get("resources") or {}
    asked = quantity.parse_all(resources.get("limits"))
    asked.update(quantity.parse_all(resources.get("requests")))
    known = resized.get(container.get("name") or "")
    if known is None:
        return asked
    infeasible, has = known
    if infeasible:
        return dict(has)
    return {name: max(asked.get(name, 0), has.get(name, 0)) for name in {*asked, *has}}


def _resized(status: Mapping[str, Any]) -> dict[str, tuple[bool, Amounts]]:
    """Container -> (whether what it asks for now is infeasible, what it has), of those that say so."""
    found = {}
    pending: Mapping[str, Any] = next((c for c in status.get("conditions") or () if c.get("type") == "PodResizePending"), {})
    infeasible = pending.get("reason") == "Infeasible"
    for item in (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())):
        if item.get("resources") is None:
            continue
        has = quantity.parse_all(item.get("allocatedResources"))
        for name, amount in quantity.parse_all(item["resources"].get("requests")).items():
            has[name] = max(has.get(name, 0), amount)
        found[str(item.get("name"))] = (infeasible, has)
    return found
