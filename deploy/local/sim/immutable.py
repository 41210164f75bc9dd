"""What an update of a built-in object may not change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from deploy.local.sim.errors import Cause, invalid
from deploy.local.sim.objects import encode
from deploy.local.sim.types import Object, ResourceType

_POD_MUTABLE = (
    "activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "schedulingGates", "nodeName",
    "ephemeralContainers",
)  # fmt: skip
_POD_TEXT = (
    "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_STATEFUL_MUTABLE = (
    "replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy", "minReadySeconds",
)  # fmt: skip
_STATEFUL_TEXT = (
    "Forbidden: updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', "
    "'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
)


def check_update(type_: ResourceType, new: Object, old: Object, sub: str) -> None:
    """Raises Refused (422)."""
    if type_.custom or sub:
        return
    causes = list(_causes(type_, new.get("spec") or {}, old.get("spec") or {}, new, old))
    if causes:
        raise invalid(type_.group, type_.kind, new["metadata"]["name"], causes)


def _causes(
    type_: ResourceType, new: dict[str, Any], old: dict[str, Any], whole: Object, before: Object
) -> Iterator[Cause]:
    plural = type_.plural
    if plural == "pods" and _frozen_pod(new) != _frozen_pod(old):
        yield Cause("FieldValueForbidden", "spec", _POD_TEXT)
    elif plural in ("deployments", "replicasets", "daemonsets") and new.get("selector") != old.get(
        "selector"
    ):
        said = encode(new.get("selector")).decode()
        yield Cause("FieldValueInvalid", "spec.selector", f"Invalid value: {said}: field is immutable")
    elif plural == "statefulsets":
        if _without(new, _STATEFUL_MUTABLE) != _without(old, _STATEFUL_MUTABLE):
            yield Cause("FieldValueForbidden", "spec", _STATEFUL_TEXT)
    elif plural in ("configmaps", "secrets") and before.get("immutable"):
        for name in ("data", "binaryData"):
            if whole.get(name) != before.get(name):
                yield Cause(
                    "FieldValueForbidden", name, "Forbidden: field is immutable when `immutable` is set"
                )


def _without(spec: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in spec.items() if name not in names}


def _frozen_pod(spec: dict[str, Any]) -> dict[str, Any]:
    frozen = _without(spec, _POD_MUTABLE)
    for kind in ("containers", "initContainers"):
        if frozen.get(kind):
            frozen[kind] = [_without(container, ("image",)) for container in frozen[kind]]
    return frozen
