"""Create and update: names, versions, subresources, generations, what an update may not change.

Source: k8s.io/apiserver pkg/registry (generic store, rest.BeforeCreate, rest.BeforeUpdate).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deploy.local.sim import errors, managed, schemas, validation
from deploy.local.sim.core import UNKNOWN_MANAGER, Core
from deploy.local.sim.defaults import TEMPLATE_GENERATION, apply_defaults, initialise
from deploy.local.sim.immutable import check_update
from deploy.local.sim.objects import generated_name, loaded, make_state, new_uid, same
from deploy.local.sim.store import State
from deploy.local.sim.types import Object, ResourceType

_CREATE_ON_UPDATE = frozenset({
    "leases.coordination.k8s.io", "events", "endpoints", "limitranges", "services", "priorityclasses.scheduling.k8s.io",
    "roles.rbac.authorization.k8s.io", "rolebindings.rbac.authorization.k8s.io",
    "clusterroles.rbac.authorization.k8s.io", "clusterrolebindings.rbac.authorization.k8s.io",
})  # fmt: skip
#: Whose status updates may change labels and annotations too.
_STATUS_KEEPS_METADATA = frozenset({"pods", "nodes", "namespaces"})


@dataclass(frozen=True)
class Writing:
    """How a write is meant. `validation`: Strict, Warn or Ignore (what to do about unknown fields)."""

    manager: str = UNKNOWN_MANAGER
    dry_run: bool = False
    validation: str = "Warn"
    apply: bool = False


DEFAULT = Writing()


def create(
    core: Core, type_: ResourceType, namespace: str | None, obj: Object, how: Writing = DEFAULT
) -> State:
    """Stores a new object. Raises Refused: 400, 403 (namespace going), 404 (no namespace), 409, 422."""
    _check_kind(type_, obj)
    meta = _metadata(obj)
    _check_namespace(type_, namespace, meta)
    generated = not meta.get("name") and bool(meta.get("generateName"))
    if generated:
        meta["name"] = generated_name(meta["generateName"], core.random)
    _check_namespace_is_open(core, type_, namespace, meta)
    schemas.prune(type_, obj)
    if meta.get("resourceVersion") not in (None, "", "0"):
        raise errors.internal_plain("resourceVersion should not be set on objects to be created")
    meta["uid"] = new_uid(core.random)
    meta["creationTimestamp"] = core.now()
    for name in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"):
        meta.pop(name, None)
    if type_.has_generation or type_.custom:
        meta["generation"] = 1
    if not how.apply:
        meta.pop("managedFields", None)
    managed_before = meta.pop("managedFields", None)
    apply_defaults(type_, obj)
    schemas.fill(type_, obj)
    # What strategies and admission add from here on is nobody's.
    if managed_before is not None:
        meta["managedFields"] = managed_before
    elif core.managed_fields:
        managed.created(type_, obj, how.manager, core.now())
    if _has_pod_spec(type_, obj):
        initialise(type_, obj, core.random)
    _validate(type_, obj)
    state = make_state(type_, obj, core.store.next_revision())
    if state.key in core.collection(type_).live:
        raise _exists(type_, meta["name"], generated)
    if how.dry_run:
        return _unstored(state)
    core.store.put(core.collection(type_), state)
    return state


def _unstored(state: State) -> State:
    """What a dry run shows of an object that was not there: it has no version."""
    raw = state.raw.replace(b'"resourceVersion":"%d",' % state.version, b"", 1)
    return State(state.key, state.version, raw, state.labels)


def _exists(type_: ResourceType, name: str, generated: bool) -> errors.Refused:
    error = errors.already_exists(type_.group, type_.plural, name)
    if generated:
        error.message += ", the server was not able to generate a unique name for the object"
        error.details = {**(error.details or {}), "retryAfterSeconds": 1}
    return error


def _has_pod_spec(type_: ResourceType, obj: Object) -> bool:
    """False for a pod that validation will refuse before anything can be added to it."""
    return type_.collection != "pods" or bool((obj.get("spec") or {}).get("containers"))


def _validate(type_: ResourceType, obj: Object) -> None:
    meta = obj["metadata"]
    name = meta.get("name", "")
    if not name:
        causes = [validation.required("metadata.name", "name or generateName is required")]
        raise errors.invalid(type_.group, type_.kind, "", causes)
    causes = list(validation.check_name(type_, name))
    causes += validation.check_metadata(meta)
    causes += validation.check_content(type_, obj)
    causes += schemas.violations(type_, obj)
    if causes:
        raise errors.invalid(type_.group, type_.kind, name, causes)


def _check_kind(type_: ResourceType, obj: Object) -> None:
    version, kind = obj.get("apiVersion", ""), obj.get("kind", "")
    if type_.custom and not kind:
        raise errors.bad_request("Object 'Kind' is missing")
    if (version or type_.custom) and version != type_.group_version:
        raise errors.bad_request(
            f"the API version in the data ({version}) does not match the expected API version ({type_.group_version})"
        )
    if kind and kind != type_.kind:
        text = f'{kind} in version "{version.rpartition("/")[2]}" cannot be handled as a {type_.kind}'
        raise errors.bad_request(text)


def _metadata(obj: Object) -> dict[str, Any]:
    meta = obj.get("metadata")
    if meta is None:
        meta = obj["metadata"] = {}
    if not isinstance(meta, dict):
        raise errors.bad_request("metadata: must be an object")
    return meta


def _check_namespace(type_: ResourceType, namespace: str | None, meta: dict[str, Any]) -> None:
    given = meta.get("namespace")
    if not type_.namespaced:
        if given:
            raise errors.bad_request(_NAMESPACE_MISMATCH)
        return
    if given and given != namespace:
        raise errors.bad_request(_NAMESPACE_MISMATCH)
    meta["namespace"] = namespace


_NAMESPACE_MISMATCH = "the namespace of the provided object does not match the namespace sent on the request"


def _check_namespace_is_open(
    core: Core, type_: ResourceType, namespace: str | None, meta: dict[str, Any]
) -> None:
    if not type_.namespaced or namespace is None:
        return
    found = core.find(core.type("", "v1", "namespaces"), None, namespace)
    if found is None:
        raise errors.not_found("", "namespaces", namespace)
    if b'"deletionTimestamp"' in found.raw and found.object()["metadata"].get("deletionTimestamp"):
        causes = [
            errors.Cause(
                "NamespaceTerminating", "metadata.namespace", f"namespace {namespace} is being terminated"
            )
        ]
        why = f"unable to create new content in namespace {namespace} because it is being terminated"
        raise errors.forbidden(type_.group, type_.plural, meta.get("name", ""), why, causes)


Change = Callable[[Object], Object]


def update(
    core: Core,
    type_: ResourceType,
    namespace: str | None,
    name: str,
    change: Change,
    how: Writing = DEFAULT,
    *,
    sub: str = "",
    owned: bool = False,
) -> State:
    """Stores what `change` makes of the object. A change of nothing stores nothing and answers the object as it is.

    `sub`: the subresource written. `owned`: `change` settled managedFields itself. Raises Refused: 400, 404, 409, 422.
    """
    before = core.get(type_, namespace, name)
    old = loaded(type_, before)
    new = change(loaded(type_, before))
    _check_kind(type_, new)
    meta = _metadata(new)
    if meta.get("name", name) != name:
        raise errors.bad_request(
            f"the name of the object ({meta['name']}) does not match the name on the URL ({name})"
        )
    meta["name"] = name
    _check_namespace(type_, namespace, meta)
    _check_versions(type_, meta, old["metadata"])
    schemas.prune(type_, new)
    _keep(type_, new, old, sub)
    apply_defaults(type_, new)
    schemas.fill(type_, new)
    if sub != "binding":
        _bump_generation(type_, new, old)
    _validate(type_, new)
    check_update(type_, new, old, sub)
    _check_finalizers(type_, meta, old["metadata"])
    unchanged = same(new, old)
    if core.managed_fields and not owned:
        managed.updated(type_, new, old, how.manager, core.now(), sub, unchanged=unchanged)
    if unchanged and managed.equal(new, old):
        return before
    return _store(core, type_, new, before, how)


def _store(core: Core, type_: ResourceType, new: Object, before: State, how: Writing) -> State:
    meta = new["metadata"]
    state = make_state(type_, new, core.store.next_revision())
    if how.dry_run:
        return state
    collection = core.collection(type_)
    if meta.get("deletionTimestamp") and not meta.get("finalizers") and not _is_graceful(type_, meta, new):
        # The object goes as it was stored: the API server does not write the update that emptied its finalizers.
        last = make_state(type_, loaded(type_, before), core.store.next_revision())
        core.store.remove(collection, last)
        return make_state(type_, new, before.version)
    core.store.put(collection, state)
    return state


def _is_graceful(type_: ResourceType, meta: dict[str, Any], obj: Object) -> bool:
    if type_.plural == "namespaces" and not type_.group:
        return bool((obj.get("spec") or {}).get("finalizers"))
    return bool(meta.get("deletionGracePeriodSeconds"))


def _check_versions(type_: ResourceType, meta: dict[str, Any], old: dict[str, Any]) -> None:
    name = old["name"]
    uid = meta.get("uid")
    if uid and uid != old["uid"]:
        where = f"{old['namespace']}/{name}" if type_.namespaced else name
        why = (
            f"StorageError: invalid object, Code: 4, Key: /registry/{type_.plural}/{where}, ResourceVersion: 0, "
            f"AdditionalErrorMsg: Precondition failed: UID in precondition: {uid}, UID in object meta: {old['uid']}"
        )
        raise errors.conflict(type_.group, type_.plural, name, why)
    version = meta.get("resourceVersion")
    if version in (None, "", "0"):
        if not type_.unconditional_update:
            text = "Invalid value: 0: must be specified for an update"
            cause = errors.Cause("FieldValueInvalid", "metadata.resourceVersion", text)
            raise errors.invalid(type_.group, type_.plural if type_.custom else type_.kind, name, [cause])
    elif version != old["resourceVersion"]:
        if not str(version).isdigit():
            raise errors.internal_plain(f'strconv.ParseUint: parsing "{version}": invalid syntax')
        raise errors.conflict(type_.group, type_.plural, name, errors.MODIFIED)


def _check_finalizers(type_: ResourceType, meta: dict[str, Any], old: dict[str, Any]) -> None:
    if not old.get("deletionTimestamp"):
        return
    fresh = [name for name in meta.get("finalizers") or () if name not in (old.get("finalizers") or ())]
    if fresh:
        said = ", ".join(f'"{name}"' for name in fresh)
        text = (
            "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers "
            f"[]string{{{said}}}"
        )
        cause = errors.Cause("FieldValueForbidden", "metadata.finalizers", text)
        raise errors.invalid(
            type_.group, type_.kind, old["name"], [cause] if type_.custom else [cause, cause]
        )


_SYSTEM = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "selfLink",
)


def _keep(type_: ResourceType, new: Object, old: Object, sub: str) -> None:
    """Puts back what this update may not change."""
    meta, before = new["metadata"], old["metadata"]
    for name in _SYSTEM:
        meta.pop(name, None)
        if name in before:
            meta[name] = before[name]
    meta.setdefault("generateName", before.get("generateName"))
    if sub in ("status", "approval"):
        status = new.get("status")
        for name in {*new, *old} - {"metadata", "status", "kind", "apiVersion"}:
            _copy(new, old, name)
        if status is not None:
            new["status"] = status
        else:
            new.pop("status", None)
        if type_.collection not in _STATUS_KEEPS_METADATA:
            for name in ("labels", "annotations", "finalizers", "ownerReferences"):
                _copy(meta, before, name)
    elif sub == "finalize":
        _copy(new, old, "status")
    elif type_.has_status and sub == "":
        _copy(new, old, "status")
        if type_.collection == "namespaces":
            new.setdefault("spec", {})["finalizers"] = (old.get("spec") or {}).get("finalizers")


def _copy(new: dict[str, Any], old: dict[str, Any], name: str) -> None:
    if name in old:
        new[name] = old[name]
    else:
        new.pop(name, None)


def _bump_generation(type_: ResourceType, new: Object, old: Object) -> None:
    if not (type_.has_generation or type_.custom):
        return
    if type_.custom:
        left_out = {"metadata", "status"} if type_.has_status else {"metadata"}
        changed = any(new.get(key) != old.get(key) for key in {*new, *old} - left_out)
    else:
        changed = new.get("spec") != old.get("spec")
    if changed:
        new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
    if type_.collection == "daemonsets.apps" and new["spec"]["template"] != old["spec"]["template"]:
        count = int(old["metadata"]["annotations"][TEMPLATE_GENERATION])
        new["metadata"]["annotations"][TEMPLATE_GENERATION] = str(count + 1)


def replace(
    core: Core,
    type_: ResourceType,
    namespace: str | None,
    name: str,
    obj: Object,
    how: Writing = DEFAULT,
    *,
    sub: str = "",
) -> tuple[State, bool]:
    """PUT: (state, whether it was created)."""
    given = (obj.get("metadata") or {}).get("name")
    if given and given != name:
        raise errors.bad_request(
            f"the name of the object ({given}) does not match the name on the URL ({name})"
        )
    if core.find(type_, namespace, name) is None and not sub and type_.collection in _CREATE_ON_UPDATE:
        obj.setdefault("metadata", {})["name"] = name
        return create(core, type_, namespace, obj, how), True
    return update(core, type_, namespace, name, lambda _: obj, how, sub=sub), False
