"""What a copy looks like, and whether one still says what we wrote."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from reclock import Object

SINK = "reclock.dev/sink"
"""Label of copies: the Sink's name."""
ORIGIN = "reclock.dev/sink-origin"
"""Label of copies: the fleet id. Not `reclock.dev/origin`: that is of workloads' copies, whose garbage collector looks
for their originals on the host."""
DIGEST = "reclock.dev/digest"
FROM = "reclock.dev/sink-from"
"""Annotation of copies: the source cluster; empty for the host."""
OWN = "reclock.dev/"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_SPEC_LEAVES: dict[str, tuple[str, ...]] = {
    "Service": ("clusterIP", "clusterIPs", "healthCheckNodePort"),
    "PersistentVolumeClaim": ("volumeName",),
    "Namespace": ("finalizers",),
    "Pod": ("nodeName",),
}
"""Fields of a spec that a cluster gave, and that mean nothing in another."""
_encoder = msgspec.json.Encoder(order="deterministic")


def make_copy(original: Object, fleet_id: str, sink: str, source: str) -> Object:
    """The object as another cluster should have it, with the labels that say whose it is, and its digest."""
    old = original["metadata"]
    labels = {key: value for key, value in (old.get("labels") or {}).items() if not key.startswith(OWN)}
    notes = {
        key: value for key, value in (old.get("annotations") or {}).items()
        if not key.startswith(OWN) and key != LAST_APPLIED
    }  # fmt: skip
    metadata: Object = {"name": old["name"], "labels": {**labels, SINK: sink, ORIGIN: fleet_id}}
    if old.get("namespace"):
        metadata["namespace"] = old["namespace"]
    copy = {key: value for key, value in original.items() if key not in ("metadata", "status")}
    leaves = _SPEC_LEAVES.get(str(copy.get("kind")), ())
    if leaves and isinstance(copy.get("spec"), dict):
        copy["spec"] = {key: value for key, value in copy["spec"].items() if key not in leaves}
    if copy.get("kind") == "ServiceAccount":
        copy.pop("secrets", None)  # tokens that this cluster made
    copy["metadata"] = {**metadata, "annotations": {**notes, FROM: source}}
    digest = hashlib.sha256(_encoder.encode(copy)).hexdigest()[:32]
    copy["metadata"] = {**metadata, "annotations": {**notes, FROM: source, DIGEST: digest}}
    return copy


def is_ours(obj: Object, fleet_id: str, sink: str) -> bool:
    """Whether this Sink of this fleet made it."""
    labels = obj["metadata"].get("labels") or {}
    return labels.get(SINK) == sink and labels.get(ORIGIN) == fleet_id


def digest_of(obj: Object) -> str:
    """The digest that a copy carries."""
    return str((obj["metadata"].get("annotations") or {}).get(DIGEST, ""))


def fingerprint(obj: Object) -> bytes:
    """Digest of all that a user can set on a stored object: not status, versions and bookkeeping."""
    content = {key: value for key, value in obj.items() if key not in ("metadata", "status")}
    content["labels"] = obj["metadata"].get("labels")
    content["annotations"] = obj["metadata"].get("annotations")
    return hashlib.sha256(_encoder.encode(content)).digest()


def contains(actual: Any, desired: Any) -> bool:
    """Whether `actual` says everything that `desired` says; it may say more (defaults). Absent, null and empty are equal."""
    if isinstance(desired, Mapping):
        if not isinstance(actual, Mapping):
            return not desired and actual is None
        return all(contains(actual.get(key), value) for key, value in desired.items())
    if isinstance(desired, Sequence) and not isinstance(desired, str):
        if not isinstance(actual, Sequence) or isinstance(actual, str):
            return not desired and actual is None
        return len(actual) == len(desired) and all(map(contains, actual, desired))
    return bool(actual == desired) or (not actual and not desired and type(desired) is not bool)
