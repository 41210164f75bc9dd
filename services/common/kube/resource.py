"""Names of Kubernetes API resources and their URL paths."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource of one API version, for example `Resource("apps", "v1", "deployments", "Deployment")`."""

    group: str
    """API group; "" is the core group."""
    version: str
    resource: str
    """Plural name as in URLs."""
    kind: str = ""
    namespaced: bool = True

    @property
    def group_version(self) -> str:
        """`apps/v1`, or `v1` in the core group: the objects' `apiVersion`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def key(self) -> str:
        """`deployments.apps`, or `pods` in the core group: the same for every version of the resource."""
        return f"{self.resource}.{self.group}" if self.group else self.resource

    @property
    def marked(self) -> bool:
        """Does an idle watch of it get bookmarks? The apiserver's watch cache makes them, and events have none (size 0 in
        `pkg/kubeapiserver/default_storage_factory_builder.go`)."""
        return self.key not in ("events", "events.events.k8s.io")

    def path(self, ns: str | None = None, name: str | None = None, sub: str | None = None) -> str:
        """Return the URL path, encoded; without `ns` that of all namespaces.

        A namespace is ignored for cluster-scoped resources, so that callers need not know the scope.
        """
        base = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        if ns and self.namespaced:
            base = f"{base}/namespaces/{quote(ns, safe='')}"
        base = f"{base}/{self.resource}"
        if name:
            base = f"{base}/{quote(name, safe=':')}"
        return f"{base}/{sub}" if sub else base


PODS = Resource("", "v1", "pods", "Pod")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
SECRETS = Resource("", "v1", "secrets", "Secret")
EVENTS = Resource("", "v1", "events", "Event")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False)
CLUSTERS = Resource("reclock.dev", "v1alpha1", "clusters", "Cluster", namespaced=False)
API_AGGREGATIONS = Resource("reclock.dev", "v1alpha1", "apiaggregations", "APIAggregation", namespaced=False)
