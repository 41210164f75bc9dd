"""managedFields: who set which field, and server-side apply on top of it.

Field sets are nested dicts: {"f:spec": {"f:replicas": None}}; None is a leaf, a dict under "." owns the field itself
too. Source: KEP-555, sigs.k8s.io/structured-merge-diff. Lists by `listkeys`; custom types by their schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from deploy.local.sim import listkeys
from deploy.local.sim.errors import Refused
from deploy.local.sim.objects import decode, encode
from deploy.local.sim.types import Object, ResourceType

Fields = dict[str, Any]
Path = tuple[str, ...]
Paths = set[Path]

_NOT_TRACKED = frozenset({
    "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp",
    "deletionGracePeriodSeconds", "managedFields", "selfLink",
})  # fmt: skip


def keys_of(type_: ResourceType, path: Path, items: list[Any]) -> tuple[str, ...] | str | None:
    """How the list at `path` merges: keys of its items, "set", or None (atomic). `path` has no list elements in it."""
    if type_.custom:
        schema: Any = type_.schema or {}
        if path[0] == "metadata":
            return "set" if path[-1] in listkeys.SETS else listkeys.apply_keys(path, items)
        for name in path:
            schema = (schema.get("items") or schema) if isinstance(schema, Mapping) else {}
            schema = (schema.get("properties") or {}).get(name) or schema.get("additionalProperties") or {}
            if not isinstance(schema, Mapping):
                return None
        kind = schema.get("x-kubernetes-list-type")
        if kind == "map":
            return tuple(schema.get("x-kubernetes-list-map-keys") or ())
        return "set" if kind == "set" else None
    if path[-1] in listkeys.SETS:
        return "set"
    return listkeys.apply_keys(path, items)


_ATOMIC = frozenset({
    "selector", "nodeSelector", "resourceFieldRef", "fieldRef", "configMapKeyRef", "secretKeyRef", "roleRef",
})  # fmt: skip


def _is_atomic_map(type_: ResourceType, path: Path) -> bool:
    return not type_.custom and path[-1] in _ATOMIC and path[0] in ("spec", "roleRef")


def leaves(type_: ResourceType, obj: Object) -> dict[Path, Any]:
    """Every field of the object that a manager can own: path of `f:`/`k:`/`v:` elements -> value (None for maps)."""
    found: dict[Path, Any] = {}
    for name, value in obj.items():
        if name in ("apiVersion", "kind"):
            continue
        if name == "metadata":
            for inner, one in value.items():
                if inner not in _NOT_TRACKED and one not in (None, "", {}, []):
                    _walk(type_, one, ("f:metadata", f"f:{inner}"), ("metadata", inner), found)
        else:
            _walk(type_, value, (f"f:{name}",), (name,), found)
    return found


#: Structs that even an empty object of the built-in types has: nobody comes to own them.
_ALWAYS_THERE = frozenset({
    ("spec",), ("status",), ("spec", "containers"), ("spec", "strategy"), ("spec", "updateStrategy"),
    ("spec", "template"), ("spec", "template", "metadata"), ("spec", "template", "spec"),
    ("spec", "template", "spec", "containers"), ("spec", "jobTemplate"), ("involvedObject",), ("source",),
    ("status", "daemonEndpoints"), ("status", "daemonEndpoints", "kubeletEndpoint"), ("status", "nodeInfo"),
    ("status", "loadBalancer"),
})  # fmt: skip


def _walk(type_: ResourceType, value: Any, path: Path, names: Path, found: dict[Path, Any]) -> None:
    owned = type_.custom or names not in _ALWAYS_THERE
    if isinstance(value, dict) and value and not _is_atomic_map(type_, names):
        if owned:
            found[(*path, ".")] = None
        for name, inner in value.items():
            _walk(type_, inner, (*path, f"f:{name}"), (*names, name), found)
        return
    if isinstance(value, list) and value:
        keys = keys_of(type_, names, value)
        if keys is not None:
            if owned:
                found[(*path, ".")] = None
            for item in value:
                _walk_item(type_, item, keys, path, names, found)
            return
    if owned or value not in ({}, []):
        found[path] = value


def _walk_item(
    type_: ResourceType,
    item: Any,
    keys: tuple[str, ...] | str,
    path: Path,
    names: Path,
    found: dict[Path, Any],
) -> None:
    if keys == "set":
        found[(*path, f"v:{encode(item).decode()}")] = item
        return
    element = (*path, item_element(item, keys))
    found[(*element, ".")] = None
    for name, inner in item.items():
        _walk(type_, inner, (*element, f"f:{name}"), (*names, name), found)


def item_element(item: Mapping[str, Any], keys: tuple[str, ...] | str) -> str:
    """The path element of a list item: `k:{"name":"a"}`."""
    known = {key: item.get(key, "TCP" if key == "protocol" else None) for key in sorted(keys)}
    return "k:" + encode({key: value for key, value in known.items() if value is not None}).decode()


def to_fields(paths: Paths) -> Fields:
    """FieldsV1 of a set of paths."""
    root: Fields = {}
    for path in sorted(paths):
        here = root
        for element in path:
            here = here.setdefault(element, {})
    return root


def from_fields(fields: Mapping[str, Any], path: Path = ()) -> Iterator[Path]:
    """The paths of a FieldsV1."""
    for element, inner in fields.items():
        if inner:
            yield from from_fields(inner, (*path, element))
        else:
            yield (*path, element)


def _changed(type_: ResourceType, new: Object, old: Object) -> tuple[Paths, Paths]:
    """(paths set or changed, paths removed)."""
    now, before = leaves(type_, new), leaves(type_, old)
    changed = {path for path, value in now.items() if path not in before or before[path] != value}
    return changed, set(before) - set(now)


def created(type_: ResourceType, obj: Object, manager: str, time: str) -> None:
    """A new object's managedFields: all of it is its creator's."""
    paths = {path for path in leaves(type_, obj) if not _is_status(type_, path)}
    obj["metadata"]["managedFields"] = [_entry(type_, manager, "Update", time, "", paths)] if paths else []


def _is_status(type_: ResourceType, path: Path) -> bool:
    return type_.has_status and path[0] == "f:status"


def _entry(
    type_: ResourceType, manager: str, operation: str, time: str, sub: str, paths: Paths
) -> dict[str, Any]:
    entry = {
        "manager": manager,
        "operation": operation,
        "apiVersion": type_.group_version,
        "time": time,
        "fieldsType": "FieldsV1",
        "fieldsV1": to_fields(paths),
    }
    if sub:
        entry["subresource"] = sub
    return entry


def updated(
    type_: ResourceType, new: Object, old: Object, manager: str, time: str, sub: str, *, unchanged: bool
) -> None:
    """What an update leaves in managedFields: the changed fields are now the writer's and nobody else's."""
    given = new["metadata"].get("managedFields")
    entries = deepcopy(old["metadata"].get("managedFields") or [])
    if given == [{}] or given == []:
        entries = []
    if unchanged and given not in ([{}], []):
        new["metadata"]["managedFields"] = entries
        return
    changed, removed = _changed(type_, new, old)
    if sub != "status":
        changed = {path for path in changed if not _is_status(type_, path)}
    new["metadata"]["managedFields"] = _assign(type_, entries, changed, removed, manager, "Update", time, sub)


def _assign(
    type_: ResourceType, entries: list[dict[str, Any]], changed: Paths, removed: Paths, manager: str, operation: str,
    time: str, sub: str,
) -> list[dict[str, Any]]:  # fmt: skip
    """The entries with `changed` moved to the manager and `removed` gone."""
    kept: list[dict[str, Any]] = []
    own: dict[str, Any] | None = None
    for entry in entries:
        paths = set(from_fields(entry.get("fieldsV1") or {}))
        mine = (entry["manager"], entry["operation"], entry.get("subresource", "")) == (
            manager,
            operation,
            sub,
        )
        left = paths - removed
        if mine:
            own = entry
            entry["fieldsV1"] = to_fields(left | changed)
            if changed or left != paths:
                entry["time"] = time
            kept.append(entry)
            continue
        # Containers (".") may be owned by many; a value has changed hands.
        left -= {path for path in changed if path[-1] != "."}
        if left != paths:
            entry["fieldsV1"] = to_fields(left)
        if left:
            kept.append(entry)
    if own is None and changed:
        kept.append(_entry(type_, manager, operation, time, sub, changed))
    return _sorted([entry for entry in kept if entry["fieldsV1"]])


def _sorted(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(
        entries,
        key=lambda e: (
            e["operation"],
            e.get("time", ""),
            e["manager"],
            e["apiVersion"],
            e.get("subresource", ""),
        ),
    )


def equal(new: Object, old: Object) -> bool:
    """Whether a write that changes no value changes managedFields beyond their times."""
    return _untimed(new) == _untimed(old)


def _untimed(obj: Object) -> list[dict[str, Any]]:
    entries = obj["metadata"].get("managedFields") or []
    return [{key: value for key, value in entry.items() if key != "time"} for entry in entries]


def apply(
    type_: ResourceType, live: Object, wanted: Object, manager: str, *, force: bool, time: str, sub: str = ""
) -> Object:
    """Server-side apply: the live object with the applied configuration merged in and what it no longer says removed.

    Raises Refused (409) with a cause per conflict unless `force`.
    """
    wanted = deepcopy(wanted)
    wanted_leaves = {path: value for path, value in leaves(type_, wanted).items() if not _is_bare(path)}
    if sub != "status":
        wanted_leaves = {p: v for p, v in wanted_leaves.items() if not _is_status(type_, p)}
        wanted.pop("status", None) if type_.has_status else None
    live_leaves = leaves(type_, live)
    entries = deepcopy(live["metadata"].get("managedFields") or [])
    conflicts = _conflicts(entries, wanted_leaves, live_leaves, manager, sub)
    if conflicts and not force:
        raise _conflict(conflicts)
    own: Paths = set()
    others: Paths = set()
    for entry in entries:
        paths = set(from_fields(entry.get("fieldsV1") or {}))
        if (entry["manager"], entry["operation"], entry.get("subresource", "")) == (manager, "Apply", sub):
            own |= paths
        else:
            others |= paths
    merged: Object = _merge(type_, live, wanted, ())
    dropped = {path for path in own - set(wanted_leaves) if path not in others}
    dropped |= _whole_items(dropped, live_leaves, others)
    _drop(merged, dropped)
    taken = {
        path for path, value in wanted_leaves.items() if path in live_leaves and live_leaves[path] != value
    }
    merged["metadata"]["managedFields"] = _applied(
        type_, entries, set(wanted_leaves), taken | dropped, manager, time, sub
    )
    return merged


def _whole_items(dropped: Paths, live: Mapping[Path, Any], others: Paths) -> Paths:
    """Everything in the list items that go, defaults too, unless somebody else owns something in them."""
    items = [path[:-1] for path in dropped if path[-1] == "." and path[-2].startswith("k:")]
    found: Paths = set()
    for item in items:
        size = len(item)
        if not any(path[:size] == item for path in others):
            found |= {path for path in live if path[:size] == item}
    return found


def _is_bare(path: Path) -> bool:
    """A map or list itself: an applied configuration owns what it holds only, but items of lists also themselves."""
    return path[-1] == "." and not path[-2].startswith("k:")


def _conflicts(
    entries: list[dict[str, Any]], wanted: dict[Path, Any], live: dict[Path, Any], manager: str, sub: str
) -> list[tuple[dict[str, Any], Path]]:
    found = []
    for entry in entries:
        if entry["manager"] == manager and entry["operation"] == "Apply":
            continue
        owned = set(from_fields(entry.get("fieldsV1") or {}))
        for path in sorted(owned & set(wanted)):
            if path[-1] != "." and path in live and live[path] != wanted[path]:
                found.append((entry, path))
    return found


def _conflict(conflicts: list[tuple[dict[str, Any], Path]]) -> Refused:
    causes, lines = [], []
    for entry, path in conflicts:
        who = f'conflict with "{entry["manager"]}"'
        if entry.get("subresource"):
            who += f' with subresource "{entry["subresource"]}"'
        if entry["operation"] == "Update":
            who += f" using {entry['apiVersion']}"
        causes.append({"reason": "FieldManagerConflict", "message": who, "field": said(path)})
        lines.append((who, said(path)))
    count = len(causes)
    if count == 1:
        message = f"Apply failed with 1 conflict: {lines[0][0]}: {lines[0][1]}"
    else:
        grouped: dict[str, list[str]] = {}
        for who, field in lines:
            grouped.setdefault(f"conflicts{who.removeprefix('conflict')}", []).append(field)
        text = "\n".join(f"{who}:\n" + "\n".join(f"- {f}" for f in fields) for who, fields in grouped.items())
        message = f"Apply failed with {count} conflicts: {text}"
    return Refused(409, "Conflict", message, details={"causes": causes})


def said(path: Path) -> str:
    """A path as messages write it: `.spec.containers[name="a"].image`."""
    text = ""
    for element in path:
        kind, _, rest = element.partition(":")
        if kind == "f":
            text += f".{rest}"
        elif kind == "k":
            keys = decode(rest)
            text += "[" + ",".join(f"{key}={encode(value).decode()}" for key, value in keys.items()) + "]"
        elif kind == "v":
            text += f"[={rest}]"
    return text


def _applied(
    type_: ResourceType,
    entries: list[dict[str, Any]],
    wanted: Paths,
    taken: Paths,
    manager: str,
    time: str,
    sub: str,
) -> list[dict[str, Any]]:
    kept = []
    own: dict[str, Any] | None = None
    for entry in entries:
        if (entry["manager"], entry["operation"], entry.get("subresource", "")) == (manager, "Apply", sub):
            own = entry
            continue
        left = set(from_fields(entry.get("fieldsV1") or {})) - {path for path in taken if path[-1] != "."}
        if left:
            entry["fieldsV1"] = to_fields(left)
            kept.append(entry)
    if wanted:
        fresh = _entry(type_, manager, "Apply", time, sub, wanted)
        if own is not None and own.get("fieldsV1") == fresh["fieldsV1"]:
            fresh["time"] = own.get("time", time)
        kept.append(fresh)
    return _sorted(kept)


def _merge(type_: ResourceType, live: Any, wanted: Any, names: Path) -> Any:
    if isinstance(wanted, dict) and isinstance(live, dict) and not (names and _is_atomic_map(type_, names)):
        result = dict(live)
        for name, value in wanted.items():
            if names == ("metadata",) and name in _NOT_TRACKED:
                continue
            result[name] = _merge(type_, live.get(name), value, (*names, name))
        return result
    if isinstance(wanted, list) and isinstance(live, list) and names:
        keys = keys_of(type_, names, [*live, *wanted])
        if keys == "set":
            return live + [item for item in wanted if item not in live]
        if keys is not None:
            return _merge_items(type_, live, wanted, keys, names)
    return wanted


def _merge_items(
    type_: ResourceType, live: list[Any], wanted: list[Any], keys: tuple[str, ...] | str, names: Path
) -> list[Any]:
    result = list(live)
    places = {item_element(item, keys): number for number, item in enumerate(result)}
    for item in wanted:
        at = places.get(item_element(item, keys))
        if at is None:
            result.append(item)
        else:
            result[at] = _merge(type_, result[at], item, names)
    return result


def _drop(obj: Any, paths: Paths) -> None:
    """Removes the fields at these paths, deepest first; a container goes when nothing is left in it."""
    items = {path[:-1] for path in paths if path[-1] == "." and path[-2].startswith("k:")}
    for item in items:
        # By its key, which must still be there.
        inner = {path for path in paths if path[: len(item)] == item}
        if len(inner) > 1:
            _drop_one(obj, item, only_empty=False)
            paths = paths - inner
    for path in sorted(paths, key=len, reverse=True):
        whole = path[-1] == "."
        _drop_one(obj, path[:-1] if whole else path, only_empty=whole)


def _drop_one(obj: Any, path: Path, *, only_empty: bool) -> None:
    here, parents = obj, []
    for element in path:
        parents.append((here, element))
        here = _child(here, element)
        if here is None:
            return
    if only_empty and here and not _only_keys(here, path[-1]):
        return
    parent, element = parents[-1]
    kind, _, rest = element.partition(":")
    if kind == "f":
        parent.pop(rest, None)
    elif here in parent:
        parent.remove(here)


def _only_keys(item: Any, element: str) -> bool:
    return element.startswith("k:") and isinstance(item, dict) and set(item) <= set(decode(element[2:]))


def _child(here: Any, element: str) -> Any:
    kind, _, rest = element.partition(":")
    if kind == "f":
        return here.get(rest) if isinstance(here, dict) else None
    if not isinstance(here, list):
        return None
    value = decode(rest)
    if kind == "v":
        return value if value in here else None
    for item in here:
        if all(item.get(key, "TCP" if key == "protocol" else None) == one for key, one in value.items()):
            return item
    return None
