"""What should become of one host object's copy on one member. Reads the caches only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from services.reconciler.job_status import base_of, failed_base, finished
from services.reconciler.manifests import manifest
from services.reconciler.member_cache import MemberCache
from services.reconciler.names import DIGEST, FENCED, Obj
from services.reconciler.objects import (
    annotations_of,
    condition,
    count,
    deleting,
    held,
    host_uid,
    is_true,
    name_of,
    propagation,
    replicas,
    uid,
)  # fmt: skip
from services.reconciler.workload_spec import managed_elsewhere, placed
from services.reconciler.world import CONFLICT, World

EXCLUSIVE = ("statefulset", "job")
"""Kinds that live in one cluster: a new copy waits until the old one is gone, pods included."""


@dataclass(frozen=True, slots=True)
class Decision:
    """`apply` the manifest, `remove` the copy, or `keep` things as they are (`message`: what is waited for)."""

    action: Literal["apply", "remove", "keep"]
    manifest: Obj | None = None
    propagation: str = "Background"
    message: str = ""


KEEP = Decision("keep")


def decide(world: World, kind: str, obj: Obj, member: MemberCache) -> Decision:
    """Return the decision for a host object that exists; `obj` is the cached one."""
    if kind == "job" and managed_elsewhere(obj):
        return KEEP
    copy = member.get(kind, *name_of(obj))
    if copy is not None and host_uid(copy) != uid(obj):
        return Decision("remove", message="a copy of an earlier object of this name goes first")
    if deleting(obj):
        return Decision("remove", propagation=deletion_propagation(world, kind, obj))
    workload = world.workload_of(kind, obj)
    if workload is None:
        return KEEP
    if kind == "replicaset":
        return _replicaset(world, obj, member, copy, workload)
    return _whole(world, kind, obj, member, copy, workload)


def deletion_propagation(world: World, kind: str, obj: Obj) -> str:
    """How copies of a deleting object go: as its deletion was asked for, or its Deployment's foreground one."""
    said = world.host.propagation(uid(obj)) or propagation(obj)
    reference = world.deployment_reference(obj) if kind == "replicaset" else None
    if said == "Background" and reference is not None:
        deployment = world.host.get("deployment", name_of(obj)[0], reference["name"])
        if deployment is not None and uid(deployment) == reference["uid"] and deleting(deployment):
            return propagation(deployment)
    if said == "Background" and _orphaned(world, kind, obj):
        return "Orphan"
    return said


def _orphaned(world: World, kind: str, obj: Obj) -> bool:
    """Whether the host's garbage collector cut the Workload loose, which it does only when told to orphan.

    The finalizer that said so may have come and gone while nobody looked.
    """
    workload = world.workload_of(kind, obj)
    return workload is not None and not workload["metadata"].get("ownerReferences")


def _replicaset(
    world: World, obj: Obj, member: MemberCache, copy: Obj | None, workload: Mapping[str, Any]
) -> Decision:
    grants = world.granted("replicaset", obj, workload)
    if not deleting(workload) and (holds_still(workload) or not world.is_divided(obj, workload)):
        # Adopted or orphaned copies run on until their split is stored.
        return KEEP
    number = 0 if deleting(workload) else grants.get(member.name, 0)
    if number:
        return _apply(manifest("replicaset", obj, world.fleet_id, replicas=number), obj)
    if copy is None:
        return KEEP
    # Pods first, then the copy: so what runs is in its status until it is gone.
    if replicas(copy):
        return _apply(manifest("replicaset", obj, world.fleet_id, replicas=0), obj)
    if count(copy.get("status") or {}, "replicas"):
        return KEEP
    return Decision("remove")


def holds_still(workload: Mapping[str, Any]) -> bool:
    """Whether it was never placed: copies that are there already (a Deployment was orphaned) stay as they are."""
    status = workload.get("status") or {}
    was_placed = any(status.get(field) for field in ("placement", "lastPlacement", "divisions", "attempts"))
    return not deleting(workload) and not was_placed


def _whole(
    world: World, kind: str, obj: Obj, member: MemberCache, copy: Obj | None, workload: Mapping[str, Any]
) -> Decision:
    """StatefulSet, DaemonSet, Job: all of it where it is placed."""
    if kind == "job" and finished(obj) and member.name not in world.departing:
        # Its pods and their logs stay until the Job is deleted.
        return KEEP
    placement = placed(workload)
    gone = kind == "job" and finished(obj)
    stays = not gone and not deleting(workload) and placement is not None and member.name in placement
    if not stays:
        if copy is None:
            return KEEP
        if kind == "job" and not gone and placement is None and not deleting(workload) and _rests(obj, copy, workload):
            return _apply(_job(world, obj, copy, suspend=True), obj)
        if kind == "job" and not gone and not _told(obj, copy):
            return Decision("keep", message="its last state goes up first")
        return Decision("remove", propagation="Foreground" if kind in EXCLUSIVE else "Background")
    if kind in EXCLUSIVE and (elsewhere := _elsewhere(world, obj, member, workload)):
        return Decision("keep", message=f"the copy on {elsewhere} goes first")
    if copy is not None and (since := annotations_of(copy).get(FENCED)):
        # The worker beside it lifts the fence when the manager confirms the placement; until then hands off.
        # Only what has no pods any more is said to be fenced: the scheduler may start it elsewhere on that word.
        state = "fenced" if is_at_rest(kind, copy) else "being fenced"
        return Decision("keep", message=f"{state} since {since}: its worker was out of contact with the manager")
    if kind == "job":
        return _apply(_job(world, obj, copy, suspend=_suspends(obj, workload)), obj)
    return _apply(manifest(kind, obj, world.fleet_id), obj)


def _job(world: World, obj: Obj, copy: Obj | None, *, suspend: bool) -> Obj:
    base = base_of(copy) if copy is not None else failed_base(obj)
    return manifest("job", obj, world.fleet_id, suspend=suspend, failed_base=base)


def _suspends(job: Obj, workload: Mapping[str, Any]) -> bool:
    """As the host's, and while a resumed Job has not been admitted again."""
    admitted = condition(workload, "Admitted")
    refused = admitted is not None and admitted.get("status") == "False"
    return bool((job.get("spec") or {}).get("suspend")) or refused


def _rests(job: Obj, copy: Obj, workload: Mapping[str, Any]) -> bool:
    """Whether a Job without a placement is suspended, waits to be admitted again where it was, or is drained.

    A drained one goes only once it is placed elsewhere: nothing that it did is lost if the drain is stopped.
    """
    suspended = (job.get("spec") or {}).get("suspend") or (copy.get("spec") or {}).get("suspend")
    evicted = condition(workload, "Evicted") or {}
    return bool(suspended) or (evicted.get("status") == "True" and evicted.get("reason") == "Drained")


def _told(job: Obj, copy: Obj) -> bool:
    """Whether what the copy came to is in the host's status: nobody can ask it once it is gone."""
    shown, current = job.get("status") or {}, copy.get("status") or {}
    return (
        not finished(copy)
        and count(shown, "failed") >= base_of(copy) + count(current, "failed")
        and count(shown, "succeeded") >= count(current, "succeeded")
    )


def is_at_rest(kind: str, copy: Obj) -> bool:
    """Whether a copy that was told to stop is seen to have no pods any more."""
    status = copy.get("status") or {}
    if kind == "job":
        # `terminating` is there only from Kubernetes 1.28 on; before, active pods are all that a Job tells of.
        suspended = bool((copy.get("spec") or {}).get("suspend")) and is_true(copy, "Suspended")
        return suspended and not count(status, "active") and not count(status, "terminating")
    seen = count(status, "observedGeneration") >= int(copy["metadata"].get("generation", 0))
    return seen and not replicas(copy) and not count(status, "replicas")


def _elsewhere(world: World, obj: Obj, member: MemberCache, workload: Mapping[str, Any]) -> str:
    """Another member that still has a copy, or had one before we started and is not read yet, and can be told to remove it."""
    entries = (workload.get("status") or {}).get("copies") or []
    had = {entry["cluster"] for entry in entries if entry["state"] != CONFLICT}
    for other in world.members.values():
        if other is member or not other.reachable:
            continue
        if other.may_have(uid(obj)) or (other.name in had and not other.synced):
            return other.name
    return ""


def _apply(desired: Obj, obj: Obj) -> Decision:
    if not held(obj):
        return Decision("keep", message="the host object has no finalizer yet")
    return Decision("apply", desired)


def wants(world: World, kind: str, obj: Obj, member: MemberCache) -> Obj | None:
    """The manifest that the copy should have now, if it should be there."""
    return decide(world, kind, obj, member).manifest


def is_current(copy: Obj, desired: Obj) -> bool:
    """Whether the copy carries the desired spec and its member's controller has observed it."""
    if annotations_of(copy).get(DIGEST) != annotations_of(desired)[DIGEST]:
        return False
    seen = count(copy.get("status") or {}, "observedGeneration")
    return seen >= int(copy["metadata"].get("generation", 0))

