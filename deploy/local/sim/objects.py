"""Objects as the store keeps them: metadata in one order, encoded once."""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping
from typing import Any

import msgspec

from deploy.local.sim.store import State, object_key
from deploy.local.sim.types import Object, ResourceType

_META_ORDER = (
    "name", "generateName", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp",
    "deletionTimestamp", "deletionGracePeriodSeconds", "labels", "annotations", "ownerReferences", "finalizers",
    "managedFields",
)  # fmt: skip
#: Lists and maps that are left out when empty.
_OMITTED = ("labels", "annotations", "ownerReferences", "finalizers", "managedFields")
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
_LONGEST_GENERATED = 58

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder().decode


def make_state(type_: ResourceType, obj: Object, version: int) -> State:
    """The stored form of an object, as `version`; `obj` may be in any version of its type and is left as it is."""
    meta = obj["metadata"]
    meta["resourceVersion"] = str(version)
    ordered = {name: meta[name] for name in _META_ORDER if meta.get(name) not in (None, "")}
    for name in _OMITTED:
        if not ordered.get(name, True):
            del ordered[name]
    body = {"metadata": ordered}
    for name, value in obj.items():
        if name not in ("metadata", "kind", "apiVersion"):
            body[name] = value
    if type_.to_storage is not None:
        body = type_.to_storage(body)
    key = object_key(ordered.get("namespace"), ordered["name"])
    return State(key, version, encode(body), ordered.get("labels") or {})


def full(type_: ResourceType, state: State) -> bytes:
    """The object's JSON as a get answers it."""
    raw = state.raw
    if type_.from_storage is not None:
        raw = encode(type_.from_storage(state.object()))
    return type_.prefix() + raw[1:]


def loaded(type_: ResourceType, state: State) -> Object:
    """A fresh decoded object with kind and apiVersion, in the type's version."""
    obj: Object = state.object()
    if type_.from_storage is not None:
        obj = type_.from_storage(obj)
    return {"kind": type_.kind, "apiVersion": type_.group_version, **obj}


class _Metadata(msgspec.Struct):
    metadata: msgspec.Raw


_decode_metadata = msgspec.json.Decoder(_Metadata).decode


def metadata_bytes(state: State) -> bytes:
    """The JSON of the object's metadata, without decoding it."""
    return bytes(_decode_metadata(state.raw).metadata)


def metadata(state: State) -> dict[str, Any]:
    """A fresh decoded copy of the metadata alone."""
    found: dict[str, Any] = decode(_decode_metadata(state.raw).metadata)
    return found


def new_uid(source: random.Random) -> str:
    return str(uuid.UUID(int=source.getrandbits(128), version=4))


def generated_name(prefix: str, source: random.Random) -> str:
    """The prefix, cut as the API server cuts it, and five letters."""
    return prefix[:_LONGEST_GENERATED] + "".join(source.choice(_SUFFIX) for _ in range(5))


def is_owned_by(meta: Mapping[str, Any], uid: str) -> bool:
    return any(owner.get("uid") == uid for owner in meta.get("ownerReferences") or ())


def controller_of(meta: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The ownerReference with `controller: true`."""
    for owner in meta.get("ownerReferences") or ():
        if owner.get("controller"):
            found: Mapping[str, Any] = owner
            return found
    return None


def same(one: Object, other: Object) -> bool:
    """Equal but for resourceVersion and managedFields: a write that changes nothing."""
    return _comparable(one) == _comparable(other)


def _comparable(obj: Object) -> Object:
    meta = {
        name: value
        for name, value in obj["metadata"].items()
        if name not in ("resourceVersion", "managedFields", "selfLink") and value not in (None, "", {}, [])
    }
    return {**obj, "metadata": meta}
