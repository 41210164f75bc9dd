"""Status up: what the copies say, written to the host object."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from services.common.errors import StatusError
from services.reconciler import job_status, status_sums, surges
from services.reconciler.controllers.context import Again, Context
from services.reconciler.decide import is_current, wants
from services.reconciler.member_cache import MemberCache
from services.reconciler.names import ON_HOST, Obj
from services.reconciler.objects import count, host_uid, merge_diff, name_of, uid
from services.reconciler.status_sums import Copy, Status
from services.reconciler.workload_spec import is_duplicated, placed

COUNTS = {
    "replicaset": status_sums.REPLICASET_COUNTS, "statefulset": status_sums.STATEFULSET_COUNTS,
    "daemonset": status_sums.DAEMONSET_COUNTS,
}  # fmt: skip
UNREAD_WAIT = 1.0


async def reconcile(context: Context, kind: str, obj: Obj) -> None:
    """Write the object's status if it changes."""
    wanted = _job(context, obj) if kind == "job" else _sums(context, kind, obj)
    if wanted is None:
        raise Again(UNREAD_WAIT)
    patch = merge_diff(obj.get("status") or {}, wanted)
    if not patch:
        return
    namespace, name = name_of(obj)
    meta: dict[str, Any] = {"uid": uid(obj)}
    if kind == "job":
        # What a Job's status may become depends on what it is: never write over one that we have not seen.
        meta["resourceVersion"] = obj["metadata"]["resourceVersion"]
    try:
        await context.host.patch(
            ON_HOST[kind], namespace, name, {"metadata": meta, "status": patch}, sub="status"
        )
    except StatusError as error:
        if error.code == 409:
            raise Again(0.05) from error
        if error.code != 404:
            raise


def _copy_on(member: MemberCache, kind: str, obj: Obj) -> Obj | None:
    copy = member.get(kind, *name_of(obj))
    return copy if copy is not None and host_uid(copy) == uid(obj) else None


def _sums(context: Context, kind: str, obj: Obj) -> Status | None:
    """Sum of all copies; None while a reachable member that may have one has not been read."""
    world = context.world
    workload = world.workload_of(kind, obj)
    placement = placed(workload) or {}
    grants = world.granted(kind, obj, workload)
    moving = surges.moving(workload, context.surge_timeout, datetime.now(UTC))
    copies: list[Copy] = []
    unread: list[str] = []
    for cluster in sorted({*world.members, *placement, *grants}):
        if world.lost(cluster, placement, moving):
            # Given up: its pods may run or not, they are no longer this object's.
            continue
        member = world.members.get(cluster)
        if member is None or not member.synced:
            if cluster in placement or cluster in grants:
                if member is not None and member.reachable:
                    return None
                unread.append(cluster)
            continue
        copy = _copy_on(member, kind, obj)
        if copy is None:
            if grants.get(cluster):
                copies.append(Copy(cluster, {}, grants[cluster]))
            continue
        desired = wants(world, kind, obj, member)
        current = desired is not None and is_current(copy, desired)
        leaving = cluster in surges.left(workload) and cluster not in placement
        copies.append(Copy(cluster, copy.get("status") or {}, grants.get(cluster, 0), leaving, current))
    for cluster in unread:
        copies.append(_last_known(kind, obj, cluster, copies, grants.get(cluster, 0)))
        break
    if kind == "replicaset" and is_duplicated(workload):
        return status_sums.duplicated(obj, [copy for copy in copies if not copy.leaving], len(placement))
    if kind == "replicaset":
        return status_sums.replicaset(obj, copies)
    if kind == "statefulset":
        return status_sums.statefulset(obj, copies)
    return status_sums.daemonset(obj, copies, len(placement))


def _last_known(kind: str, obj: Obj, cluster: str, others: list[Copy], granted: int) -> Copy:
    """What a member that has been away since we started is taken to have: what the host says beyond the others."""
    shown = obj.get("status") or {}
    rest = {
        field: max(0, count(shown, field) - sum(count(copy.status, field) for copy in others))
        for field in COUNTS[kind]
    }
    return Copy(cluster, rest, granted)


def _job(context: Context, obj: Obj) -> Status | None:
    """Status of a Job from its copy; the newest attempt's where an old one lingers on a lost member."""
    world = context.world
    workload = world.workload_of("job", obj)
    placement = placed(workload) or {}
    for cluster in placement:
        member = world.members.get(cluster)
        if member is None or not member.synced:
            # Not read: what the host shows stays.
            return dict(obj.get("status") or {}) if member is None or not member.reachable else None
    ranked = sorted(world.members.values(), key=lambda m: (m.name not in placement, m.name))
    for member in ranked:
        copy = _copy_on(member, "job", obj)
        if copy is not None and not world.lost(member.name, placement):
            return job_status.from_copy(obj, copy)
    return job_status.without_copy(obj)
