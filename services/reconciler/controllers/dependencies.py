"""What workloads need on a member, kept equal to the host's, and removed when nothing there needs it."""

from __future__ import annotations

import logging

from services.common.errors import StatusError
from services.reconciler.closure import closure
from services.reconciler.controllers.context import Again, Context
from services.reconciler.controllers.namespaces import ensure_namespace
from services.reconciler.keys import Key
from services.reconciler.member_cache import CopyKey, MemberCache
from services.reconciler.names import DEPENDENCIES, NAMESPACE, Obj
from services.reconciler.objects import deleting, host_uid, name_of, uid

log = logging.getLogger(__name__)

KIND = "dependencies"
"""Keys: kind `dependencies`, name `all`, namespace "" for the cluster-scoped ones."""
SHARED = ("priorityclass", "runtimeclass", "storageclass")
WAIT = 2.0


async def reconcile(context: Context, member: MemberCache, key: Key) -> None:
    """Update and remove; what is new comes with the workload that needs it, before its copy."""
    if not member.synced:
        raise Again(WAIT)
    kinds = SHARED if not key.namespace else tuple(kind for kind in DEPENDENCIES if kind not in SHARED)
    wanted = _wanted(context, member, key.namespace)
    host = context.world.host.get(NAMESPACE, "", key.namespace) if key.namespace else None
    if wanted and key.namespace and (host is None or not await ensure_namespace(context, member, key.namespace)):
        return
    for wanted_key, obj in wanted.items():
        if wanted_key[0] in kinds:
            outcome = await context.applier.sync(member, wanted_key[0], context.world.dependency(wanted_key[0], obj))
            if outcome == "waiting":
                raise Again(WAIT)
    for kind in kinds:
        for copy in member.copies(kind):
            namespace, name = name_of(copy)
            if namespace == key.namespace and (kind, namespace, name) not in wanted and not deleting(copy):
                await _remove(context, member, kind, copy)


def _wanted(context: Context, member: MemberCache, namespace: str) -> dict[CopyKey, Obj]:
    """Everything that workloads on the member need from a namespace, with its host object."""
    found: dict[CopyKey, Obj] = {}
    for root in context.world.roots(member, namespace):
        for need, obj in closure(root, context.world.host).objects.items():
            if need.namespace == namespace:
                found[need.key] = obj
    return found


async def _remove(context: Context, member: MemberCache, kind: str, copy: Obj) -> None:
    namespace, name = name_of(copy)
    host = context.world.host.get(kind, namespace, name)
    if kind == "claim" and host is not None and uid(host) == host_uid(copy):
        # Its volume holds data: it goes when the claim is deleted on the host, not when a workload moves on.
        return
    # Placed meanwhile? The caches are read again right before the call.
    if (kind, namespace, name) in _wanted(context, member, namespace):
        return
    try:
        await context.applier.delete(member, kind, copy)
    except StatusError as error:
        log.warning("%s: %s %s/%s stays behind: %s", member.name, kind, namespace, name, error.message)
        raise
