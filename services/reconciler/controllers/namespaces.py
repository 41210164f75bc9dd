"""Namespaces: made on a member when something is placed there, emptied and removed when the host's goes."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from services.common.errors import StatusError
from services.common.kube.resource import NAMESPACES, Resource
from services.common.kube.times import parse_time
from services.reconciler.applier import deadline
from services.reconciler.controllers.context import Again, Context
from services.reconciler.keys import Key
from services.reconciler.manifests import manifest
from services.reconciler.member_cache import IDENTITY_HOLDS, MemberCache
from services.reconciler.names import DEPENDENCIES, NAMESPACE, NAMESPACE_FINALIZER, Obj
from services.reconciler.objects import deleting, finalizers, host_uid, uid

log = logging.getLogger(__name__)

PERMANENT = ("default", "kube-system", "kube-public", "kube-node-lease")
"""Every cluster has them, and nobody deletes them."""
ROUTED_KEY = Key("routed", "", "all")
CHECK = 5.0
REMOVAL_CHECK = 1.0


async def ensure_namespace(context: Context, member: MemberCache, name: str) -> bool:
    """Make sure that the namespace is on the member; False while the host's, or an old one there, is going.

    An existing one that is not ours is used as it is. The host's gets our finalizer first.
    """
    host = context.world.host.get(NAMESPACE, "", name)
    if host is None or deleting(host):
        return False
    ours = member.get(NAMESPACE, "", name)
    if ours is not None:
        return not deleting(ours) and host_uid(ours) == uid(host)
    if name in PERMANENT or name in member.namespaces:
        return True
    if NAMESPACE_FINALIZER not in finalizers(host):
        await _set_finalizers(context, host, [*finalizers(host), NAMESPACE_FINALIZER])
    try:
        async with deadline(member):
            await member.identify(IDENTITY_HOLDS)
            context.applier.check()
            await member.client.create(NAMESPACES, None, manifest(NAMESPACE, host, context.world.fleet_id))
    except StatusError as error:
        if error.reason != "AlreadyExists":
            raise
        async with deadline(member):
            there = await member.client.get(NAMESPACES, None, name)
        if deleting(there):
            return False
    member.namespaces.add(name)
    return True


async def _set_finalizers(context: Context, host: Obj, wanted: list[str]) -> None:
    meta = {"finalizers": wanted, "resourceVersion": host["metadata"]["resourceVersion"], "uid": uid(host)}
    try:
        await context.host.patch(NAMESPACES, None, host["metadata"]["name"], {"metadata": meta})
    except StatusError as error:
        if error.code == 409:
            raise Again(0.1) from error
        if error.code != 404:
            raise


async def reconcile_host(context: Context, key: Key) -> None:
    """Let a deleting namespace go once nothing that Reclock made in it is left on the members."""
    host = context.world.host.get(*key)
    if host is None:
        for member in context.world.members.values():
            member.namespaces.discard(key.name)
            if member.get(NAMESPACE, "", key.name) is not None:
                context.add(member.name, *key)
        return
    if not deleting(host) or NAMESPACE_FINALIZER not in finalizers(host):
        return
    since = parse_time(host["metadata"]["deletionTimestamp"])
    waited = (datetime.now(UTC) - since).total_seconds() if since else 0.0
    waits = False
    for member in context.world.members.values():
        if not member.reachable:
            # What is there is collected when it returns.
            waits = waits or waited < context.worker_lost_timeout
        elif not member.synced or holds(context, member, key.name) or await _routed(context, member, key.name):
            context.add(member.name, *key)
            waits = True
    if waits:
        raise Again(CHECK)
    await _set_finalizers(context, host, [item for item in finalizers(host) if item != NAMESPACE_FINALIZER])
    log.info("namespace %s: nothing is left on the members, released", key.name)


def holds(context: Context, member: MemberCache, name: str) -> bool:
    """Whether the member still has the namespace, if it is ours, or anything of ours in it."""
    if member.get(NAMESPACE, "", name) is not None:
        return True
    if member.workloads(name):
        return True
    if any(namespace == name for kind in DEPENDENCIES for namespace, _ in member.informers[kind].store):
        return True
    return bool(member.owned.in_namespace(name)) if member.owned is not None else False


async def reconcile_member(context: Context, member: MemberCache, key: Key) -> None:
    """Keep our namespace equal, or empty and remove it when the host's is going or gone."""
    host = context.world.host.get(*key)
    ours = member.get(NAMESPACE, "", key.name)
    if member.name in context.world.departing:
        return  # It goes, or stays for its claims' sake, with the member.
    stays = host is not None and not deleting(host)
    if host is not None and stays and (ours is None or host_uid(ours) == uid(host)):
        if ours is not None:
            await context.applier.sync(member, NAMESPACE, context.world.dependency(NAMESPACE, host))
        return
    # What was read may be older than the namespace: nothing is emptied before the host itself says that it is gone.
    if host is None and not await _gone_from_host(context, key.name, host_uid(ours) if ours is not None else ""):
        raise Again(CHECK)
    await _empty(context, member, key.name)
    if ours is not None and not deleting(ours):
        async with deadline(member):
            context.applier.check()
            await member.client.delete(NAMESPACES, None, key.name, uid=uid(ours))
        log.info("%s: namespace %s is being removed with what is in it", member.name, key.name)


async def _empty(context: Context, member: MemberCache, name: str) -> None:
    """Remove workloads' copies before the namespace: their host objects wait for them anyway."""
    for copy in member.workloads(name):
        context.add(member.name, *copy)
    if member.owned is not None:
        await member.owned.remove_all(name)
        # In a namespace that is the member's own, only what the front created there goes.
        for resource, obj in await _routed(context, member, name):
            await member.owned.remove_routed(resource, obj)
    if member.workloads(name):
        raise Again(REMOVAL_CHECK)
    context.add(member.name, "dependencies", name, "all")


async def _routed(context: Context, member: MemberCache, name: str) -> list[tuple[Resource, Obj]]:
    if name in PERMANENT or member.owned is None:
        return []
    if context.unread():
        raise Again(REMOVAL_CHECK)
    async with deadline(member):
        return await member.owned.routed(context.world.fleet_id, name)


async def reconcile_routed(context: Context, member: MemberCache) -> None:
    """Collect what the front created in namespaces that were deleted on the host while the member was away."""
    if member.owned is None:
        return
    gone: dict[str, bool] = {}
    for resource, obj in await member.owned.routed(context.world.fleet_id):
        namespace = obj["metadata"].get("namespace", "")
        if not namespace or context.world.host.get(NAMESPACE, "", namespace) is not None:
            continue
        if namespace not in gone:
            gone[namespace] = await _gone_from_host(context, namespace, "")
        if gone[namespace]:
            await member.owned.remove_routed(resource, obj)


async def _gone_from_host(context: Context, name: str, wanted: str) -> bool:
    try:
        there = await context.host.get(NAMESPACES, None, name)
    except StatusError as error:
        if error.code != 404:
            raise
        return True
    return bool(wanted) and (uid(there) != wanted or deleting(there))
