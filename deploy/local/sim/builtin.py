"""The built-in types that a simulated cluster serves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from deploy.local.sim import events
from deploy.local.sim.types import ResourceType

_STATUS = ("status",)
_SCALED = ("status", "scale")
_POD_FIELDS = (
    "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork",
    "status.phase", "status.podIP", "status.nominatedNodeName",
)  # fmt: skip
_VIRTUAL = ("create",)

# group, version, plural, kind, namespaced, short names, subresources, what else differs
_Row = tuple[str, str, str, str, bool, tuple[str, ...], tuple[str, ...], dict[str, Any]]

_CORE: tuple[_Row, ...] = (
    ("", "v1", "bindings", "Binding", True, (), (), {"verbs": _VIRTUAL}),
    ("", "v1", "configmaps", "ConfigMap", True, ("cm",), (), {}),
    ("", "v1", "endpoints", "Endpoints", True, ("ep",), (), {"singular": "endpoints"}),
    ("", "v1", "events", "Event", True, ("ev",), (), {"fields": events.FIELDS}),
    ("", "v1", "limitranges", "LimitRange", True, ("limits",), (), {}),
    ("", "v1", "namespaces", "Namespace", False, ("ns",), ("status", "finalize"), {
        "returns_deleted": True, "fields": {"status.phase": "status.phase"},
        "verbs": ("create", "delete", "get", "list", "patch", "update", "watch"),
    }),
    ("", "v1", "nodes", "Node", False, ("no",), ("status", "proxy"), {
        "fields": {"spec.unschedulable": "spec.unschedulable"},
    }),
    ("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, ("pvc",), _STATUS, {"returns_deleted": True}),
    ("", "v1", "persistentvolumes", "PersistentVolume", False, ("pv",), _STATUS, {"returns_deleted": True}),
    ("", "v1", "pods", "Pod", True, ("po",), (
        "attach", "binding", "ephemeralcontainers", "eviction", "exec", "log", "portforward", "proxy", "resize",
        "status",
    ), {
        "returns_deleted": True, "categories": ("all",), "has_generation": True,
        "fields": {name: name for name in _POD_FIELDS},
    }),
    ("", "v1", "podtemplates", "PodTemplate", True, (), (), {"returns_deleted": True, "has_generation": True}),
    ("", "v1", "replicationcontrollers", "ReplicationController", True, ("rc",), _SCALED, {
        "categories": ("all",), "has_generation": True, "fields": {"status.replicas": "status.replicas"},
    }),
    ("", "v1", "resourcequotas", "ResourceQuota", True, ("quota",), _STATUS, {"returns_deleted": True}),
    ("", "v1", "secrets", "Secret", True, (), (), {"fields": {"type": "type"}}),
    ("", "v1", "serviceaccounts", "ServiceAccount", True, ("sa",), ("token",), {"returns_deleted": True}),
    ("", "v1", "services", "Service", True, ("svc",), ("proxy", "status"), {
        "returns_deleted": True, "categories": ("all",),
        "fields": {"spec.clusterIP": "spec.clusterIP", "spec.type": "spec.type"},
    }),
)  # fmt: skip

_APPS: tuple[_Row, ...] = (
    ("apps", "v1", "controllerrevisions", "ControllerRevision", True, (), (), {}),
    ("apps", "v1", "daemonsets", "DaemonSet", True, ("ds",), _STATUS, {
        "categories": ("all",), "has_generation": True,
    }),
    ("apps", "v1", "deployments", "Deployment", True, ("deploy",), _SCALED, {
        "categories": ("all",), "has_generation": True,
    }),
    ("apps", "v1", "replicasets", "ReplicaSet", True, ("rs",), _SCALED, {
        "categories": ("all",), "has_generation": True, "fields": {"status.replicas": "status.replicas"},
    }),
    ("apps", "v1", "statefulsets", "StatefulSet", True, ("sts",), _SCALED, {
        "categories": ("all",), "has_generation": True,
    }),
    ("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", True, ("hpa",), _STATUS, {
        "categories": ("all",),
    }),
    ("batch", "v1", "cronjobs", "CronJob", True, ("cj",), _STATUS, {"categories": ("all",), "has_generation": True}),
    ("batch", "v1", "jobs", "Job", True, (), _STATUS, {
        "categories": ("all",), "has_generation": True, "fields": {"status.successful": "status.succeeded"},
    }),
    ("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, ("pdb",), _STATUS, {"has_generation": True}),
)  # fmt: skip

_RBAC = "rbac.authorization.k8s.io"
_OTHERS: tuple[_Row, ...] = (
    ("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", False,
     (), (), {"categories": ("api-extensions",), "has_generation": True}),
    ("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration",
     False, (), (), {"categories": ("api-extensions",), "has_generation": True}),
    ("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False, ("crd", "crds"),
     _STATUS, {"categories": ("api-extensions",), "has_generation": True}),
    ("apiregistration.k8s.io", "v1", "apiservices", "APIService", False, (), _STATUS,
     {"categories": ("api-extensions",)}),
    ("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", False, (), (), {"verbs": _VIRTUAL}),
    ("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", False, (), (), {"verbs": _VIRTUAL}),
    ("authorization.k8s.io", "v1", "localsubjectaccessreviews", "LocalSubjectAccessReview", True, (), (),
     {"verbs": _VIRTUAL}),
    ("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False, (), (),
     {"verbs": _VIRTUAL}),
    ("authorization.k8s.io", "v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview", False, (), (),
     {"verbs": _VIRTUAL}),
    ("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", False, (), (),
     {"verbs": _VIRTUAL}),
    ("certificates.k8s.io", "v1", "certificatesigningrequests", "CertificateSigningRequest", False, ("csr",),
     ("approval", "status"), {"fields": {"spec.signerName": "spec.signerName"}}),
    ("coordination.k8s.io", "v1", "leases", "Lease", True, (), (), {}),
    ("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", True, (), (), {"has_generation": True}),
    ("events.k8s.io", "v1", "events", "Event", True, ("ev",), (), {
        "storage": "events", "fields": events.NEW_FIELDS,
        "to_storage": events.to_core, "from_storage": events.from_core,
    }),
    ("networking.k8s.io", "v1", "ingressclasses", "IngressClass", False, (), (), {"has_generation": True}),
    ("networking.k8s.io", "v1", "ingresses", "Ingress", True, ("ing",), _STATUS, {"has_generation": True}),
    ("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", True, ("netpol",), (), {"has_generation": True}),
    ("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", False, (), (), {}),
    (_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", False, (), (), {}),
    (_RBAC, "v1", "clusterroles", "ClusterRole", False, (), (), {}),
    (_RBAC, "v1", "rolebindings", "RoleBinding", True, (), (), {}),
    (_RBAC, "v1", "roles", "Role", True, (), (), {}),
    ("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, ("pc",), (), {"has_generation": True}),
    ("storage.k8s.io", "v1", "storageclasses", "StorageClass", False, ("sc",), (), {"returns_deleted": True}),
)  # fmt: skip


def builtin_types() -> Iterator[ResourceType]:
    """Every built-in type."""
    for group, version, plural, kind, namespaced, short_names, subresources, more in _CORE + _APPS + _OTHERS:
        options: dict[str, Any] = {"singular": kind.lower(), **more}
        yield ResourceType(
            group,
            version,
            plural,
            kind,
            namespaced=namespaced,
            short_names=short_names,
            subresources=subresources,
            **options,
        )


BUILTIN = tuple(builtin_types())
