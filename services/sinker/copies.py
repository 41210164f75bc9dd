"""What a copy looks like, and whether one still says what we wrote."""

from __future__ import annotations

from reclock import Object
from services.common.kube import portable
from services.common.kube.content import digest

SINK = "reclock.dev/sink"
"""Label of copies: the Sink's name."""
ORIGIN = "reclock.dev/sink-origin"
"""Label of copies: the fleet id. Not `reclock.dev/origin`: that is of workloads' copies, whose garbage collector looks
for their originals on the host."""
DIGEST = "reclock.dev/digest"
FROM = "reclock.dev/sink-from"
"""Annotation of copies: the source cluster; empty for the host."""
OWN = "reclock.dev/"
_SPEC_LEAVES: dict[str, tuple[str, ...]] = {
    "PersistentVolumeClaim": ("volumeName",),
    "Namespace": ("finalizers",),
    "Pod": ("nodeName",),
}
"""Fields of a spec that a cluster gave, and that mean nothing in another."""


def make_copy(original: Object, fleet_id: str, sink: str, source: str) -> Object:
    """The object as another cluster should have it, with the labels that say whose it is, and its digest."""
    old = original["metadata"]
    labels = {key: value for key, value in (old.get("labels") or {}).items() if not key.startswith(OWN)}
    notes = {
        key: value for key, value in (old.get("annotations") or {}).items()
        if not key.startswith((OWN, *portable.ANNOTATIONS))
    }  # fmt: skip
    metadata: Object = {"name": old["name"], "labels": {**labels, SINK: sink, ORIGIN: fleet_id}}
    if old.get("namespace"):
        metadata["namespace"] = old["namespace"]
    copy = {key: value for key, value in original.items() if key not in ("metadata", "status")}
    leaves = _SPEC_LEAVES.get(str(copy.get("kind")), ())
    if leaves and isinstance(copy.get("spec"), dict):
        copy["spec"] = {key: value for key, value in copy["spec"].items() if key not in leaves}
    if copy.get("kind") == "Service" and isinstance(copy.get("spec"), dict):
        copy["spec"] = portable.service_spec(copy["spec"])
    if copy.get("kind") == "ServiceAccount":
        copy.pop("secrets", None)  # tokens that this cluster made
    copy["metadata"] = {**metadata, "annotations": {**notes, FROM: source}}
    copy["metadata"] = {**metadata, "annotations": {**notes, FROM: source, DIGEST: digest(copy)}}
    return copy


def is_ours(obj: Object, fleet_id: str, sink: str) -> bool:
    """Whether this Sink of this fleet made it."""
    labels = obj["metadata"].get("labels") or {}
    return labels.get(SINK) == sink and labels.get(ORIGIN) == fleet_id


def digest_of(obj: Object) -> str:
    """The digest that a copy carries."""
    return str((obj["metadata"].get("annotations") or {}).get(DIGEST, ""))
