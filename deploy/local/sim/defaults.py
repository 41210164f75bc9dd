"""The defaults that kube-apiserver writes into built-in objects, as far as clients see them."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable
from typing import Any

from deploy.local.sim.types import Object, ResourceType

TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"


def apply_defaults(type_: ResourceType, obj: Object) -> None:
    """Fills in what the type's defaulting fills in; idempotent."""
    if type_.custom:
        return
    defaulter = _BY_TYPE.get(type_.collection)
    if defaulter is not None:
        defaulter(obj)


def initialise(type_: ResourceType, obj: Object, source: random.Random) -> None:
    """What the type's strategy and admission set when an object is created, over what the client sent."""
    if type_.custom:
        if type_.has_status:
            obj.pop("status", None)
        return
    plural = type_.plural
    if plural == "pods":
        _new_pod(obj, source)
    elif plural == "namespaces":
        obj["spec"] = {"finalizers": ["kubernetes"]}
        obj["status"] = {"phase": "Active"}
    elif plural in ("replicasets", "replicationcontrollers"):
        obj["status"] = {"replicas": 0}
    elif plural == "statefulsets":
        obj["status"] = {"replicas": 0, "availableReplicas": 0}
    elif plural == "daemonsets":
        obj["status"] = {
            "currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0
        }  # fmt: skip
    elif plural in ("deployments", "cronjobs", "poddisruptionbudgets"):
        obj["status"] = {}
    elif plural == "jobs":
        _new_job(obj)
    elif plural == "services":
        obj["status"] = {"loadBalancer": {}}
    elif plural == "nodes":
        obj.setdefault("status", {})


def _new_pod(obj: Object, source: random.Random) -> None:
    spec = obj["spec"]
    obj["status"] = {"phase": "Pending", "qosClass": qos_class(spec)}
    if "priority" not in spec:
        spec["priority"] = 0
        spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    spec.setdefault("serviceAccountName", "default")
    spec.setdefault("serviceAccount", spec["serviceAccountName"])
    tolerations = spec.setdefault("tolerations", [])
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(
            t.get("key", key) == key and t.get("effect", "NoExecute") == "NoExecute" for t in tolerations
        ):
            tolerations.append(
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            )
    _mount_token(spec, source)


def _mount_token(spec: dict[str, Any], source: random.Random) -> None:
    volumes = spec.setdefault("volumes", [])
    if spec.get("automountServiceAccountToken") is False or any(
        volume["name"].startswith("kube-api-access-") for volume in volumes
    ):
        return
    name = "kube-api-access-" + "".join(source.choice("bcdfghjklmnpqrstvwxz2456789") for _ in range(5))
    sources = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {
            "apiVersion": "v1", "fieldPath": "metadata.namespace",
        }}]}},
    ]  # fmt: skip
    volumes.append({"name": name, "projected": {"sources": sources, "defaultMode": 420}})
    for container in [*spec["containers"], *spec.get("initContainers", ())]:
        container.setdefault("volumeMounts", []).append(
            {"name": name, "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
        )


def _new_job(obj: Object) -> None:
    spec, meta = obj["spec"], obj["metadata"]
    obj["status"] = {}
    if not spec.get("manualSelector"):
        uid = meta["uid"]
        labels = spec["template"].setdefault("metadata", {}).setdefault("labels", {})
        for key, value in (("controller-uid", uid), ("job-name", meta["name"])):
            labels.setdefault(f"batch.kubernetes.io/{key}", value)
            labels.setdefault(key, value)
        spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    if not meta.get("labels"):
        meta["labels"] = dict(spec["template"]["metadata"].get("labels") or {})


def qos_class(spec: dict[str, Any]) -> str:
    """BestEffort, Burstable or Guaranteed, as KEP-2570's predecessor defines them."""
    containers = [*spec.get("containers", ()), *spec.get("initContainers", ())]
    resources = [container.get("resources") or {} for container in containers]
    if not any(r.get("requests") or r.get("limits") for r in resources):
        return "BestEffort"
    for found in resources:
        limits, requests = found.get("limits") or {}, found.get("requests") or {}
        for name in ("cpu", "memory"):
            if name not in limits or requests.get(name, limits[name]) != limits[name]:
                return "Burstable"
    return "Guaranteed"


def _fill(target: dict[str, Any], **values: Any) -> None:
    for name, value in values.items():
        if target.get(name) is None:
            target[name] = value


def pod_spec(spec: dict[str, Any]) -> None:
    """Defaults of a PodSpec, in a pod or in a template."""
    for container in [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]:
        _container(container)
    _fill(
        spec,
        restartPolicy="Always",
        terminationGracePeriodSeconds=30,
        dnsPolicy="ClusterFirst",
        securityContext={},
        schedulerName="default-scheduler",
    )
    for volume in spec.get("volumes") or ():
        for kind in ("configMap", "secret", "projected", "downwardAPI"):
            if isinstance(volume.get(kind), dict):
                _fill(volume[kind], defaultMode=420)
        if len(volume) == 1:
            volume["emptyDir"] = {}


def _container(container: dict[str, Any]) -> None:
    image = str(container.get("image", ""))
    tag = image.rpartition("/")[2].partition(":")[2]
    policy = "Always" if tag in ("", "latest") and "@" not in image else "IfNotPresent"
    _fill(
        container,
        resources={},
        terminationMessagePath="/dev/termination-log",
        terminationMessagePolicy="File",
        imagePullPolicy=policy,
    )
    limits = container["resources"].get("limits")
    if limits:
        requests = container["resources"].setdefault("requests", {})
        for name, value in limits.items():
            requests.setdefault(name, value)
    for port in container.get("ports") or ():
        _fill(port, protocol="TCP")
    for env in container.get("env") or ():
        reference = (env.get("valueFrom") or {}).get("fieldRef")
        if reference:
            _fill(reference, apiVersion="v1")
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if container.get(name):
            _fill(container[name], timeoutSeconds=1, periodSeconds=10, successThreshold=1, failureThreshold=3)
            for kind in ("httpGet",):
                if container[name].get(kind):
                    _fill(container[name][kind], path="/", scheme="HTTP")


def _pod(obj: Object) -> None:
    pod_spec(obj.setdefault("spec", {}))
    spec = obj["spec"]
    _fill(spec, enableServiceLinks=True)
    if spec.get("serviceAccountName"):
        spec["serviceAccount"] = spec["serviceAccountName"]


def _template(spec: dict[str, Any]) -> None:
    template = spec.setdefault("template", {})
    template.setdefault("metadata", {})
    pod_spec(template.setdefault("spec", {}))


def _deployment(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    _fill(spec, replicas=1, revisionHistoryLimit=10, progressDeadlineSeconds=600)
    strategy = spec.setdefault("strategy", {})
    _fill(strategy, type="RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        _fill(strategy, rollingUpdate={})
        _fill(strategy["rollingUpdate"], maxUnavailable="25%", maxSurge="25%")
    _template(spec)


def _replica_set(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    _fill(spec, replicas=1)
    _template(spec)


def _stateful_set(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    _fill(spec, replicas=1, podManagementPolicy="OrderedReady", revisionHistoryLimit=10)
    strategy = spec.setdefault("updateStrategy", {})
    _fill(strategy, type="RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        _fill(strategy, rollingUpdate={"partition": 0})
    _fill(spec, persistentVolumeClaimRetentionPolicy={"whenDeleted": "Retain", "whenScaled": "Retain"})
    _template(spec)


def _daemon_set(obj: Object) -> None:
    meta = obj["metadata"]
    annotations = meta.get("annotations") or {}
    meta["annotations"] = {TEMPLATE_GENERATION: "1", **annotations}
    spec = obj.setdefault("spec", {})
    _fill(spec, revisionHistoryLimit=10)
    strategy = spec.setdefault("updateStrategy", {})
    _fill(strategy, type="RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        _fill(strategy, rollingUpdate={"maxUnavailable": 1, "maxSurge": 0})
    _template(spec)


def _job(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    if spec.get("completions") is None and spec.get("parallelism") is None:
        _fill(spec, completions=1)
    _fill(
        spec,
        parallelism=1,
        backoffLimit=6,
        completionMode="NonIndexed",
        manualSelector=False,
        suspend=False,
        podReplacementPolicy="TerminatingOrFailed",
    )
    _template(spec)


def _cron_job(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    _fill(
        spec, concurrencyPolicy="Allow", suspend=False, successfulJobsHistoryLimit=3, failedJobsHistoryLimit=1
    )
    template = spec.setdefault("jobTemplate", {})
    template.setdefault("metadata", {})
    pod_spec(template.setdefault("spec", {}).setdefault("template", {}).setdefault("spec", {}))
    template["spec"]["template"].setdefault("metadata", {})


def _service(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    _fill(spec, type="ClusterIP", sessionAffinity="None", internalTrafficPolicy="Cluster")
    _fill(spec, ipFamilies=["IPv4"], ipFamilyPolicy="SingleStack")
    for port in spec.get("ports") or ():
        _fill(port, protocol="TCP", targetPort=port.get("port"))


def _secret(obj: Object) -> None:
    _fill(obj, type="Opaque")
    texts = obj.pop("stringData", None)
    if texts:
        data = obj.setdefault("data", {})
        data.update({key: base64.b64encode(text.encode()).decode() for key, text in texts.items()})


def _role_binding(obj: Object) -> None:
    for subject in obj.get("subjects") or ():
        if subject.get("kind") in ("User", "Group"):
            _fill(subject, apiGroup="rbac.authorization.k8s.io")


def _namespace(obj: Object) -> None:
    meta = obj["metadata"]
    if meta.get("name"):
        meta["labels"] = {**(meta.get("labels") or {}), "kubernetes.io/metadata.name": meta["name"]}


def _node(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    if spec.get("podCIDR"):
        _fill(spec, podCIDRs=[spec["podCIDR"]])


_BY_TYPE: dict[str, Callable[[Object], None]] = {
    "pods": _pod,
    "deployments.apps": _deployment,
    "replicasets.apps": _replica_set,
    "replicationcontrollers": _replica_set,
    "statefulsets.apps": _stateful_set,
    "daemonsets.apps": _daemon_set,
    "jobs.batch": _job,
    "cronjobs.batch": _cron_job,
    "services": _service,
    "secrets": _secret,
    "namespaces": _namespace,
    "nodes": _node,
    "rolebindings.rbac.authorization.k8s.io": _role_binding,
    "clusterrolebindings.rbac.authorization.k8s.io": _role_binding,
}
