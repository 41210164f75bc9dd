"""What a new cluster holds: namespaces, service accounts, its authority's certificate, the `kubernetes` service, RBAC."""

from __future__ import annotations

from typing import Any

from deploy.local.sim.core import Core
from deploy.local.sim.types import Object
from deploy.local.sim.writes import Writing, create

NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
_RBAC = "rbac.authorization.k8s.io"
_BY_SERVER = Writing("kube-apiserver")
_BY_CONTROLLERS = Writing("kube-controller-manager")
_READ = ["get", "list", "watch"]
_WRITE = [*_READ, "create", "update", "patch", "delete", "deletecollection"]


def bootstrap(core: Core, *, authority: str = "", service_address: str = "10.96.0.1") -> None:
    """Fills an empty cluster. `authority`: the PEM of its certificate authority."""
    for name in NAMESPACES:
        _make(core, "v1", "namespaces", None, {"metadata": {"name": name}})
    labels = {"component": "apiserver", "provider": "kubernetes"}
    spec = {"clusterIP": service_address, "clusterIPs": [service_address],
            "ports": [{"name": "https", "port": 443, "targetPort": 6443}]}  # fmt: skip
    _make(
        core,
        "v1",
        "services",
        "default",
        {"metadata": {"name": "kubernetes", "labels": labels}, "spec": spec},
    )
    for name, rules in _ROLES.items():
        _make(core, f"{_RBAC}/v1", "clusterroles", None, {"metadata": {"name": name}, "rules": rules})
    for role, group in (("cluster-admin", "system:masters"), ("system:basic-user", "system:authenticated")):
        body = {
            "metadata": {"name": role},
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "Group", "apiGroup": _RBAC, "name": group}],
        }
        _make(core, f"{_RBAC}/v1", "clusterrolebindings", None, body)
    for name in NAMESPACES:
        furnish(core, name, authority)


def furnish(core: Core, namespace: str, authority: str) -> None:
    """What controllers put into every namespace."""
    accounts, configs = core.type("", "v1", "serviceaccounts"), core.type("", "v1", "configmaps")
    if core.find(accounts, namespace, "default") is None:
        create(core, accounts, namespace, {"metadata": {"name": "default"}}, _BY_CONTROLLERS)
    if core.find(configs, namespace, "kube-root-ca.crt") is None:
        note = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters."
        meta = {"name": "kube-root-ca.crt", "annotations": {"kubernetes.io/description": note}}
        create(core, configs, namespace, {"metadata": meta, "data": {"ca.crt": authority}}, _BY_CONTROLLERS)


def _make(core: Core, group_version: str, plural: str, namespace: str | None, obj: Object) -> None:
    group, _, version = group_version.rpartition("/")
    create(core, core.type(group, version, plural), namespace, obj, _BY_SERVER)


def _rule(groups: list[str], resources: list[str], verbs: list[str]) -> dict[str, Any]:
    return {"apiGroups": groups, "resources": resources, "verbs": verbs}


_VIEWED = [
    _rule([""], ["configmaps", "endpoints", "events", "limitranges", "namespaces", "persistentvolumeclaims", "pods",
                 "pods/log", "pods/status", "replicationcontrollers", "resourcequotas", "serviceaccounts", "services"],
          _READ),
    _rule(["apps", "autoscaling", "batch", "discovery.k8s.io", "networking.k8s.io", "policy"], ["*"], _READ),
]  # fmt: skip
_EDITED = [
    *_VIEWED,
    _rule([""], ["configmaps", "endpoints", "events", "persistentvolumeclaims", "pods", "pods/attach", "pods/exec",
                 "pods/eviction", "pods/portforward", "pods/proxy", "replicationcontrollers", "secrets",
                 "serviceaccounts", "services"], _WRITE),
    _rule(["apps", "autoscaling", "batch", "networking.k8s.io", "policy"], ["*"], _WRITE),
]  # fmt: skip
_REVIEWS = ["selfsubjectaccessreviews", "selfsubjectrulesreviews"]
_ROLES: dict[str, list[dict[str, Any]]] = {
    "cluster-admin": [_rule(["*"], ["*"], ["*"]), {"nonResourceURLs": ["*"], "verbs": ["*"]}],
    "admin": [*_EDITED, _rule([_RBAC], ["roles", "rolebindings"], _WRITE)],
    "edit": _EDITED,
    "view": _VIEWED,
    "system:basic-user": [_rule(["authorization.k8s.io"], _REVIEWS, ["create"])],
}
