"""Members that no provider has any more (rule 9): emptied of what Reclock made there, then let go.

Nothing is touched before the time-out of rule 4 is over, unless the member was drained or forgotten: a kubeconfig
that is away for a while removes no work. Then copies go where the scheduler has moved their workloads, and finished
Jobs, objects that were routed there or copied by Sinks, dependencies and namespaces after them. Claims hold data and stay. Discovery
drops the member's credentials when told that the member is empty, or of what has to be left behind. While something
that must not run twice may run there, it is not let go, however long that takes: `reclock forget` ends it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import UTC, datetime, timedelta

from services.common.errors import StatusError
from services.common.kube.resource import NAMESPACES, PODS, Resource
from services.reconciler.applier import deadline
from services.reconciler.controllers import garbage
from services.reconciler.controllers.context import Again, Context
from services.reconciler.controllers.workloads import MAY_RUN
from services.reconciler.keys import Key
from services.reconciler.member_cache import MemberCache
from services.reconciler.names import CLAIMS, COPIED, NAMESPACE
from services.reconciler.objects import condition, deleting, is_true, name_of, uid
from services.reconciler.workload_spec import placed
from services.reconciler.world import World

log = logging.getLogger(__name__)

KIND = "leaving"
KEY = Key(KIND, "", "all")
CHECK = 2.0
MAINTENANCE = "reclock.dev/maintenance"
UNREAD = "what else is there is not known: it could not be read"
JUDGED = ("ClusterLost", "WorkerLost")
"""Evictions that the scheduler makes only when what it evicts is known to be stopped, or given up."""
NAMED = 20
"""Objects left behind that are named; of more only their number is told."""


async def reconcile(context: Context, member: MemberCache) -> None:
    """Take the next step of a member's leaving."""
    since = member.member.leaving_since
    if since is None:
        context.world.departing.pop(member.name, None)
        return
    wait = timedelta(seconds=context.worker_lost_timeout)
    now = datetime.now(UTC)
    if _holds_workloads(context.world, member):
        raise Again(CHECK)
    if _is_due(context.world, member, since, now, wait) and member.name not in context.world.departing:
        context.world.departing[member.name] = now
        log.info("%s: it is leaving, what is there of ours goes", member.name)
    if member.reachable and member.synced:
        empty = await _is_empty(context, member)
        # What does not obey its deletion is waited for once more as long, then left.
        began = context.world.departing.get(member.name)
        if not empty and (began is None or now < began + wait):
            raise Again(CHECK)
    elif not _is_given_up(member, since, now, wait):
        raise Again(CHECK)
    if not member.member.forgotten and may_run_twice(context.world, member):
        raise Again(CHECK)
    left = _ours(member) if member.synced else [*_ours(member), UNREAD]
    context.applier.check()
    await context.release(member.name, since, left[:NAMED], len(left))
    log.warning("%s: released, %d objects are left behind there", member.name, len(left))


def _is_due(world: World, member: MemberCache, since: datetime, now: datetime, wait: timedelta) -> bool:
    drained = any(t.key == MAINTENANCE and t.effect == "NoExecute" for t in member.member.taints)
    return drained or member.member.forgotten or (now >= since + wait and not _most_are_away(world))


def _most_are_away(world: World) -> bool:
    """Whether more than half of the fleet is away or leaving at once: then the fault is ours, as in rule 4."""
    known = [cache.member for cache in world.members.values() if not cache.member.forgotten]
    away = sum(1 for member in known if member.leaving_since is not None or not member.reachable)
    return away * 2 > len(known)


def _is_given_up(member: MemberCache, since: datetime, now: datetime, wait: timedelta) -> bool:
    """Whether nobody waits any longer for a member that cannot be asked."""
    lost = max(since, member.member.unreachable_since or since)
    return member.member.forgotten or now >= lost + wait


def _holds_workloads(world: World, member: MemberCache) -> bool:
    """Whether something is placed there that has not finished."""
    workloads = world.host.all("workload")
    return any(member.name in (placed(w) or ()) and not is_true(w, "Finished") for w in workloads)


def may_run_twice(world: World, member: MemberCache) -> list[str]:
    """Workloads that must not run twice and, for all that is known, may run there: nobody has seen them stop.

    What the scheduler has moved elsewhere, or takes for lost, it has judged (rule 4): the worker there stopped it.
    """
    found = []
    for workload in world.host.all("workload"):
        if not workload["spec"].get("atMostOnce") or is_true(workload, "Finished") or placed(workload):
            continue
        evicted = condition(workload, "Evicted") or {}
        if evicted.get("status") == "True" and evicted.get("reason") in JUDGED:
            continue
        copies = (workload.get("status") or {}).get("copies") or ()
        if any(entry["cluster"] == member.name and entry["state"] in MAY_RUN for entry in copies):
            found.append("/".join(name_of(workload)))
    return sorted(found)


async def _is_empty(context: Context, member: MemberCache) -> bool:
    """Remove what may go now; whether nothing is left that has to go."""
    if context.unread():
        raise Again(CHECK)
    routed = []
    if member.owned is not None:
        routed = await member.owned.routed(context.world.fleet_id)
        routed += await member.owned.sunk(context.world.fleet_id, context.sinks())
    if member.name not in context.world.departing:
        return not routed and not member.count()
    garbage.sweep(context, member)
    if member.owned is not None:
        for resource, obj in routed:
            await member.owned.remove_routed(resource, obj)
    if any(member.informers[kind].store for kind in COPIED):
        return False
    keep = set()
    for namespace in member.copies(NAMESPACE):
        name = name_of(namespace)[1]
        if deleting(namespace):
            continue
        async with deadline(member):
            if await _has_any(member, CLAIMS, name):
                keep.add(name)
            # Pods that are there still end in a moment, or are somebody else's, which are not ours to delete.
            elif not await _has_any(member, PODS, name):
                await _delete_namespace(context, member, name, uid(namespace))
    return not routed and not _ours(member, keep)


async def _has_any(member: MemberCache, resource: Resource, namespace: str) -> bool:
    """Whether anybody's object of the type is there: the claims of a StatefulSet's templates carry no label of ours."""
    return bool((await member.client.list(resource, namespace, limit=1))["items"])


async def _delete_namespace(context: Context, member: MemberCache, name: str, wanted: str) -> None:
    context.applier.check()
    try:
        await member.client.delete(NAMESPACES, None, name, uid=wanted)
    except StatusError as error:
        if error.code not in (404, 409):
            raise


def _ours(member: MemberCache, keep: Collection[str] | None = None) -> list[str]:
    """`kind namespace/name` of everything of ours, or of all but claims and the namespaces `keep`."""
    found = []
    for kind, informer in member.informers.items():
        for namespace, name in informer.store:
            if keep is None or not (kind == "claim" or (kind == NAMESPACE and name in keep)):
                found.append(f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}")
    return sorted(found)
