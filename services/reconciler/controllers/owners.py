"""Host objects that become Workloads: the Workload, the finalizer, the division, the status, the deletion."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from services.common.errors import StatusError
from services.reconciler.controllers import divisions, statuses
from services.reconciler.controllers.context import Again, Context
from services.reconciler.keys import Key
from services.reconciler.names import COPIED, FINALIZER, ON_HOST, WORKLOADS, Obj
from services.reconciler.objects import (
    deleting,
    finalizers,
    held,
    merge_diff,
    name_of,
    replicas,
    uid,
    workload_name,
)
from services.reconciler.workload_spec import (
    KINDS,
    managed_elsewhere,
    new_workload,
    owner_kind,
    workload_spec,
)

log = logging.getLogger(__name__)

Step = Callable[[Context, str, Obj], Awaitable[None]]
DELETION_CHECK = 5.0
"""Seconds between looks at a deletion that waits; events usually come first."""
READ_WAIT = 0.5
NAME_CHECK = 30.0


async def reconcile(context: Context, key: Key) -> None:
    """Bring everything on the host that belongs to this owner up to date."""
    obj = context.world.host.get(*key)
    if obj is None:
        context.world.forget(key)
        _wake_workload(context, key)
        return
    if key.kind == "job" and managed_elsewhere(obj):
        return
    if deleting(obj):
        _wake_workload(context, key, obj)
        if key.kind in COPIED:
            await _release(context, key, obj)
        return
    owned = key.kind == "replicaset" and context.world.deployment_reference(obj) is not None
    if not owned:
        await _ensure_workload(context, key.kind, obj)
    if key.kind in COPIED and not held(obj) and _may_run(key.kind, obj):
        await _hold(context, key, obj)
    _wake_workload(context, key, obj)
    steps: list[Step] = [statuses.reconcile] if key.kind in COPIED else []
    if key.kind == "deployment" or (key.kind == "replicaset" and not owned):
        steps.append(divisions.reconcile)
    await _each(context, key.kind, obj, steps)


async def _each(context: Context, kind: str, obj: Obj, steps: list[Step]) -> None:
    """Run all steps even when one has to wait; the shortest wait counts."""
    delays = []
    for step in steps:
        try:
            await step(context, kind, obj)
        except Again as again:
            delays.append(again.delay)
    if delays:
        raise Again(min(delays))


def _may_run(kind: str, obj: Obj) -> bool:
    # The many old ReplicaSets of a Deployment need no finalizer until they are used again.
    return kind != "replicaset" or replicas(obj) > 0


def _wake_workload(context: Context, key: Key, obj: Obj | None = None) -> None:
    kind, name = key.kind, key.name
    if kind == "replicaset" and obj is not None and (reference := context.world.deployment_reference(obj)):
        kind, name = "deployment", reference["name"]
    if kind in KINDS:
        context.add_host("workload", key.namespace, workload_name(kind, name))


async def _ensure_workload(context: Context, kind: str, obj: Obj) -> None:
    """Create the Workload, or bring its spec up to date."""
    namespace, name = name_of(obj)
    workload = context.world.host.get("workload", namespace, workload_name(kind, name))
    if workload is None:
        try:
            await context.host.create(WORKLOADS, namespace, new_workload(kind, obj))
        except StatusError as error:
            if error.reason != "AlreadyExists":
                raise
            raise Again(READ_WAIT) from error
        return
    if not owner_kind(workload):
        message = f"Workload {workload_name(kind, name)} is not this object's and in its place: it is not placed"
        context.events.say(obj, "NameTaken", message, warning=True)
        raise Again(NAME_CHECK)
    if workload["spec"]["owner"]["uid"] != uid(obj):
        # Of an earlier owner of this name: its own reconcile removes it, and wakes this one.
        context.add_host("workload", namespace, workload_name(kind, name))
        return
    patch = merge_diff(workload["spec"], workload_spec(kind, obj))
    if patch and not deleting(workload):
        await context.host.patch(
            WORKLOADS, namespace, workload["metadata"]["name"],
            {"metadata": {"uid": uid(workload)}, "spec": patch},
        )  # fmt: skip


async def _hold(context: Context, key: Key, obj: Obj) -> None:
    """Add the finalizer, so that no copy outlives the host object unnoticed."""
    await _set_finalizers(context, key, obj, [*finalizers(obj), FINALIZER])


async def _set_finalizers(context: Context, key: Key, obj: Obj, wanted: list[str]) -> None:
    meta = {"finalizers": wanted, "resourceVersion": obj["metadata"]["resourceVersion"], "uid": uid(obj)}
    try:
        await context.host.patch(ON_HOST[key.kind], key.namespace or None, key.name, {"metadata": meta})
    except StatusError as error:
        if error.code == 409:
            raise Again(0.05) from error
        if error.code != 404:
            raise


async def _release(context: Context, key: Key, obj: Obj) -> None:
    """Let a deleting object go once no reachable member has a copy of it."""
    if not held(obj):
        return
    waits = []
    for member in context.world.members.values():
        if not member.reachable:
            continue
        if not member.synced or any(kind == key.kind for kind, _, _ in member.of_host(uid(obj))):
            context.add(member.name, *key)
            waits.append(member.name)
    if waits:
        raise Again(DELETION_CHECK)
    await _set_finalizers(context, key, obj, [item for item in finalizers(obj) if item != FINALIZER])
    log.info("%s: its copies are gone, released", key)
