"""Which resources are aggregated: pods, and what the `APIAggregation` objects name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from services.common.kube.client import KubeClient
from services.common.kube.informer import Informer
from services.common.kube.resource import API_AGGREGATIONS, EVENTS, NODES, PODS, Resource
from services.reconciler.names import Obj

UNOWNED = (NODES.key, EVENTS.key, "events.events.k8s.io")
"""Nobody makes these with an owner on the host."""


class Aggregations:
    """Follows the aggregations; `changed` gets the resources that may have owners on the host."""

    def __init__(self, client: KubeClient, changed: Callable[[Iterable[Resource]], None]) -> None:
        self._changed = changed
        self.informer = Informer(client, API_AGGREGATIONS, handler=self._handle)

    def resources(self) -> list[Resource]:
        """The resources, pods first."""
        found = {PODS.key: PODS}
        for obj in self.informer.store.values():
            resource = _resource(obj.get("spec") or {})
            if resource is not None and resource.key not in UNOWNED:
                found.setdefault(resource.key, resource)
        return list(found.values())

    def _handle(self, event: str, obj: Obj, old: Obj | None) -> None:
        self._changed(self.resources())


def _resource(spec: dict[str, Any]) -> Resource | None:
    if not spec.get("version") or not spec.get("resource"):
        return None
    return Resource(
        spec.get("group") or "", spec["version"], spec["resource"], spec.get("kind") or "",
        namespaced=spec.get("scope") != "Cluster",
    )  # fmt: skip
