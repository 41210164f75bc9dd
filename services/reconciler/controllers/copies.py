"""Spec down: one host object's copy on one member."""

from __future__ import annotations

from services.common.errors import MemberUnreachable, StatusError
from services.reconciler.closure import Need, closure
from services.reconciler.controllers.context import Again, Context
from services.reconciler.controllers.namespaces import ensure_namespace
from services.reconciler.decide import decide
from services.reconciler.keys import Key
from services.reconciler.member_cache import MemberCache
from services.reconciler.names import COPIED, DIGEST, HOST_UID, Obj
from services.reconciler.objects import annotations_of, deleting, host_uid, replicas, uid
from services.reconciler.world import CONFLICT, WAITING

WAIT = 1.0
"""Seconds until a wait is looked at again; events usually come first."""


async def reconcile(context: Context, member: MemberCache, key: Key) -> None:
    """Bring the copy to what is decided. Raises what the member says against it."""
    obj = context.world.host.get(*key)
    if obj is None:
        context.world.forget(key)
        await _collect(context, member, key)
        return
    copy = member.get(*key)
    if copy is not None and host_uid(copy) != uid(obj):
        # A copy of an earlier object of this name goes first; unless it is our picture of the host that is the earlier one.
        await _collect(context, member, key)
        context.report(key, member)
        return
    decision = decide(context.world, key.kind, obj, member)
    if decision.action == "remove":
        await _remove(context, member, key, decision.propagation)
        context.report(key, member)
    elif decision.action == "apply" and decision.manifest is not None:
        await _apply(context, member, key, obj, decision.manifest)
    else:
        context.report(key, member, WAITING if decision.message else "", decision.message)
        if decision.message:
            raise Again(WAIT)


async def _remove(context: Context, member: MemberCache, key: Key, propagation: str) -> None:
    copy = member.get(*key)
    if copy is not None and not deleting(copy):
        await context.applier.delete(member, key.kind, copy, propagation)


async def _collect(context: Context, member: MemberCache, key: Key) -> None:
    """Remove a copy whose host object is gone: our cache says so, and the host itself."""
    copy = member.get(*key)
    if copy is None or deleting(copy):
        return
    try:
        there = await context.host.get(COPIED[key.kind], key.namespace, key.name)
    except StatusError as error:
        if error.code != 404:
            raise
    else:
        if uid(there) == host_uid(copy):
            raise Again(WAIT)
    said = context.world.host.propagation(host_uid(copy))
    await context.applier.delete(member, key.kind, copy, said or "Background")


async def _apply(context: Context, member: MemberCache, key: Key, obj: Obj, desired: Obj) -> None:
    try:
        if not await ensure_namespace(context, member, key.namespace):
            context.report(key, member, WAITING, f"namespace {key.namespace} is being deleted")
            raise Again(WAIT)
        notes = await _dependencies(context, member, key, obj)
        if key.kind == "replicaset":
            member.writes((key.kind, key.namespace, key.name), replicas(desired))
        outcome = await context.applier.sync(member, key.kind, desired, lambda: _still(context, member, key, desired))
    except StatusError as error:
        if error.code == 404 and not isinstance(error, MemberUnreachable):
            member.namespaces.discard(key.namespace)
        context.report(key, member, WAITING, error.message)
        raise
    if outcome == "outdated":
        raise Again(0.0)
    if outcome == "foreign":
        message = f"{key.kind} {key.namespace}/{key.name} exists there and is not Reclock's"
        context.report(key, member, CONFLICT, message)
        raise Again(30.0)
    if outcome in ("waiting", "earlier"):
        # One of an earlier object of this name is looked at again, and collected, when the cache has it.
        context.report(key, member, WAITING, "an earlier copy of this name is being deleted")
        raise Again(WAIT)
    context.report(key, member, WAITING if notes else "", "; ".join(notes))


def _still(context: Context, member: MemberCache, key: Key, desired: Obj) -> bool:
    """Whether this is what is to be written now: while the member was asked it may have been placed elsewhere."""
    obj = context.world.host.get(*key)
    if obj is None:
        return False
    decision = decide(context.world, key.kind, obj, member)
    wanted = decision.manifest if decision.action == "apply" else None
    return wanted is not None and all(
        annotations_of(wanted).get(name) == annotations_of(desired).get(name) for name in (DIGEST, HOST_UID)
    )


async def _dependencies(context: Context, member: MemberCache, key: Key, obj: Obj) -> list[str]:
    """Bring what the pods need to the member, first of all; return what is missing on the host."""
    needs = closure(obj, context.world.host)
    for need, dependency in needs.objects.items():
        if not _is_there(member, need):
            await _sync_dependency(context, member, obj, need, dependency)
    return [f"{need} is not on the host" for need in needs.missing]


def _is_there(member: MemberCache, need: Need) -> bool:
    """Ours and known: the namespace's own reconcile keeps it equal."""
    copy = member.get(*need.key)
    return copy is not None and not deleting(copy)


async def _sync_dependency(
    context: Context, member: MemberCache, obj: Obj, need: Need, dependency: Obj
) -> None:
    outcome = await context.applier.sync(member, need.kind, context.world.dependency(need.kind, dependency))
    if outcome == "waiting":
        raise Again(WAIT)
    if outcome == "foreign":
        context.events.say(
            obj, "ForeignDependency", f"{member.name} has its own {need}: it is used as it is", warning=True
        )
