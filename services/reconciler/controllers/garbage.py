"""Garbage: a sweep over everything of ours on a member, and objects whose host owners are gone (case 2)."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from services.reconciler.controllers.context import Again, Context
from services.reconciler.host_owners import HostOwners
from services.reconciler.keys import Key
from services.reconciler.member_cache import MemberCache
from services.reconciler.names import COPIED, DEPENDENCIES, NAMESPACE
from services.reconciler.objects import deleting, name_of
from services.reconciler.owned import owners_of

log = logging.getLogger(__name__)

SWEEP = -100
"""Priority of what a sweep queues: behind everything that happened."""
UNKNOWN_WAIT = 0.5


def everything(member: MemberCache) -> Iterator[Key]:
    """Every copy, dependency, namespace and host-owned object of a member."""
    namespaces = {""}
    for kind in COPIED:
        for namespace, name in list(member.informers[kind].store):
            yield Key(kind, namespace, name)
    for kind in DEPENDENCIES:
        namespaces.update(namespace for namespace, _ in member.informers[kind].store)
    for namespace in namespaces:
        yield Key("dependencies", namespace, "all")
    for _, name in list(member.informers[NAMESPACE].store):
        yield Key(NAMESPACE, "", name)
    if member.owned is not None:
        for key, obj in member.owned.all():
            yield Key(f"owned/{key}", *name_of(obj))


def sweep(context: Context, member: MemberCache) -> None:
    """Queue everything of a member: each decides by itself."""
    for key in everything(member):
        context.add(member.name, *key, SWEEP)


async def reconcile_owned(owners: HostOwners, member: MemberCache, key: Key) -> None:
    """Delete an object when all its host owners are gone; let it be when they were deleted as orphaning."""
    if member.owned is None:
        return
    resource = key.kind.removeprefix("owned/")
    obj = member.owned.get(resource, key.namespace, key.name)
    named = owners_of(obj) if obj is not None else None
    if obj is None or named is None or deleting(obj):
        return
    states = [(owner, await owners.state(owner, key.namespace)) for owner in named]
    if any(state == "unknown" for _, state in states):
        raise Again(UNKNOWN_WAIT)
    left = [owner for owner, state in states if state == "alive"]
    if any(state == "orphaned" for _, state in states):
        await member.owned.disown(resource, obj, left)
    elif not left:
        await member.owned.remove(resource, obj, "Background")
        log.info("%s: %s %s/%s: its owners are gone, deleted", member.name, resource, key.namespace, key.name)
