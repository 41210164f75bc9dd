"""Delete: preconditions, grace, finalizers, propagation; one object or a collection.

Source: k8s.io/apiserver pkg/registry (rest.BeforeDelete, generic store Delete and DeleteCollection).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deploy.local.sim import errors
from deploy.local.sim.core import Core
from deploy.local.sim.objects import loaded, make_state
from deploy.local.sim.store import State
from deploy.local.sim.timers import timestamp
from deploy.local.sim.types import Object, ResourceType

ORPHAN, FOREGROUND = "orphan", "foregroundDeletion"
#: Types whose strategy orphans dependents unless told otherwise.
_POLICIES = ("Orphan", "Background", "Foreground")


@dataclass(frozen=True)
class Options:
    """metav1.DeleteOptions."""

    grace: int | None = None
    uid: str = ""
    version: str = ""
    propagation: str = ""
    dry_run: bool = False

    @classmethod
    def read(cls, body: Mapping[str, Any], query: Mapping[str, str]) -> Options:
        """From a body, or, without one, from the query. Raises Refused (422)."""
        conditions = body.get("preconditions") or {}
        grace = body.get("gracePeriodSeconds")
        if not body and query.get("gracePeriodSeconds", "").lstrip("-").isdigit():
            grace = int(query["gracePeriodSeconds"])
        propagation = body.get("propagationPolicy") or ("" if body else query.get("propagationPolicy", ""))
        orphans = body.get("orphanDependents")
        if orphans is None and not body and query.get("orphanDependents"):
            orphans = query["orphanDependents"] == "true"
        if orphans is not None:
            propagation = "Orphan" if orphans else "Background"
        if propagation and propagation not in _POLICIES:
            said = ", ".join(f'"{one}"' for one in ("Foreground", "Background", "Orphan"))
            text = f'Unsupported value: "{propagation}": supported values: {said}, "nil"'
            cause = errors.Cause("FieldValueNotSupported", "propagationPolicy", text)
            raise errors.invalid("meta.k8s.io", "DeleteOptions", "", [cause])
        return cls(
            grace,
            conditions.get("uid") or "",
            conditions.get("resourceVersion") or "",
            propagation,
            bool(body.get("dryRun")) or query.get("dryRun") == "All",
        )


NO_OPTIONS = Options()


def delete(
    core: Core, type_: ResourceType, namespace: str | None, name: str, options: Options = NO_OPTIONS
) -> tuple[State, bool]:
    """(the object as the deletion left it, whether it is gone). Raises Refused: 404, 409."""
    before = core.get(type_, namespace, name)
    obj = loaded(type_, before)
    meta = obj["metadata"]
    _check(type_, meta, options)
    finalizers = _finalizers(meta, options)
    grace = _grace(type_, obj, options)
    if meta.get("deletionTimestamp"):
        return _again(core, type_, obj, before, grace, options)
    if type_.collection == "namespaces":
        return _begin_namespace(core, type_, obj, options)
    if not finalizers and not grace:
        return _remove(core, type_, obj, options), True
    meta["finalizers"] = finalizers
    meta["deletionTimestamp"] = timestamp(core.timers.now() + grace)
    meta["deletionGracePeriodSeconds"] = grace
    if meta.get("generation"):
        meta["generation"] += 1
    return _write(core, type_, obj, options), False


def _check(type_: ResourceType, meta: Mapping[str, Any], options: Options) -> None:
    if options.uid and options.uid != meta["uid"]:
        why = (
            f"the UID in the precondition ({options.uid}) does not match the UID in record ({meta['uid']}). "
            "The object might have been deleted and then recreated"
        )
        raise errors.conflict(type_.group, type_.kind, meta["name"], why)
    if options.version and options.version != meta["resourceVersion"]:
        why = (
            f"the ResourceVersion in the precondition ({options.version}) does not match the ResourceVersion in "
            f"record ({meta['resourceVersion']}). The object might have been modified"
        )
        raise errors.conflict(type_.group, type_.kind, meta["name"], why)


def _finalizers(meta: Mapping[str, Any], options: Options) -> list[str]:
    found = [name for name in meta.get("finalizers") or () if name not in (ORPHAN, FOREGROUND)]
    kept = [name for name in meta.get("finalizers") or () if name in (ORPHAN, FOREGROUND)]
    if options.propagation == "Orphan":
        return [*found, ORPHAN]
    if options.propagation == "Foreground":
        return [*found, FOREGROUND]
    return found if options.propagation == "Background" else [*found, *kept]


def _grace(type_: ResourceType, obj: Object, options: Options) -> int:
    """Seconds the object lives on; only pods that a kubelet runs do."""
    if type_.collection != "pods":
        return 0
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    usual = spec.get("terminationGracePeriodSeconds", 30)
    wanted = usual if options.grace is None else options.grace
    if not spec.get("nodeName") or status.get("phase") in ("Failed", "Succeeded"):
        return 0
    return 1 if wanted < 0 else int(wanted)


def _again(
    core: Core, type_: ResourceType, obj: Object, before: State, grace: int, options: Options
) -> tuple[State, bool]:
    """A second deletion: sooner, at once, or nothing new."""
    meta = obj["metadata"]
    held = meta.get("deletionGracePeriodSeconds", 0)
    asked = options.grace is not None
    finalizers = _finalizers(meta, options)
    if type_.collection == "namespaces" or (finalizers and held == 0):
        if finalizers != list(meta.get("finalizers") or ()) and type_.collection != "namespaces":
            meta["finalizers"] = finalizers
            return _write(core, type_, obj, options), False
        return before, False
    if grace and (not asked or grace >= held):
        return before, False
    if grace or finalizers:
        since = timestamp(core.timers.now() + grace)
        meta["deletionTimestamp"] = min(since, meta["deletionTimestamp"])
        meta["deletionGracePeriodSeconds"] = grace
        meta["finalizers"] = finalizers
        return _write(core, type_, obj, options), False
    return _remove(core, type_, obj, options), True


def _begin_namespace(core: Core, type_: ResourceType, obj: Object, options: Options) -> tuple[State, bool]:
    obj["metadata"]["deletionTimestamp"] = core.now()
    obj["status"] = {**(obj.get("status") or {}), "phase": "Terminating"}
    return _write(core, type_, obj, options), False


def _write(core: Core, type_: ResourceType, obj: Object, options: Options) -> State:
    state = make_state(type_, obj, core.store.next_revision())
    if not options.dry_run:
        core.store.put(core.collection(type_), state)
    return state


def _remove(core: Core, type_: ResourceType, obj: Object, options: Options) -> State:
    if type_.collection == "pods":
        meta = obj["metadata"]
        if not meta.get("deletionTimestamp"):
            meta["generation"] = meta.get("generation", 0) + 1
        meta.update(deletionTimestamp=core.now(), deletionGracePeriodSeconds=0)
    state = make_state(type_, obj, core.store.next_revision())
    if not options.dry_run:
        core.store.remove(core.collection(type_), state)
    return state


def removed_status(type_: ResourceType, state: State) -> Object:
    """The Status that answers a deletion which took effect at once."""
    meta = state.object()["metadata"]
    details = {"name": meta["name"], "group": type_.group, "kind": type_.plural, "uid": meta["uid"]}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {key: value for key, value in details.items() if value},
    }
