"""Statuses of copies summed to the status of their host object. Pure.

Counts come from each member's newest known copy. A pod that its member is about to remove (there are more than
were granted to it) does not count as available: otherwise a rollout would take the same pod away twice.

While a ReplicaSet leaves a cluster it is granted more than the host asks for. That surplus is not shown: the
deployment controller would take it for pods of its own rollout, remove as many more of an old ReplicaSet, refuse its
own arithmetic (available pods above spec.replicas), and call a finished rollout unfinished.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from services.reconciler.objects import count, replicas

Status = dict[str, Any]

REPLICASET_COUNTS = ("replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas")
STATEFULSET_COUNTS = (
    "replicas", "readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas",
)  # fmt: skip
DAEMONSET_COUNTS = (
    "currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady",
    "updatedNumberScheduled", "numberAvailable", "numberUnavailable",
)  # fmt: skip
REQUIRED = {
    "replicas", "currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady",
    "currentReplicas", "updatedReplicas", "availableReplicas",
}  # fmt: skip
"""Written even when 0: their types do not leave them out, or clients read them without a default."""


@dataclass(frozen=True, slots=True)
class Copy:
    """What is known of one cluster's copy."""

    cluster: str
    status: Mapping[str, Any]
    granted: int = 0
    """Replicas that it may have (ReplicaSets only)."""
    leaving: bool = False
    """Its cluster is being left: what is not granted there any more has its replacement elsewhere."""
    current: bool = False
    """It carries the spec of the host object's generation, and its member has observed that spec."""


def observed(host: Mapping[str, Any], copies: Sequence[Copy], complete: bool) -> int:
    """The truthful observedGeneration: the host's generation once every copy was observed with its spec.

    `complete`: nothing is missing (all replicas granted, a copy on every placed cluster).
    """
    before = count(host.get("status") or {}, "observedGeneration")
    generation = int(host["metadata"].get("generation", 0))
    return generation if complete and all(copy.current for copy in copies) else min(before, generation)


def _total(copies: Sequence[Copy], fields: Sequence[str]) -> Status:
    return {field: sum(count(copy.status, field) for copy in copies) for field in fields}


def _finish(status: Status, host: Mapping[str, Any], copies: Sequence[Copy], complete: bool) -> Status:
    status["observedGeneration"] = observed(host, copies, complete)
    return {key: value for key, value in status.items() if value or key in REQUIRED}


def replicaset(host: Mapping[str, Any], copies: Sequence[Copy]) -> Status:
    """Status of a ReplicaSet: counts summed, failures of any member's copy named."""
    status = _total([_left(copy) if copy.leaving else copy for copy in copies], REPLICASET_COUNTS)
    status["availableReplicas"] = sum(min(count(c.status, "availableReplicas"), c.granted) for c in copies)
    desired, granted = replicas(host), sum(copy.granted for copy in copies)
    # Without a surge more is granted only until the next division: hiding that would let the counts go to and fro.
    surplus = min(max(0, granted - desired), sum(copy.granted for copy in copies if copy.leaving))
    for field in REPLICASET_COUNTS:
        status[field] = max(min(status[field], desired), status[field] - surplus)
    status["availableReplicas"] = min(status["availableReplicas"], desired)
    failures = [
        {**entry, "message": f"{copy.cluster}: {entry.get('message', '')}"}
        for copy in copies
        for entry in copy.status.get("conditions") or []
        if entry.get("type") == "ReplicaFailure" and entry.get("status") == "True"
    ]
    if failures:
        status["conditions"] = failures[:1]
    answer = _finish(status, host, copies, complete=granted >= desired)
    if not answer["availableReplicas"]:
        del answer["availableReplicas"]
    return answer


def duplicated(host: Mapping[str, Any], copies: Sequence[Copy], placed: int) -> Status:
    """Status of a ReplicaSet of which each of the `placed` clusters runs all replicas.

    The host's controllers count to spec.replicas: a replica is available when every cluster has it.
    """
    desired = replicas(host)
    full = [copy for copy in copies if copy.granted or not desired]
    complete = len(full) >= placed > 0 or (not desired and not copies)
    status: Status = {"replicas": max((count(copy.status, "replicas") for copy in copies), default=0)}
    for field in ("fullyLabeledReplicas", "readyReplicas"):
        status[field] = min((count(copy.status, field) for copy in full), default=0) if complete else 0
    available = [min(count(copy.status, "availableReplicas"), copy.granted) for copy in full]
    status["availableReplicas"] = min([*available, desired]) if complete and available else 0
    answer = _finish(status, host, copies, complete)
    if not answer["availableReplicas"]:
        del answer["availableReplicas"]
    return answer


def _left(copy: Copy) -> Copy:
    """A copy that is being left, without the pods that its member is about to remove."""
    counts = {field: min(count(copy.status, field), copy.granted) for field in REPLICASET_COUNTS}
    return replace(copy, status={**copy.status, **counts})


def statefulset(host: Mapping[str, Any], copies: Sequence[Copy]) -> Status:
    """Status of a StatefulSet. It lives in one cluster: revisions and conditions are that cluster's."""
    status: Status = {}
    for copy in copies[:1]:
        status.update(copy.status)
    status |= _total(copies, STATEFULSET_COUNTS)
    return _finish(status, host, copies, bool(copies))


def daemonset(host: Mapping[str, Any], copies: Sequence[Copy], placed: int) -> Status:
    """Status of a DaemonSet over the `placed` clusters."""
    status = _total(copies, DAEMONSET_COUNTS)
    return _finish(status, host, copies, placed > 0 and len(copies) == placed)
