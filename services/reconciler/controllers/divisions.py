"""Splits a Deployment's ReplicaSets over its placed clusters, and stores the split before any copy follows it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from services.common.errors import StatusError
from services.reconciler import surges
from services.reconciler.controllers.context import Again, Context
from services.reconciler.decide import holds_still
from services.reconciler.division import Grants, Limits, Part, divide, duplicate
from services.reconciler.keys import Key
from services.reconciler.member_cache import CopyKey
from services.reconciler.names import WORKLOADS, Obj
from services.reconciler.objects import (
    annotations_of,
    count,
    deleting,
    host_uid,
    merge_diff,
    name_of,
    replicas,
    uid,
)  # fmt: skip
from services.reconciler.workload_spec import is_duplicated, placed, recreates, unavailable_budget
from services.reconciler.world import CONFLICT, World

REVISION = "deployment.kubernetes.io/revision"
SETTLE_LIMIT = 1.0
"""Seconds that a scale-down waits for the placement to say from where."""
SETTLING_MAX = 1000
ROOM_CHECK = 5.0
READ_WAIT = 0.1
CONFLICT_WAIT = 0.05


async def reconcile(context: Context, kind: str, owner: Obj) -> None:
    """Store the split of the owner's ReplicaSets, if it changes."""
    world = context.world
    workload = world.workload_of(kind, owner)
    if workload is None or deleting(workload) or holds_still(workload):
        return
    sets = world.host.children(uid(owner)) if kind == "deployment" else [owner]
    sets = [item for item in sets if not deleting(item)]
    shares = placed(workload) or {}
    size = replicas(owner)
    if _is_unread(world, sets, workload, shares):
        raise Again(READ_WAIT)
    together = not is_duplicated(workload)
    if together and _is_settling(context, owner, size, shares):
        raise Again(0.2)
    parts = [_part(world, item, workload) for item in sorted(sets, key=_newest_first)]
    limits = _limits(context, kind, owner, sets, workload, size, shares)
    grants = divide(parts, shares, limits) if together else duplicate(parts, shares, limits)
    surge = surges.look(parts, grants, shares, limits)
    await _store(context, workload, grants, surge, keep={part.name for part in parts if part.used})
    if surge.forced:
        context.events.say(owner, surges.TIMED_OUT, surge.message, warning=True)
    if surge.waits or any(sum(grants[part.name].values()) < part.desired for part in parts):
        # Events of members wake it; this is for a write whose event never comes, and for a surge's end.
        raise Again(ROOM_CHECK)


def _is_unread(world: World, sets: list[Obj], workload: Mapping[str, Any], shares: Mapping[str, int]) -> bool:
    """Whether a cluster that takes part can be read but has not been: what it runs is not known.

    An earlier process may have stored a split that its members do not follow yet.
    """
    takes_part = set(shares).union(*(world.granted("replicaset", item, workload) for item in sets))
    members = (world.members.get(cluster) for cluster in takes_part)
    return any(m is not None and m.reachable and not m.synced for m in members)


def _newest_first(replicaset: Obj) -> tuple[int, str]:
    revision = annotations_of(replicaset).get(REVISION) or "0"
    return (-int(revision) if revision.isdigit() else 0, replicaset["metadata"]["name"])


def _is_settling(context: Context, owner: Obj, size: int, shares: Mapping[str, int]) -> bool:
    """Whether a scale-down came that the placement does not know yet: it says which cluster gives."""
    if not shares or sum(shares.values()) <= size:
        context.settling.pop(uid(owner), None)
        return False
    now = time.monotonic()
    if len(context.settling) >= SETTLING_MAX:
        # Those whose owners went meanwhile. For any other, settling once more costs nothing.
        context.settling = {key: since for key, since in context.settling.items() if now - since < SETTLE_LIMIT}
    return now - context.settling.setdefault(uid(owner), now) < SETTLE_LIMIT


def _part(world: World, item: Obj, workload: Mapping[str, Any]) -> Part:
    namespace, name = name_of(item)
    key: CopyKey = ("replicaset", namespace, name)
    stored = ((workload.get("status") or {}).get("divisions") or {}).get(name)
    used: dict[str, int] = {}
    available: dict[str, int] = {}
    present: dict[str, int] = {}
    for member in world.members.values():
        running = member.used(key, uid(item))
        copy = member.get(*key)
        if running or member.of_host(uid(item)):
            used[member.name] = running
        if copy is not None and host_uid(copy) == uid(item):
            available[member.name] = count(copy.get("status") or {}, "availableReplicas")
            present[member.name] = replicas(copy)
    granted = present if stored is None else {cluster: int(n) for cluster, n in stored.items()}
    return Part(name, replicas(item), granted, used, available)


def _limits(
    context: Context, kind: str, owner: Obj, sets: list[Obj], workload: Mapping[str, Any], size: int,
    shares: Mapping[str, int],
) -> Limits:  # fmt: skip
    world, now = context.world, datetime.now(UTC)
    rollout = max(0, sum(replicas(item) for item in sets) - size) if kind == "deployment" else 0
    clusters = _clusters(world, sets, workload)
    moving = surges.moving(workload, context.surge_timeout, now)
    gone = {name for name in clusters if world.lost(name, shares, moving)}
    for item in sets:
        reports = world.reports(Key("replicaset", *name_of(item)))
        gone |= {cluster for cluster, report in reports.items() if report.state == CONFLICT}
    return Limits(
        total=None if is_duplicated(workload) else sum(shares.values()) + rollout,
        budget=unavailable_budget(owner),
        gone=gone,
        settle=sum(shares.values()) != size,
        surge=not recreates(owner),
        overdue=surges.overdue(workload, clusters - set(shares), context.surge_timeout, now),
    )


def _clusters(world: World, sets: list[Obj], workload: Mapping[str, Any]) -> set[str]:
    """Every cluster that counts for one of the sets."""
    found = {member.name for member in world.members.values()}
    for item in sets:
        found |= set(world.granted("replicaset", item, workload))
    return found


async def _store(
    context: Context, workload: Obj, grants: Grants, surge: surges.Surge, keep: set[str]
) -> None:
    """Write the split. An empty entry says "none"; without an entry, copies that are there stay as they are.

    Only over the version that it was made from: the placement may just have changed, and a drain that was stopped
    counts on what the split says is still there.
    """
    status = workload.get("status") or {}
    before = status.get("divisions") or {}
    after = {name: clusters for name, clusters in grants.items() if clusters or name in keep}
    patch: dict[str, Any] = {}
    if divisions := merge_diff(before, after):
        patch["divisions"] = divisions
    conditions = list(status.get("conditions") or [])
    if (wanted := surges.conditions(conditions, surge)) != conditions:
        patch["conditions"] = wanted
    if not patch:
        return
    namespace, name = name_of(workload)
    meta = {"uid": uid(workload), "resourceVersion": workload["metadata"]["resourceVersion"]}
    try:
        await context.host.patch(WORKLOADS, namespace, name, {"metadata": meta, "status": patch}, sub="status")
    except StatusError as error:
        if error.code != 409:
            raise
        raise Again(CONFLICT_WAIT) from error
