"""Markers and positions written as objects of `reclock.dev/v1alpha1`."""

from __future__ import annotations

import hashlib
import uuid
from typing import TYPE_CHECKING, Any

from _fastpath.marker import Marker
from services.aggregator.clock.position import Position

if TYPE_CHECKING:
    from services.aggregator.clock.clock import ResourceClock

API_VERSION, KIND = "reclock.dev/v1alpha1", "VersionMarker"
DEFAULT = "default"
_SPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "versionmarkers.reclock.dev")


def home(marker: Marker) -> str:
    """The namespace a marker is shown in."""
    return marker.namespace or DEFAULT


def hashed(*parts: str) -> str:
    """Twelve hexadecimal digits that name the parts."""
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=6).hexdigest()


def marker_name(clock: ResourceClock, marker: Marker) -> str:
    """`<resource>.<group>.<hash of namespace, name, cluster>`; without the group where it is the core's."""
    return f"{clock.aggregated.key}.{hashed(marker.namespace, marker.name, marker.cluster)}"


def bookmark_name(clock: ResourceClock, cluster: str) -> str:
    """`<resource>.<group>.<hash of the cluster>` of a cluster's position."""
    return f"{clock.aggregated.key}.{hashed('', '', cluster, 'position')}"


def labels_of(clock: ResourceClock, cluster: str) -> dict[str, str]:
    """What lists of markers can be narrowed by."""
    return {"reclock.dev/cluster": cluster, "reclock.dev/resource": clock.aggregated.key}


def _metadata(clock: ResourceClock, name: str, namespace: str, cluster: str, version: int) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": namespace,
        "uid": str(uuid.uuid5(_SPACE, f"{namespace}/{name}")),
        "resourceVersion": str(version),
        "creationTimestamp": None,
        "labels": labels_of(clock, cluster),
    }


def marker_object(clock: ResourceClock, marker: Marker) -> dict[str, Any]:
    """`type: Mapping`: one object of one cluster and the version it is shown under."""
    aggregated = clock.aggregated
    shown = clock.shown(marker.namespace, marker.name)
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": _metadata(clock, marker_name(clock, marker), home(marker), marker.cluster, marker.fleet),
        "type": "Mapping",
        "store": {"cluster": marker.cluster, "incarnation": marker.incarnation},
        "object": {
            "apiVersion": aggregated.at().group_version,
            "kind": aggregated.kind,
            **({"namespace": marker.namespace} if marker.namespace else {}),
            "name": marker.name,
            "uid": marker.uid,
            "resourceVersion": str(marker.version),
        },
        "template": {"metadata": {"resourceVersion": str(marker.fleet), "labels": dict(marker.labels)}},
        "status": {
            "shown": shown is not None and shown.cluster == marker.cluster and not marker.deleted,
            "since": str(marker.since),
        },
    }


def bookmark_object(clock: ResourceClock, cluster: str, position: Position) -> dict[str, Any]:
    """`type: Bookmark`: how far the log has followed one cluster."""
    aggregated = clock.aggregated
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": _metadata(clock, bookmark_name(clock, cluster), DEFAULT, cluster, clock.head),
        "type": "Bookmark",
        "store": {"cluster": cluster, "incarnation": position.incarnation},
        "object": {
            "apiVersion": aggregated.at().group_version,
            "kind": aggregated.kind,
            "resourceVersion": str(position.read),
        },
        "template": {"metadata": {"resourceVersion": str(clock.head)}},
        "status": {"diffing": position.diff},
    }
