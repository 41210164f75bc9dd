"""Why a placed workload must leave a cluster: loss, drain, conflict, pods that find no node.

Rule 4: nothing happens until the time-out counted from the first disconnect, nor while most members are away.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from services.scheduler import clock
from services.scheduler.fleet import Fleet
from services.scheduler.matching import NO_EXECUTE, eviction
from services.scheduler.policy import DISCARD, SUSPEND, Policy
from services.scheduler.workload import DUPLICATED, Workload

CLUSTER_LOST, DRAINED, CONFLICT, UNSCHEDULABLE = "ClusterLost", "Drained", "Conflict", "PodsUnschedulable"
CLUSTER_REMOVED, WORKER_LOST = "ClusterRemoved", "WorkerLost"
FENCED = "fenced since"
"""How the reconciler's message about a fenced copy begins."""
GONE = (CLUSTER_LOST, CLUSTER_REMOVED)
RECHECK = timedelta(seconds=5)
UNFENCED_RECHECK = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds, when the policy names none."""

    admit: float = 10.0
    worker_lost: float = 900.0
    pods_ready: float = 300.0


@dataclass(frozen=True, slots=True)
class Departure:
    """One cluster that the workload leaves."""

    cluster: str
    reason: str
    message: str
    pods: int = 0
    """Of a divided workload only these leave; 0 is all."""


@dataclass(frozen=True, slots=True)
class Stay:
    """One drained cluster that the workload does not leave, and why."""

    cluster: str
    reason: str
    message: str


@dataclass(slots=True)
class Outlook:
    """What must leave now, what stays on a drained cluster, when to look again, and who newly left the fleet."""

    departures: list[Departure] = field(default_factory=list)
    stays: list[Stay] = field(default_factory=list)
    look_at: datetime | None = None
    newly_missing: list[str] = field(default_factory=list)

    def at(self, moment: datetime) -> None:
        """Look again at `moment`, or earlier."""
        self.look_at = moment if self.look_at is None else min(self.look_at, moment)


def outlook(workload: Workload, policy: Policy, fleet: Fleet, timeouts: Timeouts, now: datetime) -> Outlook:
    """Judge every cluster that the workload is placed on."""
    found = Outlook()
    for cluster in workload.placement.clusters if workload.placement else ():
        departure = (
            _conflict(workload, cluster)
            or _removed(workload, policy, fleet, timeouts, now, cluster, found)
            or _lost(workload, policy, fleet, timeouts, now, cluster, found)
            or _worker_lost(workload, policy, fleet, timeouts, now, cluster, found)
            or _drained(workload, policy, fleet, now, cluster, found)
            or _unschedulable(workload, policy, fleet, timeouts, now, cluster, found)
        )
        if departure is not None:
            found.departures.append(departure)
    return found


def _conflict(workload: Workload, cluster: str) -> Departure | None:
    copy = workload.copies.get(cluster)
    if copy is None or copy.get("state") != "Conflict":
        return None
    return Departure(cluster, CONFLICT, str(copy.get("message") or "a foreign object of the same name is there"))


def _lost(
    workload: Workload, policy: Policy, fleet: Fleet, timeouts: Timeouts, now: datetime, cluster: str, found: Outlook
) -> Departure | None:
    member = fleet.members.get(cluster)
    if member is not None and member.forgotten:
        return Departure(cluster, CLUSTER_LOST, "an operator said that the cluster will not come back")
    if member is None:
        since = workload.lost.get(cluster)
        if since is None:
            found.newly_missing.append(cluster)
            return None
    elif member.reachable or member.unreachable_since is None:
        return None
    else:
        since = member.unreachable_since
    limit = policy.worker_lost_timeout or timeouts.worker_lost
    due = clock.after(since, limit)
    if now < due:
        found.at(due)
        return None
    if workload.at_most_once:
        # Its old pods may still run, unless the worker beside them has stopped them, or an operator says otherwise.
        wait = fleet.fence_wait(cluster, limit)
        if wait is None or wait > 0:
            found.at(now + (timedelta(seconds=wait) if wait is not None else UNFENCED_RECHECK))
            return None
    if fleet.most_are_lost():
        found.at(now + RECHECK)
        return None
    return Departure(cluster, CLUSTER_LOST, f"the cluster has been away for more than {limit:g} s")


def _worker_lost(
    workload: Workload, policy: Policy, fleet: Fleet, timeouts: Timeouts, now: datetime, cluster: str, found: Outlook
) -> Departure | None:
    """Its copy is fenced and the member answers: only the worker is out of contact, so it can run elsewhere."""
    copy, member = workload.copies.get(cluster) or {}, fleet.members.get(cluster)
    if not workload.at_most_once or member is None or not member.reachable:
        return None
    if not str(copy.get("message") or "").startswith(FENCED):
        return None
    limit = policy.worker_lost_timeout or timeouts.worker_lost
    # Twice the time-out: a member that has just come back has a worker that does so in a moment.
    wait = fleet.fence_wait(cluster, 2 * limit)
    if wait is None or wait > 0 or fleet.most_are_lost():
        found.at(now + (timedelta(seconds=wait) if wait else UNFENCED_RECHECK))
        return None
    return Departure(cluster, WORKER_LOST, f"its worker has been out of contact for more than {2 * limit:g} s")


def _removed(
    workload: Workload, policy: Policy, fleet: Fleet, timeouts: Timeouts, now: datetime, cluster: str, found: Outlook
) -> Departure | None:
    """Rule 9: a cluster that its provider dropped is left as a lost one is; at once if it is forgotten.

    What runs there can be stopped while it is reachable; when it is not, rule 4 judges.
    """
    member = fleet.members.get(cluster)
    if member is None or member.leaving_since is None or not (member.reachable or member.forgotten):
        return None
    if not member.forgotten:
        limit = policy.worker_lost_timeout or timeouts.worker_lost
        due = clock.after(member.leaving_since, limit)
        if now < due or fleet.most_are_lost():
            found.at(max(due, now + RECHECK))
            return None
    return Departure(cluster, CLUSTER_REMOVED, "the cluster was removed from its source")


def _drained(
    workload: Workload, policy: Policy, fleet: Fleet, now: datetime, cluster: str, found: Outlook
) -> Departure | None:
    member = fleet.members.get(cluster)
    if member is None or not any(taint.effect == NO_EXECUTE for taint in member.taints):
        return None
    evicted = eviction(member.taints, policy.tolerations, now)
    if evicted is None:
        found.stays.append(Stay(cluster, "Tolerated", f"policy {policy.name} tolerates the drain"))
        return None
    if now < evicted.at:
        found.at(evicted.at)
        text = f"policy {policy.name} tolerates the drain until {evicted.at:%Y-%m-%dT%H:%M:%SZ}"
        found.stays.append(Stay(cluster, "Tolerated", text))
        return None
    if workload.owner.kind == "Job" and policy.drain_jobs != SUSPEND:
        found.stays.append(Stay(cluster, "JobRuns", "it finishes where it runs: no policy says drainJobs: Suspend"))
        return None
    if _is_bound(workload, policy):
        text = "its pods have volume claims, whose data would be lost: no policy says moveVolumes: Discard"
        found.stays.append(Stay(cluster, "HasVolumes", text))
        return None
    return Departure(cluster, DRAINED, f"taint {evicted.taint.key}:{evicted.taint.effect} is not tolerated")


def _is_bound(workload: Workload, policy: Policy) -> bool:
    """Pods with claims stay with their volumes, unless the policy gives the data up."""
    return policy.move_volumes != DISCARD and _has_volumes(workload)


def _has_volumes(workload: Workload) -> bool:
    pod_sets: Iterable[dict[str, object]] = (workload.obj.get("spec") or {}).get("podSets") or ()
    return any((item.get("constraints") or {}).get("volumeClaims") for item in pod_sets)  # type: ignore[attr-defined]


def _unschedulable(
    workload: Workload, policy: Policy, fleet: Fleet, timeouts: Timeouts, now: datetime, cluster: str, found: Outlook
) -> Departure | None:
    """Rule 2: local work of the member may have won the race for the room that was reserved."""
    admission = fleet.admissions.get(cluster)
    stuck = admission.stuck().get(workload.uid) if admission is not None else None
    if stuck is None or policy.type_for(workload.mode) == DUPLICATED or _is_bound(workload, policy):
        return None
    placed = workload.placement.since if workload.placement else None
    limit = policy.pods_ready_timeout or timeouts.pods_ready
    due = clock.after(max(stuck.since, placed or stuck.since), limit)
    if now < due:
        found.at(due)
        return None
    return Departure(cluster, UNSCHEDULABLE, f"{stuck.count} pods found no node for {limit:g} s", stuck.count)
