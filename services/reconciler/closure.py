"""What a pod template needs beside itself: the closure of its dependencies. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from services.reconciler.names import Obj
from services.reconciler.objects import labels_of, name_of
from services.reconciler.workload_spec import names

SYSTEM_CLASSES = ("system-node-critical", "system-cluster-critical")
UNTOUCHED = {("serviceaccount", "default"), ("configmap", "kube-root-ca.crt")}
"""Every cluster makes its own; they are used as they are."""
TOKEN = "kubernetes.io/service-account-token"


@dataclass(frozen=True, slots=True)
class Need:
    """One object that a workload needs; `namespace` is "" for cluster-scoped kinds."""

    kind: str
    namespace: str
    name: str
    optional: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        return self.kind, self.namespace, self.name

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


class Source(Protocol):
    """The host's objects."""

    def get(self, kind: str, namespace: str, name: str) -> Obj | None: ...
    def in_namespace(self, kind: str, namespace: str) -> Iterable[Obj]: ...


@dataclass(frozen=True, slots=True)
class Closure:
    """Found on the host: `needs` with their objects; `missing` there (optional ones left out)."""

    objects: dict[Need, Obj]
    missing: list[Need]


def _env(containers: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str, bool]]:
    for container in containers:
        for source in container.get("envFrom") or []:
            for field, kind in (("configMapRef", "configmap"), ("secretRef", "secret")):
                if reference := source.get(field):
                    yield kind, reference.get("name", ""), bool(reference.get("optional"))
        for variable in container.get("env") or []:
            value = variable.get("valueFrom") or {}
            for field, kind in (("configMapKeyRef", "configmap"), ("secretKeyRef", "secret")):
                if reference := value.get(field):
                    yield kind, reference.get("name", ""), bool(reference.get("optional"))


def _volume(volume: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    if source := volume.get("configMap"):
        yield "configmap", source.get("name", ""), bool(source.get("optional"))
    if source := volume.get("secret"):
        yield "secret", source.get("secretName", ""), bool(source.get("optional"))
    if source := volume.get("persistentVolumeClaim"):
        yield "claim", source.get("claimName", ""), False
    for part in (volume.get("projected") or {}).get("sources") or []:
        for field, kind in (("configMap", "configmap"), ("secret", "secret")):
            if source := part.get(field):
                yield kind, source.get("name", ""), bool(source.get("optional"))
    for driver in ("csi", "rbd", "cephfs", "iscsi", "flexVolume", "scaleIO", "storageos"):
        for field in ("nodePublishSecretRef", "secretRef"):
            reference = (volume.get(driver) or {}).get(field) or {}
            yield "secret", reference.get("name", ""), False


def references(pod: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """(kind, name, optional) of everything that a pod spec names."""
    for group in ("containers", "initContainers", "ephemeralContainers"):
        yield from _env(pod.get(group) or [])
    for volume in pod.get("volumes") or []:
        yield from _volume(volume)
    for name in names(pod.get("imagePullSecrets")):
        # The kubelet only warns about pull secrets that are not there.
        yield "secret", name, True
    yield "serviceaccount", pod.get("serviceAccountName") or pod.get("serviceAccount") or "default", False
    yield "priorityclass", pod.get("priorityClassName") or "", False
    yield "runtimeclass", pod.get("runtimeClassName") or "", False


def _selects(service: Mapping[str, Any], pod_labels: Mapping[str, str]) -> bool:
    selector: dict[str, str] = (service.get("spec") or {}).get("selector") or {}
    return bool(selector) and all(pod_labels.get(key) == value for key, value in selector.items())


def closure(owner: Mapping[str, Any], host: Source) -> Closure:
    """Return what the owner's pods need, in the order in which it must be there."""
    namespace = name_of(owner)[0]
    spec = owner.get("spec") or {}
    template = spec.get("template") or {}
    found: dict[Need, Obj] = {}
    missing: dict[Need, None] = {}
    seen: set[tuple[str, str]] = set()
    waiting: list[tuple[str, str, bool]] = []

    def visit(kind: str, name: str, optional: bool) -> None:
        if not name or (kind, name) in seen or (kind, name) in UNTOUCHED or name in SYSTEM_CLASSES:
            return
        seen.add((kind, name))
        scoped = "" if kind.endswith("class") else namespace
        need = Need(kind, scoped, name, optional)
        obj = host.get(kind, scoped, name)
        if obj is None or obj["metadata"].get("deletionTimestamp"):
            if not optional:
                missing[need] = None
            return
        if kind == "secret" and obj.get("type") == TOKEN:
            return
        waiting.extend(_named_by(kind, obj))
        found[need] = obj

    waiting.extend(references(template.get("spec") or {}))
    for claim in spec.get("volumeClaimTemplates") or []:
        waiting.extend(_named_by("claim", claim))
    while waiting:
        visit(*waiting.pop(0))
    for kind in ("networkpolicy", "limitrange"):
        for obj in host.in_namespace(kind, namespace):
            visit(kind, obj["metadata"]["name"], True)
    pod_labels = (template.get("metadata") or {}).get("labels") or {}
    for obj in host.in_namespace("service", namespace):
        if _selects(obj, pod_labels):
            visit("service", obj["metadata"]["name"], True)
    if spec.get("serviceName"):
        visit("service", spec["serviceName"], True)
    return Closure(found, list(missing))


def _named_by(kind: str, obj: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """What a dependency names in turn."""
    if kind == "serviceaccount":
        for field in ("secrets", "imagePullSecrets"):
            for name in names(obj.get(field)):
                yield "secret", name, True
    if kind == "claim":
        yield "storageclass", (obj.get("spec") or {}).get("storageClassName") or "", True


def carried(obj: Mapping[str, Any]) -> dict[str, str]:
    """Labels of an object that its copy carries too."""
    return {key: value for key, value in labels_of(obj).items() if not key.startswith("reclock.dev/")}
