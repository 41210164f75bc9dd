"""`Workload` objects: how their copies fare, whether they have finished, and when they may go."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from services.common.errors import StatusError
from services.common.kube.times import parse_time
from services.reconciler.controllers.context import Again, Context
from services.reconciler.decide import is_at_rest
from services.reconciler.job_status import finished
from services.reconciler.keys import Key
from services.reconciler.member_cache import MemberCache
from services.reconciler.names import FINALIZER, WORKLOADS, Obj
from services.reconciler.objects import (
    count,
    deleting,
    finalizers,
    held,
    name_of,
    replicas,
    set_condition,
    uid,
)  # fmt: skip
from services.reconciler.workload_spec import owner_kind, placed, pod_count
from services.reconciler.world import CONFLICT, World

ORDER = (CONFLICT, "Waiting", "Removing", "LeftBehind", "Suspended", "Applied")
"""Worst first: what a cluster with several copies of a workload reports."""
MAY_RUN = ("Applied", "Removing", "LeftBehind")
REMOVAL_CHECK = 5.0
TELL_WITHIN = 60.0
"""Seconds for which a placement is news."""


async def reconcile(context: Context, key: Key) -> None:
    """Report on a Workload, or let it go."""
    workload = context.world.host.get(*key)
    if workload is None:
        return
    found = context.world.owner_of(workload)
    if deleting(workload):
        await _release(context, workload)
    elif not owner_kind(workload):
        return  # Somebody submitted it to the scheduler, and looks after what it stands for.
    elif found is None or _is_adopted(context.world, *found):
        await context.host.delete(WORKLOADS, key.namespace, key.name, uid=uid(workload))
    else:
        await _report(context, workload, *found)


def _is_adopted(world: World, kind: str, owner: Obj) -> bool:
    """Whether a Deployment took the ReplicaSet over: its Workload places it now."""
    return kind == "replicaset" and world.deployment_reference(owner) is not None


async def _release(context: Context, workload: Obj) -> None:
    if not held(workload):
        return
    waits = False
    for kind, obj in context.world.copied_objects(workload):
        placed_by = context.world.workload_of(kind, obj)
        if placed_by is None or uid(placed_by) != uid(workload):
            continue
        for member in context.world.members.values():
            if member.reachable and (not member.synced or member.of_host(uid(obj))):
                context.add(member.name, kind, *name_of(obj))
                waits = True
    if waits:
        raise Again(REMOVAL_CHECK)
    namespace, name = name_of(workload)
    rest = [item for item in finalizers(workload) if item != FINALIZER]
    meta = {"finalizers": rest, "resourceVersion": workload["metadata"]["resourceVersion"]}
    try:
        await context.host.patch(WORKLOADS, namespace, name, {"metadata": meta})
    except StatusError as error:
        if error.code == 409:
            raise Again(0.05) from error
        if error.code != 404:
            raise


async def _report(context: Context, workload: Obj, kind: str, owner: Obj) -> None:
    status = workload.get("status") or {}
    copies = copies_of(context.world, workload)
    conditions = list(status.get("conditions") or [])
    wanted = _conditions(conditions, workload, kind, owner)
    _tell(context, workload, owner, copies)
    patch: dict[str, Any] = {}
    if copies != (status.get("copies") or []):
        patch["copies"] = copies
    meta: dict[str, Any] = {"uid": uid(workload)}
    if wanted != conditions:
        patch["conditions"] = wanted
    if wanted != conditions or workload["spec"].get("atMostOnce"):
        # A list is replaced whole: never over conditions of the scheduler that we have not seen, nor, where it decides
        # what may start elsewhere, over copies that another replica has seen since.
        meta["resourceVersion"] = workload["metadata"]["resourceVersion"]
    if not patch:
        return
    namespace, name = name_of(workload)
    try:
        await context.host.patch(WORKLOADS, namespace, name, {"metadata": meta, "status": patch}, sub="status")
    except StatusError as error:
        if error.code == 409:
            raise Again(0.05) from error
        if error.code != 404:
            raise


def copies_of(world: World, workload: Obj) -> list[dict[str, str]]:
    """`status.copies`: one entry per cluster that is placed, has a copy, or reports something."""
    placement = placed(workload) or {}
    entries: dict[str, tuple[str, str]] = {}

    def note(cluster: str, state: str, message: str = "") -> None:
        before = entries.get(cluster)
        if before is None or ORDER.index(state) < ORDER.index(before[0]):
            entries[cluster] = (state, message)

    for entry in (workload.get("status") or {}).get("copies") or []:
        # Of a member that was not read since we started, what was known before still holds.
        member = world.members.get(entry["cluster"])
        if (member is None or not member.synced) and entry["state"] in MAY_RUN:
            here = entry["cluster"] in placement
            note(entry["cluster"], "Applied" if here else "LeftBehind", entry.get("message", ""))
    for kind, obj in world.copied_objects(workload):
        grants = world.granted(kind, obj, workload)
        expected = set(grants) if kind == "replicaset" else set(placement)
        for cluster, report in world.reports(Key(kind, *name_of(obj))).items():
            if cluster in placement or cluster in expected:
                note(cluster, report.state, report.message)
        for member in world.members.values():
            if not member.synced and member.name in entries:
                continue
            has = member.may_have(uid(obj))
            if has and (member.name in placement or member.name in expected):
                note(member.name, "Applied")
            elif has and _is_suspended(member, kind, obj):
                note(member.name, "Suspended")
            elif has:
                note(member.name, "Removing" if member.reachable else "LeftBehind")
            elif member.name in expected:
                note(member.name, "Waiting", "" if member.reachable else "the cluster is not reachable")
        for cluster in expected - set(world.members):
            note(cluster, "LeftBehind", "the cluster has left the fleet")
    return [
        {"cluster": cluster, "state": state, "message": message}
        for cluster, (state, message) in sorted(entries.items())
    ]


def _is_suspended(member: MemberCache, kind: str, obj: Obj) -> bool:
    """Whether the copy of a Job is at rest: told so, and seen to have no pods any more."""
    copy = member.get(kind, *name_of(obj)) if kind == "job" else None
    if copy is None or deleting(copy):
        return False
    return is_at_rest("job", copy)


def _conditions(
    conditions: list[dict[str, Any]], workload: Obj, kind: str, owner: Obj
) -> list[dict[str, Any]]:
    end = finished(owner) if kind == "job" else ""
    if end:
        conditions = set_condition(conditions, "Finished", "True", end, f"the Job is {end}")
    if not placed(workload) and not end:
        return _ready(conditions, False, "NotPlaced", "it is placed nowhere") if _knows(conditions) else conditions
    ready, asked = pods_ready(kind, owner)
    if ready >= asked:
        return _ready(conditions, True, "PodsReady", "all of its pods are ready")
    return _ready(conditions, False, "PodsNotReady", "not all of its pods are ready")


def _knows(conditions: list[dict[str, Any]]) -> bool:
    return any(entry.get("type") == "PodsReady" for entry in conditions)


def _ready(conditions: list[dict[str, Any]], ready: bool, reason: str, message: str) -> list[dict[str, Any]]:
    """Set PodsReady. Its message has no numbers: each change of them would be a write, or they would be wrong."""
    status = "True" if ready else "False"
    for entry in conditions:
        if entry.get("type") == "PodsReady" and (entry.get("status"), entry.get("reason")) == (status, reason):
            return conditions
    return set_condition(conditions, "PodsReady", status, reason, message)


def pods_ready(kind: str, owner: Mapping[str, Any]) -> tuple[int, int]:
    """(ready, asked): pods that are ready or have done their work, of those that the owner wants."""
    status = owner.get("status") or {}
    if kind == "daemonset":
        return count(status, "numberReady"), max(1, count(status, "desiredNumberScheduled"))
    if kind == "job":
        return count(status, "ready") + count(status, "succeeded"), pod_count(kind, owner)
    return count(status, "readyReplicas"), replicas(owner)


def _tell(context: Context, workload: Obj, owner: Obj, copies: list[dict[str, str]]) -> None:
    for entry in copies:
        if entry["state"] == CONFLICT:
            message = f"{entry['cluster']}: {entry['message']}"
            context.events.say(owner, "Conflict", message, warning=True)
    _tell_of_away(context, owner, copies)
    placement = placed(workload)
    since = parse_time((((workload.get("status") or {}).get("placement")) or {}).get("since"))
    # Older ones were told by the process that ran then.
    if placement and since is not None and (datetime.now(UTC) - since).total_seconds() < TELL_WITHIN:
        parts = [f"{cluster} ({n})" if n else cluster for cluster, n in sorted(placement.items())]
        context.events.say(owner, "Placed", f"Placed on {', '.join(parts)}")


def _tell_of_away(context: Context, owner: Obj, copies: list[dict[str, str]]) -> None:
    """Say what a rollout waits for: only of workloads with a copy that cannot be made, not of all that run there."""
    for entry in copies:
        member = context.world.members.get(entry["cluster"])
        if entry["state"] != "Waiting" or member is None or member.reachable:
            continue
        since = member.member.unreachable_since  # makes it another message in the next outage
        when = f" since {since:%Y-%m-%dT%H:%M:%SZ}" if since is not None else ""
        message = (
            f"{member.name} cannot be reached{when}: its part waits until it is back, or is given up (workerLostTimeout of the "
            f"policy; at once after: reclock forget {member.name})"
        )
        context.events.say(owner, "ClusterUnreachable", message, warning=True)
