"""Names that Reclock writes on objects, and the resources that the reconciler follows."""

from __future__ import annotations

from typing import Any

from services.common.kube.resource import NAMESPACES, SECRETS, Resource

Obj = dict[str, Any]
"""One Kubernetes object as decoded JSON."""

HOST = ""
"""Cluster name of the host."""

FIELD_MANAGER = "reclock"
ORIGIN = "reclock.dev/origin"
"""Label of copies: the fleet id."""
HOST_UID = "reclock.dev/host-uid"
DIGEST = "reclock.dev/digest"
FAILED_BASE = "reclock.dev/failed-base"
"""Annotation of a Job's copy: pods that had failed in earlier attempts."""
FINALIZER = "reclock.dev/copies"
NAMESPACE_FINALIZER = "reclock.dev/members"
HOST_OWNED = "reclock.dev/host-owned"
ROUTED = "reclock.dev/routed"
"""Label of objects that the front created on a member for a user: the fleet id."""
SINK_ORIGIN = "reclock.dev/sink-origin"
"""Label of what Sinks made: the fleet id."""
HOST_OWNERS = "reclock.dev/host-owners"
FENCED = "reclock.dev/fenced"
"""Annotation of a copy that the worker beside it has stopped: since when."""
AT_MOST_ONCE = "reclock.dev/at-most-once"
OWN_PREFIX = "reclock.dev/"

DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
REPLICASETS = Resource("apps", "v1", "replicasets", "ReplicaSet")
STATEFULSETS = Resource("apps", "v1", "statefulsets", "StatefulSet")
DAEMONSETS = Resource("apps", "v1", "daemonsets", "DaemonSet")
JOBS = Resource("batch", "v1", "jobs", "Job")
WORKLOADS = Resource("reclock.dev", "v1alpha1", "workloads", "Workload")

CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap")
SERVICES = Resource("", "v1", "services", "Service")
SERVICEACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
LIMITRANGES = Resource("", "v1", "limitranges", "LimitRange")
NETWORKPOLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
PRIORITYCLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
RUNTIMECLASSES = Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False)
STORAGECLASSES = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False)

COPIED: dict[str, Resource] = {
    "replicaset": REPLICASETS, "statefulset": STATEFULSETS, "daemonset": DAEMONSETS, "job": JOBS,
}  # fmt: skip
"""Kinds whose objects are copied to members, by the name used in queue keys."""

DEPENDENCIES: dict[str, Resource] = {
    "configmap": CONFIGMAPS, "secret": SECRETS, "serviceaccount": SERVICEACCOUNTS, "claim": CLAIMS,
    "service": SERVICES, "networkpolicy": NETWORKPOLICIES, "limitrange": LIMITRANGES,
    "priorityclass": PRIORITYCLASSES, "runtimeclass": RUNTIMECLASSES, "storageclass": STORAGECLASSES,
}  # fmt: skip
"""Kinds that go along with the workloads that need them."""

NAMESPACE = "namespace"
ON_MEMBERS: dict[str, Resource] = {**COPIED, **DEPENDENCIES, NAMESPACE: NAMESPACES}
"""What is followed on members, by origin label."""
ON_HOST: dict[str, Resource] = {**ON_MEMBERS, "deployment": DEPLOYMENTS, "workload": WORKLOADS}
