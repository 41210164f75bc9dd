"""What the workload controllers know about pods."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from deploy.local.sim.controllers.kubelet import ready_since
from deploy.local.sim.controllers.manager import Controller
from deploy.local.sim.objects import encode
from deploy.local.sim.types import Object

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


def owner_reference(kind: str, api_version: str, owner: Object) -> dict[str, Any]:
    """A controller's ownerReference."""
    meta = owner["metadata"]
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def from_template(owner: Object, kind: str, api_version: str, **metadata: Any) -> Object:
    """A pod of the owner's template; `metadata` says its name or generateName and what else differs."""
    template = deepcopy(owner["spec"]["template"])
    meta = template.get("metadata") or {}
    labels = {**(meta.get("labels") or {}), **metadata.pop("labels", {})}
    found: dict[str, Any] = {"labels": labels, "ownerReferences": [owner_reference(kind, api_version, owner)]}
    if meta.get("annotations"):
        found["annotations"] = meta["annotations"]
    if meta.get("finalizers"):
        found["finalizers"] = meta["finalizers"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**found, **metadata},
        "spec": template["spec"],
    }


def owned_pods(controller: Controller, uid: str) -> dict[str, Object]:
    """The pods that name `uid` an owner, by key."""
    found = {}
    for _, key in controller.manager.owners.dependents(uid, "pods"):
        pod = controller.find("pods", key)
        if pod is not None:
            found[key] = pod
    return found


def phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase", "Pending"))


def is_active(pod: Object) -> bool:
    """Neither done nor going."""
    return phase(pod) not in ("Succeeded", "Failed") and not pod["metadata"].get("deletionTimestamp")


def is_ready(pod: Object) -> bool:
    return ready_since(pod) is not None


def is_available(pod: Object, minimum: float, now: float) -> bool:
    """Ready for at least `minimum` seconds."""
    since = ready_since(pod)
    return since is not None and (not minimum or now - since >= minimum)


def template_hash(template: Mapping[str, Any]) -> str:
    """A pod-template-hash: not Kubernetes' own number, but as stable and as short."""
    digest = hashlib.sha256(encode(_sorted(template))).digest()
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest[:10])


def _sorted(value: Any) -> Any:
    """For comparison. null is no value: `kubectl rollout undo` sends the template's `creationTimestamp: null`."""
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value) if value[key] is not None}
    return [_sorted(one) for one in value] if isinstance(value, list) else value


def owner_key(pod_meta: Mapping[str, Any], kind: str, namespace: str) -> str | None:
    """The key of the pod's controller when it is of this kind."""
    for owner in pod_meta.get("ownerReferences") or ():
        if owner.get("controller") and owner["kind"] == kind:
            return f"{namespace}/{owner['name']}"
    return None
