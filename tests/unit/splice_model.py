"""Plain-Python twin of `_fastpath.splice`: the same answers, by decoding everything. What it says is right."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from _fastpath.splice import CLUSTER_ANNOTATION, HOST_OWNERS_ANNOTATION, MEMBER_OWNERS_ANNOTATION

OWNED = ("involvedObject", "regarding", "related")


class SpliceError(ValueError):
    pass


class Owner(NamedTuple):
    uid: str
    api_version: str
    kind: str
    name: str


def load(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError as error:
        raise SpliceError(str(error)) from error


def dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def strings(value: Any) -> dict[str, str]:
    return {k: v for k, v in value.items() if isinstance(v, str)} if isinstance(value, dict) else {}


class Meta:
    def __init__(self, obj: dict[str, Any], start: int, end: int) -> None:
        metadata = obj.get("metadata", {})
        self.obj, self.start, self.end = obj, start, end
        self.name, self.namespace = text(metadata.get("name")), text(metadata.get("namespace"))
        self.uid, self.version = text(metadata.get("uid")), text(metadata.get("resourceVersion"))
        self.deleting = metadata.get("deletionTimestamp") is not None
        owners = metadata.get("ownerReferences")
        self.owners = tuple(
            Owner(*[o[k] if isinstance(o.get(k), str) else "" for k in ("uid", "apiVersion", "kind", "name")])
            for o in (owners if isinstance(owners, list) else [])
            if isinstance(o, dict)
        )

    def labels(self) -> dict[str, str]:
        return strings(self.obj["metadata"].get("labels"))

    def annotations(self) -> dict[str, str]:
        return strings(self.obj["metadata"].get("annotations"))

    def annotation(self, key: str) -> str | None:
        return self.annotations().get(key)


def scan(buf: bytes | bytearray | memoryview, start: int = 0, whole: bool = False) -> Meta:
    data = bytes(buf).decode("latin-1")[start:]
    lead = len(data) - len(data.lstrip(" \n\r\t"))
    try:
        _, end = json.JSONDecoder(strict=False).raw_decode(data[lead:])
    except ValueError as error:
        raise SpliceError(str(error)) from error
    obj = load(data[lead : lead + end].encode("latin-1"))
    if not isinstance(obj, dict) or not isinstance(obj.get("metadata"), dict):
        raise SpliceError("no metadata")
    return Meta(obj, start + lead, start + lead + end if whole else -1)


def scan_frame(frame: bytes) -> tuple[str, Meta]:
    event = load(frame)
    if not isinstance(event, dict) or not isinstance(event.get("type"), str):
        raise SpliceError("no type")
    obj = event.get("object")
    bare = isinstance(obj, dict) and "metadata" not in obj and event["type"] == "ERROR"
    if not isinstance(obj, dict) or not (bare or isinstance(obj.get("metadata"), dict)):
        raise SpliceError("no object")
    return event["type"], Meta(obj, -1, -1)


def references(notes: dict[str, Any], key: str) -> list[Any] | None:
    try:
        value = json.loads(notes[key])
    except (KeyError, TypeError, ValueError):
        return None
    return value if isinstance(value, list) and all(isinstance(r, dict) for r in value) else None


def merged(refs: list[Any], more: list[Any]) -> list[Any]:
    have = {uid_of(r) for r in refs}
    return refs + [r for r in more if uid_of(r) not in have]


def uid_of(ref: Any) -> str | None:
    uid = ref.get("uid") if isinstance(ref, dict) else None
    return uid if isinstance(uid, str) else None


def map_references(
    refs: Any, owners: Mapping[str, str | None]
) -> tuple[list[Any], list[Any], dict[str, str]]:
    kept, removed, replaced = [], [], {}
    for ref in refs if isinstance(refs, list) else []:
        uid = uid_of(ref)
        if uid is None or uid not in owners:
            kept.append(ref)
            continue
        other = owners[uid]
        if other is None:
            removed.append(ref)
        else:
            kept.append({**ref, "uid": other})
            replaced[uid] = other
    return kept, removed, replaced


def rename(value: Any, replaced: Mapping[str, str]) -> Any:
    """Keys k:{"uid":"…"} in managedFields."""
    if isinstance(value, list):
        return [rename(v, replaced) for v in value]
    if not isinstance(value, dict):
        return value
    out = {}
    for key, inner in value.items():
        for old, new in replaced.items():
            key = key.replace(f'"uid":"{old}"', f'"uid":"{new}"')
        out[key] = rename(inner, replaced)
    return out


def map_object_uids(obj: dict[str, Any], object_uids: Mapping[str, str] | None) -> None:
    for field in OWNED:
        uid = uid_of(obj.get(field))
        if uid in (object_uids or {}):
            obj[field]["uid"] = (object_uids or {})[uid]


def splice(
    buf: bytes | bytearray | memoryview,
    meta: Meta,
    version: bytes,
    cluster: bytes | None,
    owners: Mapping[str, str | None] | None = None,
    end: int = -1,
    object_uids: Mapping[str, str] | None = None,
) -> bytes:
    obj = json.loads(json.dumps(meta.obj))
    metadata = obj["metadata"]
    metadata["resourceVersion"] = version.decode()
    notes = metadata.get("annotations") if isinstance(metadata.get("annotations"), dict) else {}
    had = len(notes) > 0
    refs = metadata.get("ownerReferences")
    kept, removed, replaced = map_references(refs, owners or {})
    hosts = references(notes, HOST_OWNERS_ANNOTATION)
    if hosts is not None:
        kept = merged(kept, hosts)
        del notes[HOST_OWNERS_ANNOTATION]
    notes.pop(MEMBER_OWNERS_ANNOTATION, None)
    if removed:
        notes[MEMBER_OWNERS_ANNOTATION] = dump(removed).decode("utf-8", "surrogatepass")
    if cluster is not None:
        notes[CLUSTER_ANNOTATION] = cluster.decode()
    if notes:
        metadata["annotations"] = notes
    elif had:
        metadata.pop("annotations", None)
    if kept:
        metadata["ownerReferences"] = kept
    elif removed:
        metadata.pop("ownerReferences", None)
    if "managedFields" in metadata:
        metadata["managedFields"] = rename(metadata["managedFields"], replaced)
    map_object_uids(obj, object_uids)
    return dump(obj)


def unsplice(
    buf: bytes,
    version: bytes | None,
    owners: Mapping[str, str | None] | None = None,
    object_uids: Mapping[str, str] | None = None,
) -> bytes:
    obj = load(buf)
    if not isinstance(obj, dict):
        raise SpliceError("no object")
    map_object_uids(obj, object_uids)
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict):
        if version is not None:
            raise SpliceError("no metadata")
        return dump(obj)
    notes = metadata.get("annotations") if isinstance(metadata.get("annotations"), dict) else {}
    had = len(notes)
    restored = references(notes, MEMBER_OWNERS_ANNOTATION)
    notes.pop(CLUSTER_ANNOTATION, None)
    notes.pop(MEMBER_OWNERS_ANNOTATION, None)
    kept, moved, replaced = map_references(metadata.get("ownerReferences"), owners or {})
    kept = merged(kept, restored or [])
    if moved:
        notes[HOST_OWNERS_ANNOTATION] = dump(moved).decode("utf-8", "surrogatepass")
    if kept:
        metadata["ownerReferences"] = kept
    elif moved:
        metadata.pop("ownerReferences")
    if notes and (had != len(notes) or moved):
        metadata["annotations"] = notes
    elif had and not notes:
        del metadata["annotations"]
    if "managedFields" in metadata:
        metadata["managedFields"] = rename(metadata["managedFields"], replaced)
    order = metadata.get("$setElementOrder/ownerReferences")
    if isinstance(order, list):
        metadata["$setElementOrder/ownerReferences"] = map_references(order, owners or {})[0]
    metadata.pop("resourceVersion", None)
    if version is not None:
        metadata["resourceVersion"] = version.decode()
    return dump(obj)


def cut_list(data: bytes, field: str = "items") -> tuple[list[Any], dict[str, Any]]:
    """(items, ListMeta) of a whole list."""
    value = load(data)
    if not isinstance(value, dict) or not (value.get(field) is None or isinstance(value[field], list)):
        raise SpliceError("no list")
    return value.get(field) or [], value.get("metadata") or {}


def table_row(row: bytes) -> dict[str, Any]:
    value = load(row)
    if not isinstance(value, dict):
        raise SpliceError("no row")
    return value


def insert_cell(row: bytes, index: int, cell_json: bytes) -> bytes:
    value = table_row(row)
    value["cells"].insert(max(index, 0), json.loads(cell_json))
    return dump(value)


def permute_cells(row: bytes, order: Sequence[int]) -> bytes:
    value = table_row(row)
    cells = value["cells"]
    value["cells"] = [cells[i] if 0 <= i < len(cells) else None for i in order]
    return dump(value)


def plain(raw: bytes) -> Any:
    """The object, with references that an annotation keeps as text decoded: their escapes may differ."""
    obj = json.loads(raw)
    notes = (obj.get("metadata") or {}).get("annotations") or {}
    for key in (HOST_OWNERS_ANNOTATION, MEMBER_OWNERS_ANNOTATION):
        refs = references(notes, key)
        if refs is not None:
            notes[key] = refs
    return obj
