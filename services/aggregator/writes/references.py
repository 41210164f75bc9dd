"""Owner references on the way in: which reach the member, and under which uid (cases 1 and 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from services.aggregator.writes.body import OwnerReference, Raw, join, raw, split, split_list, value
from services.aggregator.writes.context import WriteContext
from services.common import errors

_reference = msgspec.json.Decoder(OwnerReference)
HOST_OWNERS = "reclock.dev/host-owners"
HOST_OWNED = "reclock.dev/host-owned"  # label: what Reclock's garbage collection looks at
ROUTED = "reclock.dev/routed"  # label: the fleet's id, on what the front created for somebody


def fixed_clusters(context: WriteContext, namespace: str, references: Sequence[OwnerReference]) -> set[str]:
    """Clusters that hold an owner as an aggregated object: such an owner fixes where its dependents go."""
    clusters = set()
    for reference in references:
        marker = _aggregated_owner(context, namespace, reference)
        if marker is not None:
            clusters.add(marker)
    return clusters


def _aggregated_owner(context: WriteContext, namespace: str, reference: OwnerReference) -> str | None:
    one = context.aggregations.lookup_kind(reference.api_version, reference.kind)
    clock = context.clock.get(one.group, one.resource) if one else None
    if clock is None or one is None:
        return None
    marker = clock.shown(namespace if one.namespaced else "", reference.name)
    return marker.cluster if marker is not None and marker.uid == reference.uid else None


async def take_in(context: WriteContext, cluster: str, namespace: str, body: bytes) -> bytes:
    """Move references to host objects without a copy on `cluster` into the annotation (case 2).

    References to copies get the member's uid (case 1), those to the member's own objects stay. StatusError when the
    member cannot be asked about a copy that is not known yet.
    """
    fields = split(body)
    if "metadata" not in fields:
        return body
    metadata = split(fields["metadata"])
    references = metadata.get("ownerReferences")
    if references is None or bytes(references) in (b"null", b"[]"):
        return body
    kept: list[msgspec.Raw] = []
    moved: list[Any] = []
    for item in split_list(references):
        try:
            reference = _reference.decode(item)
        except msgspec.MsgspecError as error:
            raise errors.bad_request(f"metadata.ownerReferences: json parse error: {error}") from error
        copy = await context.owners.copy_uid(cluster, reference, namespace)
        if copy is not None:
            kept.append(raw({**value(item), "uid": copy}))
        elif _aggregated_owner(context, namespace, reference) == cluster:
            kept.append(item)
        else:
            moved.append(value(item))
    _put(metadata, "ownerReferences", msgspec.Raw(msgspec.json.encode(kept)) if kept else None)
    if moved:
        _note_host_owners(metadata, moved)
    fields["metadata"] = msgspec.Raw(join(metadata))
    return join(fields)


def mark_routed(body: bytes, fleet_id: str) -> bytes:
    """Label an object that a user creates on a member: in a namespace that is the member's own nothing else tells it
    from what was there, when the fleet's namespace is deleted or the member leaves.
    """
    fields = split(body)
    metadata = split(fields["metadata"]) if "metadata" in fields else {}
    labels = value(metadata.get("labels")) or {}
    metadata["labels"] = raw({**labels, ROUTED: fleet_id})
    fields["metadata"] = raw(metadata)
    return join(fields)


def _note_host_owners(metadata: Raw, moved: list[Any]) -> None:
    annotations = value(metadata.get("annotations")) or {}
    annotations[HOST_OWNERS] = msgspec.json.encode(moved).decode()
    metadata["annotations"] = raw(annotations)
    labels = value(metadata.get("labels")) or {}
    labels[HOST_OWNED] = "true"
    metadata["labels"] = raw(labels)


def _put(fields: Raw, key: str, field: msgspec.Raw | None) -> None:
    if field is None:
        fields.pop(key, None)
    else:
        fields[key] = field
