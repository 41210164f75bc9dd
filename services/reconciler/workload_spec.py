"""What a `Workload` says of its owner: pods, requests, constraints, and what the kind allows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from services.common.kube.pod_requests import pod_requests
from services.common.kube.quantity import plain
from services.reconciler.names import FINALIZER, Obj
from services.reconciler.objects import labels_of, must_not_run_twice, name_of, replicas, uid, workload_name

MODES = {
    "deployment": "Any", "replicaset": "Any", "statefulset": "Single", "job": "Single",
    "daemonset": "Duplicated",
}  # fmt: skip
API_VERSIONS = {"job": "batch/v1"}
KINDS = {
    "deployment": "Deployment", "replicaset": "ReplicaSet", "statefulset": "StatefulSet",
    "daemonset": "DaemonSet", "job": "Job",
}  # fmt: skip
_KIND_OF = {name: kind for kind, name in KINDS.items()}
CONSTRAINTS = (
    "nodeSelector", "nodeName", "affinity", "tolerations", "priority", "priorityClassName",
    "topologySpreadConstraints", "runtimeClassName", "schedulerName", "hostNetwork",
)  # fmt: skip
"""Fields of a pod spec that bear on where it may run."""
JOB_CONTROLLER = "kubernetes.io/job-controller"


def volume_claims(spec: Mapping[str, Any]) -> list[str]:
    """Names of the claims, and claim templates, that the pods mount."""
    volumes = ((spec.get("template") or {}).get("spec") or {}).get("volumes") or []
    named = [volume["persistentVolumeClaim"]["claimName"] for volume in volumes if volume.get("persistentVolumeClaim")]
    templates = [claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates") or []]
    return [*named, *templates]


def pod_count(kind: str, owner: Mapping[str, Any]) -> int:
    """How many pods the owner has at once; 0 for a DaemonSet, which has as many as its clusters have nodes."""
    if kind == "daemonset":
        return 0
    if kind != "job":
        return replicas(owner)
    spec = owner.get("spec") or {}
    parallelism = spec.get("parallelism")
    pods = 1 if parallelism is None else int(parallelism)
    completions = spec.get("completions")
    return pods if completions is None else min(pods, int(completions))


def managed_elsewhere(job: Mapping[str, Any]) -> bool:
    """Whether another controller manages this Job."""
    manager = (job.get("spec") or {}).get("managedBy")
    return bool(manager) and manager != JOB_CONTROLLER


def workload_spec(kind: str, owner: Mapping[str, Any]) -> dict[str, Any]:
    """The `spec` of the owner's Workload."""
    spec = owner.get("spec") or {}
    template = spec.get("template") or {}
    pod = template.get("spec") or {}
    constraints = {field: pod[field] for field in CONSTRAINTS if pod.get(field)}
    if claims := volume_claims(spec):
        constraints["volumeClaims"] = claims
    pod_set = {
        "name": "main",
        "count": pod_count(kind, owner),
        "requests": {name: plain(amount) for name, amount in sorted(pod_requests(pod).items())},
        "constraints": constraints,
    }
    return {
        "owner": {
            "apiVersion": API_VERSIONS.get(kind, "apps/v1"), "kind": KINDS[kind],
            "name": name_of(owner)[1], "uid": uid(owner),
        },
        "podSets": [pod_set],
        "mode": MODES[kind],
        "suspend": bool(spec.get("suspend")) if kind == "job" else False,
        "atMostOnce": must_not_run_twice(kind, owner),
        "labels": dict(labels_of(owner)),
    }  # fmt: skip


def owner_kind(workload: Mapping[str, Any]) -> str:
    """Kind of the owner, as keys have it; "" for a Workload that somebody else submitted, of a kind that is not ours."""
    owner = workload["spec"]["owner"]
    kind = _KIND_OF.get(owner["kind"], "")
    ours = owner.get("uid") and owner["apiVersion"].rpartition("/")[0] == API_VERSIONS.get(kind, "apps/v1").rpartition("/")[0]
    return kind if ours else ""


def new_workload(kind: str, owner: Mapping[str, Any]) -> Obj:
    """The Workload to create for an owner that has none."""
    spec = workload_spec(kind, owner)
    namespace, name = name_of(owner)
    reference = {**spec["owner"], "controller": True, "blockOwnerDeletion": True}
    return {
        "apiVersion": "reclock.dev/v1alpha1",
        "kind": "Workload",
        "metadata": {
            "name": workload_name(kind, name), "namespace": namespace, "finalizers": [FINALIZER],
            "ownerReferences": [reference],
        },
        "spec": spec,
    }  # fmt: skip


def placed(workload: Mapping[str, Any] | None) -> dict[str, int] | None:
    """Cluster -> replicas as the scheduler placed it; None while nothing may run."""
    if workload is None:
        return None
    placement = (workload.get("status") or {}).get("placement")
    if not placement:
        return None
    return {entry["name"]: int(entry.get("replicas") or 0) for entry in placement.get("clusters") or []}


def is_duplicated(workload: Mapping[str, Any] | None) -> bool:
    """Whether every placed cluster runs all replicas."""
    return bool((((workload or {}).get("status") or {}).get("placement") or {}).get("duplicated"))


def resolve_percent(value: Any, of: int) -> int:
    """An int or a percentage of `of`, rounded down."""
    if isinstance(value, str) and value.endswith("%"):
        return of * int(value[:-1]) // 100
    return int(value)


def unavailable_budget(owner: Mapping[str, Any]) -> int:
    """Pods that moves between placed clusters may take away at once: a Deployment's maxUnavailable.

    As Kubernetes resolves it: rounded down, maxSurge rounded up, 1 when both come to 0. A ReplicaSet that was
    created directly has none to give.
    """
    strategy = (owner.get("spec") or {}).get("strategy")
    if strategy is None or recreates(owner):
        return 0
    rolling, size = strategy.get("rollingUpdate") or {}, replicas(owner)
    surge, unavailable = rolling.get("maxSurge"), rolling.get("maxUnavailable")
    most = resolve_percent("25%" if unavailable is None else unavailable, size)
    return most or int(-resolve_percent("25%" if surge is None else surge, -size) == 0)


def recreates(owner: Mapping[str, Any]) -> bool:
    """Whether a Deployment stops its old pods before it starts new ones."""
    return ((owner.get("spec") or {}).get("strategy") or {}).get("type") == "Recreate"


def names(entries: Iterable[Mapping[str, Any]] | None) -> list[str]:
    """The `name` of each entry that has one."""
    return [str(entry["name"]) for entry in entries or [] if entry.get("name")]
