"""The condition `Fits`: whether what is placed finds room where it is placed.

Divided work is placed whatever room there is now, so `Admitted` alone would say that all is well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from services.common.kube.times import parse_time
from services.scheduler.fleet import Fleet
from services.scheduler.verdict import CAPACITY, Verdict
from services.scheduler.workload import Placement, Workload, with_condition

FITS, NO_ROOM = "Fits", "NoRoom"
"""Condition and reason: False while pods find no room on any cluster of the placement; absent before that."""
PATIENCE = timedelta(seconds=10)
"""Pods that wait for a node for less are only being scheduled."""
SETTLED = timedelta(seconds=30)
"""By then the reconciler has seen that new replicas are not ready: a PodsReady that is older counts too."""
NAMED = 16
"""Clusters that are written out."""


def lacking(clusters: Iterable[str], verdicts: Mapping[str, Verdict]) -> str:
    """Why no cluster that was asked has room for one pod more; "" when one has, or does not say."""
    heard = [verdicts[name] for name in sorted(clusters) if name in verdicts]
    if not heard or any(verdict.filter != CAPACITY or verdict.fits for verdict in heard):
        return ""
    parts = [f"{verdict.cluster}: {verdict.message}" for verdict in heard[:NAMED]]
    if len(heard) > NAMED:
        parts.append(f"and {len(heard) - NAMED} more")
    return f"no room now for such a pod: {'; '.join(parts)}"


def found(clusters: Iterable[str], verdicts: Mapping[str, Verdict]) -> bool:
    """Whether a cluster says that it has room for one pod more."""
    heard = (verdicts[name] for name in clusters if name in verdicts)
    return any(verdict.eligible or (verdict.filter == CAPACITY and verdict.fits) for verdict in heard)


def lacks(workload: Workload) -> bool:
    """Whether the condition says so already."""
    condition = workload.condition(FITS)
    return condition is not None and condition.get("reason") == NO_ROOM


def written(
    conditions: list[dict[str, Any]], workload: Workload, why: str, fits: bool, now: datetime
) -> list[dict[str, Any]]:
    """The conditions with what is known: `why` it lacks room, or that it `fits`; neither changes nothing."""
    if why:
        text, status, reason = why, False, NO_ROOM
    elif fits and lacks(workload):
        text, status, reason = "its pods find room", True, "Room"
    else:
        return conditions
    return with_condition(conditions, FITS, status, reason, text, now=now, generation=workload.generation)


def without(conditions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conditions of what is placed nowhere."""
    return [item for item in conditions if item.get("type") != FITS]


def runs_again(workload: Workload, now: datetime) -> bool:
    """Whether all its pods have become ready since it lacked room."""
    ready, unfit = workload.condition("PodsReady"), workload.condition(FITS)
    if not workload.is_true("PodsReady") or ready is None or unfit is None:
        return False
    since = parse_time(unfit.get("lastTransitionTime"))
    turned = parse_time(ready.get("lastTransitionTime"))
    return since is None or now - since > SETTLED or (turned is not None and turned > since)


def waits_for_nodes(workload: Workload, placement: Placement, fleet: Fleet, now: datetime) -> bool:
    """Whether pods of it have found no node for a while."""
    for name in placement.clusters:
        admission = fleet.admissions.get(name)
        stuck = admission.stuck().get(workload.uid) if admission is not None else None
        if stuck is not None and now - stuck.since > PATIENCE:
            return True
    return False
