"""A `Workload` object of the host, read once per version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from services.common.kube import quantity
from services.common.kube.resource import Resource
from services.common.kube.times import parse_time
from services.scheduler import clock
from services.scheduler.ledger import OwnerKey
from services.scheduler.shape import Shape, make_shape

WORKLOADS = Resource("reclock.dev", "v1alpha1", "workloads", "Workload")
AT_MOST_ONCE_KINDS = ("StatefulSet",)
MOST_PODS = 2**31 - 1
"""A placement's replicas are int32, as those of every kind of Kubernetes."""
SINGLE, DIVIDED, DUPLICATED = "Single", "Divided", "Duplicated"


class Key(NamedTuple):
    """Namespace and name."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class PodSet:
    """A number of equal pods."""

    name: str
    count: int
    shape: Shape


@dataclass(frozen=True, slots=True)
class Placement:
    """Where it is: attempt, and replicas by cluster (0 = not counted)."""

    attempt: int
    clusters: Mapping[str, int]
    since: datetime | None = None

    @property
    def total(self) -> int:
        """Replicas over all clusters."""
        return sum(self.clusters.values())


@dataclass(frozen=True, slots=True)
class Nomination:
    """What came of asking one cluster: Reserved (asked), Admitted or Refused."""

    cluster: str
    state: str
    message: str = ""
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Moving:
    """A cluster that is being left: what was placed there, since when and why it is to go."""

    replicas: int
    since: datetime
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """One version of a Workload; `obj` is the object itself and is never changed."""

    key: Key
    uid: str
    version: str
    generation: int
    deleting: bool
    created: datetime | None
    owner: OwnerKey
    owner_ref: Mapping[str, Any]
    labels: Mapping[str, str]
    pod_sets: tuple[PodSet, ...]
    mode: str
    suspended: bool
    at_most_once: bool
    placement: Placement | None
    last_placement: Placement | None
    attempts: int
    requeue_at: datetime | None
    nominated: tuple[Nomination, ...]
    lost: Mapping[str, datetime]
    """Clusters that left the fleet while they held it, since when."""
    moving: Mapping[str, Moving]
    """Clusters that it leaves while what it has there still runs."""
    copies: Mapping[str, Mapping[str, Any]]
    """What the reconciler reports, by cluster."""
    conditions: tuple[Mapping[str, Any], ...]
    invalid: str = ""
    obj: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def count(self) -> int:
        """Pods over all pod sets."""
        return sum(item.count for item in self.pod_sets)

    @property
    def priority(self) -> int:
        """The highest priority of its pods."""
        return max((item.shape.priority for item in self.pod_sets), default=0)

    @property
    def finished(self) -> bool:
        """The reconciler says that it has ended."""
        return self.is_true("Finished")

    @property
    def evicted(self) -> str:
        """Why it was evicted, "" when it was not or has found a new place."""
        return str((self.condition("Evicted") or {}).get("reason") or "") if self.is_true("Evicted") else ""

    def granted(self, cluster: str) -> int:
        """Replicas that the reconciler's division still leaves on a cluster."""
        divisions = (self.obj.get("status") or {}).get("divisions") or {}
        return sum(int(split.get(cluster) or 0) for split in divisions.values())

    def condition(self, kind: str) -> Mapping[str, Any] | None:
        """Return a condition."""
        return next((item for item in self.conditions if item.get("type") == kind), None)

    def is_true(self, kind: str) -> bool:
        """Say whether a condition is True."""
        found = self.condition(kind)
        return found is not None and found.get("status") == "True"

    def share(self, replicas: int) -> list[tuple[Shape, int]]:
        """Pod sets of one cluster's share of `replicas` pods; sets beside the first go along whole."""
        if self.count == replicas or len(self.pod_sets) != 1:
            return [(item.shape, item.count) for item in self.pod_sets]
        return [(self.pod_sets[0].shape, replicas)]


def parse(obj: Mapping[str, Any]) -> Workload:
    """Read a Workload; what is wrong with its spec is in `invalid`, so that it can be reported on it."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    owner = spec.get("owner") or {}
    namespace = metadata.get("namespace") or ""
    pod_sets, invalid = _pod_sets(spec)
    kind = owner.get("kind") or ""
    return Workload(
        key=Key(namespace, metadata["name"]),
        uid=metadata["uid"],
        version=metadata.get("resourceVersion") or "",
        generation=metadata.get("generation") or 0,
        deleting="deletionTimestamp" in metadata,
        created=parse_time(metadata.get("creationTimestamp")),
        owner=OwnerKey(namespace, kind, owner.get("name") or ""),
        owner_ref=owner,
        labels=spec.get("labels") or {},
        pod_sets=pod_sets,
        mode=spec.get("mode") or "Any",
        suspended=bool(spec.get("suspend")),
        at_most_once=bool(spec.get("atMostOnce")) or kind in AT_MOST_ONCE_KINDS,
        placement=_placement(status.get("placement")),
        last_placement=_placement(status.get("lastPlacement")),
        attempts=status.get("attempts") or 0,
        requeue_at=parse_time(status.get("requeueAt")),
        nominated=tuple(
            Nomination(item["cluster"], item.get("state", ""), item.get("message", ""), parse_time(item.get("since")))
            for item in status.get("nominated") or ()
        ),
        lost={item["cluster"]: moment for item in status.get("lost") or ()
              if (moment := parse_time(item.get("since"))) is not None},
        moving={
            item["cluster"]: Moving(item.get("replicas") or 0, moment, item.get("reason") or "")
            for item in status.get("moving") or () if (moment := parse_time(item.get("since"))) is not None
        },
        copies={item["cluster"]: item for item in status.get("copies") or () if item.get("cluster")},
        conditions=tuple(status.get("conditions") or ()),
        invalid=invalid,
        obj=obj,
    )  # fmt: skip


def _pod_sets(spec: Mapping[str, Any]) -> tuple[tuple[PodSet, ...], str]:
    found = []
    for item in spec.get("podSets") or ():
        try:
            requests = quantity.parse_all(item.get("requests"))
            shape = make_shape(requests, item.get("constraints"))
            found.append(PodSet(item.get("name") or "main", max(int(item.get("count") or 0), 0), shape))
        except (ValueError, TypeError, AttributeError) as error:
            return (), f"podSet {item.get('name')!r}: {error}"
    if (pods := sum(item.count for item in found)) > MOST_PODS:
        return (), f"{pods} pods over all pod sets; allowed: {MOST_PODS}"
    return tuple(found), ""


def _placement(value: Mapping[str, Any] | None) -> Placement | None:
    if value is None:
        return None
    clusters = {item["name"]: item.get("replicas") or 0 for item in value.get("clusters") or ()}
    return Placement(value.get("attempt") or 0, clusters, parse_time(value.get("since")))


def write_placement(placement: Placement, now: datetime) -> dict[str, Any]:
    """Write a placement as `status.placement` holds it."""
    return {
        "attempt": placement.attempt,
        "since": clock.write(placement.since or now),
        "clusters": [{"name": name, "replicas": count} for name, count in sorted(placement.clusters.items())],
    }


def with_condition(
    conditions: list[dict[str, Any]], kind: str, status: bool, reason: str, message: str,
    *, now: datetime, generation: int,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return the conditions with one set; its transition time moves only when the status does."""
    text = "True" if status else "False"
    old = next((item for item in conditions if item.get("type") == kind), None)
    same = old is not None and old.get("status") == text
    since = old["lastTransitionTime"] if same and old and "lastTransitionTime" in old else clock.write(now)
    fresh = {
        "type": kind, "status": text, "reason": reason, "message": message[:32768],
        "lastTransitionTime": since, "observedGeneration": generation,
    }  # fmt: skip
    return [fresh if item is old else item for item in conditions] + ([] if old else [fresh])


def without_times(conditions: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What of conditions bears on readers, to see whether a write would say anything new."""
    return [(c.get("type"), c.get("status"), c.get("reason"), c.get("message")) for c in conditions]
