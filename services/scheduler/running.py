"""Where copies may still run of what must stop before it starts elsewhere. Pure; by what the reconciler reports."""

from __future__ import annotations

from services.scheduler.departures import CLUSTER_LOST, DRAINED, UNSCHEDULABLE, WORKER_LOST
from services.scheduler.fleet import Fleet
from services.scheduler.workload import Workload

RUNNING_STATES = ("Applied", "Removing")
UNKNOWN_STATES = ("LeftBehind",)


def still_running(workload: Workload, fleet: Fleet) -> set[str]:
    """Clusters where a copy may still run, of what must stop before it starts elsewhere.

    Such are the kinds that must not run twice, and Jobs that a drain stops.
    """
    stops = workload.owner.kind == "Job" and workload.evicted == DRAINED
    if not workload.at_most_once and not stops:
        return set()
    states: tuple[str, ...] = RUNNING_STATES
    if workload.at_most_once and workload.evicted in (DRAINED, UNSCHEDULABLE):
        # It was told to stop, and its cluster went away before it said that it had.
        states += UNKNOWN_STATES
    # One that is forgotten and answers all the same (it is leaving) is asked to stop its copies first.
    return {
        c for c, copy in workload.copies.items()
        if copy.get("state") in states
        and not ((member := fleet.members.get(c)) and member.forgotten and not member.reachable)
    }  # fmt: skip


def out_of_sight(workload: Workload, fleet: Fleet, limit: float) -> set[str]:
    """Clusters of the fleet that are away with a copy which nobody saw stop, of what must not run twice.

    So it is when the cluster vanished before it took what a suspension, or its own removal, told it. A loss that was
    given up (rule 4) was judged before. What the worker beside it has stopped by now (`limit` is its time-out, in
    seconds) may run elsewhere.
    """
    if not workload.at_most_once or workload.evicted in (CLUSTER_LOST, WORKER_LOST):
        return set()
    away = {
        c for c, copy in workload.copies.items()
        if copy.get("state") in (*RUNNING_STATES, *UNKNOWN_STATES)
        and (member := fleet.members.get(c)) and not member.reachable and not member.forgotten
    }  # fmt: skip
    return {c for c in away if fleet.fence_wait(c, limit) != 0}
