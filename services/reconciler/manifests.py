"""What Reclock writes on a member for a host object. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.common.kube import portable
from services.common.kube.content import digest
from services.reconciler.closure import carried
from services.reconciler.names import (
    AT_MOST_ONCE,
    DIGEST,
    FAILED_BASE,
    HOST_UID,
    ON_MEMBERS,
    ORIGIN,
    OWN_PREFIX,
    Obj,
)
from services.reconciler.objects import annotations_of, name_of, uid

HOSTS_OWN = (OWN_PREFIX, *portable.ANNOTATIONS)
"""Annotations that speak of the host's object and not of its copy."""
FIELDS: dict[str, tuple[str, ...]] = {
    "configmap": ("data", "binaryData", "immutable"),
    "secret": ("data", "type", "immutable"),
    "serviceaccount": ("secrets", "imagePullSecrets", "automountServiceAccountToken"),
    "priorityclass": ("value", "globalDefault", "description", "preemptionPolicy"),
    "runtimeclass": ("handler", "overhead", "scheduling"),
    "storageclass": (
        "provisioner", "parameters", "reclaimPolicy", "mountOptions", "allowVolumeExpansion",
        "volumeBindingMode", "allowedTopologies",
    ),
}  # fmt: skip
"""Fields of kinds that have no spec."""


def _metadata(obj: Mapping[str, Any], fleet_id: str) -> dict[str, Any]:
    namespace, name = name_of(obj)
    kept = {
        key: value for key, value in annotations_of(obj).items()
        # The worker beside the copy has to know what must not run twice.
        if key == AT_MOST_ONCE or not key.startswith(HOSTS_OWN)
    }  # fmt: skip
    metadata: dict[str, Any] = {
        "name": name,
        "labels": {**carried(obj), ORIGIN: fleet_id},
        "annotations": {**kept, HOST_UID: uid(obj)},
    }
    if namespace:
        metadata["namespace"] = namespace
    return metadata


def _job(spec: dict[str, Any]) -> dict[str, Any]:
    """A Job whose pods match the host's selector; when it is cleaned up is the host's business."""
    for field in ("ttlSecondsAfterFinished", "managedBy"):
        spec.pop(field, None)
    spec["manualSelector"] = True
    return spec


def manifest(
    kind: str,
    obj: Mapping[str, Any],
    fleet_id: str,
    *,
    replicas: int | None = None,
    suspend: bool | None = None,
    failed_base: int = 0,
) -> Obj:
    """Return the copy of a host object as it is applied to a member, its digest in its annotations.

    `replicas` and `suspend` replace those of the host's spec; `failed_base` is noted on a Job's copy, and is not
    part of the digest: it is fixed when the copy is made.
    """
    resource = ON_MEMBERS[kind]
    result: Obj = {
        "apiVersion": resource.group_version, "kind": resource.kind, "metadata": _metadata(obj, fleet_id),
    }  # fmt: skip
    if kind in FIELDS:
        result |= {field: obj[field] for field in FIELDS[kind] if obj.get(field) is not None}
    elif kind != "namespace":
        result["spec"] = _spec(kind, dict(obj.get("spec") or {}))
    if replicas is not None:
        result["spec"]["replicas"] = replicas
    if suspend is not None:
        result["spec"]["suspend"] = suspend
    result["metadata"]["annotations"][DIGEST] = digest(result)
    if kind == "job" and failed_base:
        result["metadata"]["annotations"][FAILED_BASE] = str(failed_base)
    return result


def _spec(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    if kind == "service":
        return portable.service_spec(spec)
    if kind == "job":
        spec = _job(spec)
    if kind == "claim":
        spec.pop("volumeName", None)
    if template := spec.get("template"):
        metadata = {key: value for key, value in (template.get("metadata") or {}).items() if value is not None}
        spec["template"] = {**template, "metadata": metadata}
    if claims := spec.get("volumeClaimTemplates"):
        spec["volumeClaimTemplates"] = [_claim_template(claim) for claim in claims]
    return spec


def _claim_template(claim: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {key: value for key, value in (claim.get("metadata") or {}).items() if value is not None}
    return {**{key: value for key, value in claim.items() if key != "status"}, "metadata": metadata}
