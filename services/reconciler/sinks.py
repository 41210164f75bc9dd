"""Which resources the Sinks copy: their copies go from a cluster that leaves, which no worker reaches any more."""

from __future__ import annotations

from services.common.kube.client import KubeClient
from services.common.kube.informer import Informer
from services.common.kube.resource import Resource

SINKS = Resource("reclock.dev", "v1alpha1", "sinks", "Sink", namespaced=False)


class Sinks:
    """Follows the Sinks; `informer` has to run."""

    def __init__(self, client: KubeClient) -> None:
        self.informer = Informer(client, SINKS, absent_is_empty=True)

    def resources(self) -> list[Resource]:
        """The resources, each once in each version that a Sink names: a member may serve only one of them."""
        specs = [obj.get("spec") or {} for obj in self.informer.store.values()]
        return list(dict.fromkeys(Resource(spec.get("group") or "", spec["version"], spec["resource"]) for spec in specs))
