"""What the manager writes into a Workload's status, as merge patches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from services.scheduler import clock, room
from services.scheduler.departures import CLUSTER_REMOVED, CONFLICT, DRAINED, UNSCHEDULABLE, Departure, Stay
from services.scheduler.policy import Policy
from services.scheduler.verdict import Verdict
from services.scheduler.workload import (
    DUPLICATED,
    Nomination,
    Placement,
    Workload,
    with_condition,
    without_times,
    write_placement,
)

Probe = Callable[[str], Awaitable[bool]]
"""Whether a cluster answers, asked directly."""
Status = dict[str, Any]
DRAIN_BLOCKED = "DrainBlocked"
"""Condition: True while a drain does not move what is placed on the drained cluster."""
NAMED = 16
"""Verdicts that are written out; of more clusters the rest is only counted."""
CONFLICT_MEMORY = timedelta(minutes=5)
"""How long a cluster with a foreign object in the way is left alone."""
FIRST_BACKOFF, LONGEST_BACKOFF = timedelta(seconds=60), timedelta(hours=1)


def backoff(attempt: int) -> timedelta:
    """Rule 5: 60 s · 2^(n-1), at most an hour."""
    doublings: int = 2 ** max(min(attempt - 1, 10), 0)
    return min(FIRST_BACKOFF * doublings, LONGEST_BACKOFF)


def says(workload: Workload, kind: str, reason: str) -> bool:
    """Whether a condition already has this reason."""
    found = workload.condition(kind)
    return found is not None and found.get("reason") == reason


def admitted_on(placement: Placement) -> str:
    """`Admitted on "east"`, or of several clusters all of them."""
    names = ", ".join(f'"{name}"' for name in sorted(placement.clusters))
    return f"Admitted on {names}" if names else "Admitted, with no replicas to run"


def policy_name(name: str) -> str:
    """What `status.policy` says."""
    return name or "default (built in)"


def summary(placement: Placement) -> str:
    """`east 2, west 2`: kubectl's columns show only the first item of a list."""
    shares = sorted(placement.clusters.items())
    return ", ".join(f"{name} {count}" if count else name for name, count in shares)


def nowhere(verdicts: Mapping[str, Verdict]) -> str:
    """Say per member why a workload fits nowhere."""
    if not verdicts:
        return "the fleet has no member"
    failing = [v for v in verdicts.values() if not v.eligible]
    parts = [f"{v.cluster}: {v.filter}: {v.message}" for v in sorted(failing, key=lambda v: v.cluster)[:NAMED]]
    if len(failing) > NAMED:
        parts.append(f"and {len(failing) - NAMED} more")
    return f"0 of {len(verdicts)} clusters admit it: {'; '.join(parts)}"


def _conditions(workload: Workload) -> list[dict[str, Any]]:
    return [dict(item) for item in workload.conditions]


def _set(
    conditions: list[dict[str, Any]], workload: Workload, now: datetime, kind: str, status: bool, reason: str,
    message: str,
) -> list[dict[str, Any]]:  # fmt: skip
    return with_condition(conditions, kind, status, reason, message, now=now, generation=workload.generation)


def suspended(workload: Workload, now: datetime) -> Status:
    """Placement remembered, nothing admitted."""
    conditions = _set(_conditions(workload), workload, now, "Admitted", False, "Suspended", "it is suspended")
    conditions = room.without(_unblocked(conditions, workload, now))
    status: Status = {"conditions": conditions, "placement": None, "clusters": None, "requeueAt": None}
    status["nominated"] = _conflicts(workload, now)
    if workload.placement is not None:
        status["lastPlacement"] = write_placement(workload.placement, now)
    return status


def nominated(workload: Workload, clusters: Iterable[str], now: datetime) -> Status:
    """Clusters that were asked and have not answered yet."""
    since = clock.write(now)
    entries = [{"cluster": name, "state": "Reserved", "since": since} for name in sorted(clusters)]
    return {"nominated": entries + _conflicts(workload, now)}


def conflicts(workload: Workload, now: datetime) -> dict[str, Nomination]:
    """Refusals that must be remembered: the foreign object may be a dependency, which no filter sees."""
    return {
        item.cluster: item
        for item in workload.nominated
        if item.since is not None and item.message.startswith(CONFLICT) and now - item.since < CONFLICT_MEMORY
    }


def _conflicts(workload: Workload, now: datetime, departures: Iterable[Departure] = ()) -> list[dict[str, Any]]:
    fresh = [d for d in departures if d.reason == CONFLICT]
    old = [item for item in conflicts(workload, now).values() if item.cluster not in {d.cluster for d in fresh}]
    return [
        {"cluster": item.cluster, "state": "Refused", "message": item.message, "since": clock.write(item.since or now)}
        for item in old
    ] + [
        {"cluster": d.cluster, "state": "Refused", "message": f"{CONFLICT}: {d.message}"[:1024], "since": clock.write(now)}
        for d in fresh
    ]


def _refusals(verdicts: Mapping[str, Verdict], now: datetime) -> list[dict[str, Any]]:
    failing = sorted((v for v in verdicts.values() if not v.eligible), key=lambda v: v.cluster)
    since = clock.write(now)
    return [
        {"cluster": v.cluster, "state": "Refused", "message": f"{v.filter}: {v.message}"[:1024], "since": since}
        for v in failing[:NAMED]
        if v.filter != CONFLICT
    ]


def refused(
    workload: Workload, policy: str | None, reason: str, message: str, verdicts: Mapping[str, Verdict], now: datetime
) -> Status | None:
    """Nothing admits it; None when the status says so already."""
    conditions = _set(_conditions(workload), workload, now, "Scheduled", False, reason, message)
    if workload.placement is None:
        text = "waits for a cluster that admits it"
        conditions = _set(conditions, workload, now, "Admitted", False, "Pending", text)
    if without_times(conditions) == without_times(_conditions(workload)):
        return None
    status: Status = {"conditions": conditions}
    if policy is not None:
        status["policy"] = policy_name(policy)
    if workload.placement is None:
        status["nominated"] = _refusals(verdicts, now) + _conflicts(workload, now)
    return status


def placed(
    workload: Workload, policy: Policy, placement: Placement, verdicts: Mapping[str, Verdict],
    departures: list[Departure], now: datetime,
) -> Status:  # fmt: skip
    """The winner."""
    text = admitted_on(placement)
    conditions = _set(_conditions(workload), workload, now, "Admitted", True, "Admitted", text)
    conditions = _set(conditions, workload, now, "Scheduled", True, "Placed", text)
    if departures or workload.condition("Evicted") is not None:
        why = "; ".join(f"left {d.cluster}: {d.message}" for d in departures)
        reason = departures[0].reason if departures else "Placed"
        conditions = _set(conditions, workload, now, "Evicted", False, reason, f"placed again: {why}" if why else text)
    conditions = _unblocked(conditions, workload, now)
    why, fits = room.lacking(placement.clusters, verdicts), room.found(placement.clusters, verdicts)
    conditions = room.written(conditions, workload, why, fits, now)
    since = clock.write(now)
    entries = [{"cluster": name, "state": "Admitted", "since": since} for name in sorted(placement.clusters)]
    refusals = [item for item in _refusals(verdicts, now) if item["cluster"] not in placement.clusters]
    return {
        "policy": policy_name(policy.name),
        "attempts": placement.attempt if departures else workload.attempts,
        "requeueAt": None,
        "nominated": entries + refusals + _conflicts(workload, now, departures),
        "placement": {
            **write_placement(placement, now),
            "duplicated": True if policy.type_for(workload.mode) == DUPLICATED else None,
        },
        "clusters": summary(placement),
        "lastPlacement": None,
        "lost": _lost({n: t for n, t in workload.lost.items() if n in placement.clusters}),
        "moving": _moving(workload, placement, departures, now),
        "conditions": conditions,
    }


SURGING_KINDS = ("Deployment", "ReplicaSet")


def _moving(
    workload: Workload, placement: Placement, departures: list[Departure], now: datetime
) -> list[dict[str, Any]] | None:
    """Clusters that are left while what is there runs on; None for none."""
    known = {
        name: {"cluster": name, "replicas": item.replicas, "since": clock.write(item.since), "reason": item.reason}
        for name, item in workload.moving.items()
    }
    before = workload.placement.clusters if workload.placement else {}
    for item in departures if workload.owner.kind in SURGING_KINDS else ():
        if item.reason in (DRAINED, UNSCHEDULABLE, CLUSTER_REMOVED) and item.cluster in before:
            known[item.cluster] = {
                "cluster": item.cluster, "replicas": before[item.cluster], "since": clock.write(now),
                "reason": item.reason,
            }  # fmt: skip
    return [entry for name, entry in sorted(known.items()) if name not in placement.clusters] or None


def arrived(workload: Workload, clusters: Iterable[str]) -> Status:
    """Nothing is left on these clusters."""
    over = set(clusters)
    kept = [item for item in (workload.obj.get("status") or {}).get("moving") or () if item["cluster"] not in over]
    return {"moving": kept or None}


def blocked(workload: Workload, stays: list[Stay], now: datetime) -> Status | None:
    """Why a drain leaves it where it is; None when the status says so already."""
    before = _conditions(workload)
    if stays:
        text = "; ".join(f"stays on {item.cluster}: {item.message}" for item in stays)
        conditions = _set(before, workload, now, DRAIN_BLOCKED, True, stays[0].reason, text)
    else:
        conditions = _unblocked(before, workload, now)
    return None if without_times(conditions) == without_times(before) else {"conditions": conditions}


def fitting(workload: Workload, why: str, fits: bool, now: datetime) -> Status | None:
    """Whether what is placed finds room; None when the status says so already."""
    before = _conditions(workload)
    conditions = room.written(before, workload, why, fits, now)
    return None if conditions is before else {"conditions": conditions}


def _unblocked(conditions: list[dict[str, Any]], workload: Workload, now: datetime) -> list[dict[str, Any]]:
    if not workload.is_true(DRAIN_BLOCKED):
        return conditions
    return _set(conditions, workload, now, DRAIN_BLOCKED, False, "NotBlocked", "no drain waits for it")


def evicted(
    workload: Workload, placement: Placement, departures: list[Departure], verdicts: Mapping[str, Verdict],
    now: datetime, delay: timedelta | None,
) -> Status:  # fmt: skip
    """Placement cleared, one attempt more, dispatched again after `delay`."""
    why = "; ".join(f"{d.cluster}: {d.message}" for d in departures)
    conditions = _set(_conditions(workload), workload, now, "Evicted", True, departures[0].reason, why)
    conditions = _set(conditions, workload, now, "Admitted", False, "Pending", f"dispatched again: {why}")
    conditions = room.without(_unblocked(conditions, workload, now))
    return {
        "attempts": workload.attempts + 1,
        "requeueAt": clock.write(now + delay) if delay else None,
        "placement": None,
        "clusters": None,
        "lastPlacement": write_placement(placement, now),
        "nominated": _refusals(verdicts, now) + _conflicts(workload, now, departures),
        "conditions": conditions,
    }


def missing(workload: Workload, newly: Iterable[str], members: Mapping[str, Any], now: datetime) -> Status:
    """Since when clusters of the placement are no part of the fleet; those that are again are taken off."""
    known = {name: since for name, since in workload.lost.items() if name not in members}
    known.update(dict.fromkeys(newly, now))
    return {"lost": _lost(known)}


def _lost(known: Mapping[str, datetime]) -> list[dict[str, str]] | None:
    return [{"cluster": name, "since": clock.write(since)} for name, since in sorted(known.items())] or None
