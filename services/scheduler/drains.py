"""Drains: what is still on the clusters that a workload leaves, and what a drain that was stopped gives back. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from services.scheduler import divide
from services.scheduler.departures import DRAINED, GONE
from services.scheduler.fleet import Fleet
from services.scheduler.matching import eviction
from services.scheduler.policy import CAPACITY, Policy
from services.scheduler.verdict import Verdict
from services.scheduler.workload import DIVIDED, SINGLE, Placement, Workload

NOWHERE_TO_GO = "NowhereToGo"


def usable(fleet: Fleet, policy: Policy, cluster: str, now: datetime) -> bool:
    """Whether what runs on a cluster may stay there: it is reached, and not drained (any more)."""
    member = fleet.members.get(cluster)
    if member is None or not member.reachable or not member.ready or member.forgotten or member.leaving_since:
        return False
    evicted = eviction(member.taints, policy.tolerations, now)
    return evicted is None or now < evicted.at


def returned(workload: Workload, policy: Policy, fleet: Fleet, now: datetime) -> Placement | None:
    """The placement that an evicted workload gets back because its clusters are as before; None when they are not.

    Rule 4: a lost cluster that is back before a new winner was stored keeps the workload. So does one whose drain
    was stopped.
    """
    last = workload.last_placement
    if last is None or not last.clusters or workload.evicted not in (*GONE, DRAINED):
        return None
    for cluster in last.clusters:
        member = fleet.members.get(cluster)
        if member is None or not member.reachable or member.forgotten or member.leaving_since:
            return None
        if workload.evicted == DRAINED and not usable(fleet, policy, cluster, now):
            return None
    return Placement(workload.attempts, last.clusters)


def stopped(workload: Workload, policy: Policy, fleet: Fleet, now: datetime) -> dict[str, int] | None:
    """The placement after a drain was stopped half-way: what has not left its cluster yet stays. None: as it is.

    The stored division says what has not left. It is written by compare-and-swap on the same object, so it cannot
    change between this decision and its own write.
    """
    clusters = dict(workload.placement.clusters) if workload.placement else {}
    total, kind = sum(clusters.values()), policy.type_for(workload.mode)
    changed = False
    for cluster, moving in workload.moving.items():
        if cluster in clusters or moving.reason != DRAINED or not usable(fleet, policy, cluster, now):
            continue
        left = min(workload.granted(cluster), moving.replicas, total)
        if kind == SINGLE and 0 < left == total:
            clusters, changed = {cluster: total}, True
        elif kind == DIVIDED and left:
            clusters = divide.shrink(clusters, _votes(policy, fleet, clusters), left)
            clusters[cluster], changed = left, True
    return clusters if changed else None


def _votes(policy: Policy, fleet: Fleet, clusters: Mapping[str, int]) -> dict[str, int]:
    if policy.strategy == CAPACITY:
        return dict(clusters)
    members = {name: fleet.members.get(name) for name in clusters}
    return {name: policy.weight_of(name, m.labels if m else {}) for name, m in members.items()}


def ended(workload: Workload, fleet: Fleet) -> list[str]:
    """Clusters that were being left and hold nothing of it any more, or hold it again."""
    placed = workload.placement.clusters if workload.placement else {}
    return [
        cluster
        for cluster in workload.moving
        if cluster in placed
        or cluster not in fleet.members
        or (not workload.granted(cluster) and cluster not in workload.copies)
    ]


def nowhere(verdicts: Mapping[str, Verdict], leaving: str) -> str:
    """Why no other cluster takes it, without numbers, which change all the time."""
    parts = [f"{v.cluster}: {v.filter}" for v in sorted(verdicts.values(), key=lambda v: v.cluster)
             if v.cluster != leaving and not v.eligible]  # fmt: skip
    return f"no other cluster takes it ({', '.join(parts)})" if parts else "there is no other cluster"
