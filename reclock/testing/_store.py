"""Objects with versions, and what happened to them: one Kubernetes cluster's etcd, for tests."""

from __future__ import annotations

import asyncio
import builtins
import copy
import json
import uuid
from datetime import UTC, datetime
from typing import Any

from reclock._errors import AlreadyExists, Conflict, Expired, NotFound
from reclock._informer import Key, Object
from reclock._resource import Resource

Event = tuple[int, Resource, Object | None, Object | None]
"""(version, resource, before, after)."""


class Store:
    """Objects by resource and (namespace, name). Returned objects are the store's own: copy before changing."""

    def __init__(self) -> None:
        self.version = 100
        self.oldest = 100
        """Watches from before this are too old."""
        self.events: list[Event] = []
        self.moved = asyncio.Event()
        """Replaced at each change, set on the one that was waited for."""
        self.epoch = 0
        """Grows when watches are to end."""
        self.closed = False
        self._objects: dict[Resource, dict[Key, Object]] = {}

    def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        return self._objects.get(resource, {}).get((namespace, name))

    def list(self, resource: Resource) -> list[Object]:
        return [obj for _, obj in sorted(self._objects.get(resource, {}).items())]

    def put(self, resource: Resource, obj: Object) -> Object:
        """Create it, or replace it whatever its version is."""
        metadata = obj["metadata"]
        if self.get(resource, metadata.get("namespace", ""), metadata["name"]) is None:
            return self.create(resource, obj)
        return self.update(resource, {**obj, "metadata": {**metadata, "resourceVersion": ""}})

    def create(self, resource: Resource, obj: Object) -> Object:
        """AlreadyExists when it is there."""
        metadata = obj.setdefault("metadata", {})
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = f"{metadata['generateName']}{uuid.uuid4().hex[:5]}"
        key = (metadata.get("namespace", ""), metadata["name"])
        if key in self._objects.get(resource, {}):
            raise AlreadyExists(f'{resource.plural} "{key[1]}" already exists', reason="AlreadyExists")
        metadata.update(uid=str(uuid.uuid4()), generation=1, creationTimestamp=_now())
        return self._store(resource, key, None, obj)

    def update(self, resource: Resource, obj: Object, *, status: bool = False) -> Object:
        """Replace; Conflict when its resourceVersion is not the present one (empty: whatever it is)."""
        key = (obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        old = self.get(resource, *key)
        if old is None:
            raise NotFound(f'{resource.plural} "{key[1]}" not found', reason="NotFound")
        seen = obj["metadata"].get("resourceVersion")
        if seen and seen != old["metadata"]["resourceVersion"]:
            raise Conflict("the object has been modified; please apply your changes to the latest version", reason="Conflict")
        if status:
            obj = {**copy.deepcopy(old), "status": obj.get("status")}
        metadata = obj["metadata"]
        for name in ("uid", "generation", "creationTimestamp", "deletionTimestamp", "resourceVersion"):
            if name in old["metadata"]:
                metadata[name] = old["metadata"][name]
        if _same(old, obj):
            return old
        if old.get("spec") != obj.get("spec"):
            metadata["generation"] += 1
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            return self._remove(resource, key)
        return self._store(resource, key, old, obj)

    def delete(self, resource: Resource, namespace: str, name: str) -> Object:
        """Remove it, or mark it while it has finalizers. KeyError when there is none."""
        key = (namespace, name)
        old = self._objects[resource][key]
        if not old["metadata"].get("finalizers"):
            return self._remove(resource, key)
        if old["metadata"].get("deletionTimestamp"):
            return old
        marked = copy.deepcopy(old)
        marked["metadata"]["deletionTimestamp"] = _now()
        return self._store(resource, key, old, marked)

    def _store(self, resource: Resource, key: Key, old: Object | None, obj: Object) -> Object:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        self._objects.setdefault(resource, {})[key] = obj
        self._tell(resource, old, obj)
        return obj

    def _remove(self, resource: Resource, key: Key) -> Object:
        self.version += 1
        old = self._objects[resource].pop(key)
        last = copy.deepcopy(old)
        last["metadata"]["resourceVersion"] = str(self.version)
        self._tell(resource, last, None)
        return last

    def _tell(self, resource: Resource, old: Object | None, new: Object | None) -> None:
        self.events.append((self.version, resource, old, new))
        self._wake()

    def _wake(self) -> None:
        moved, self.moved = self.moved, asyncio.Event()
        moved.set()

    def after(self, version: int) -> builtins.list[Event]:
        """What happened since; Expired when that is not known any more."""
        if version < self.oldest:
            raise Expired(f"too old resource version: {version} ({self.oldest})", reason="Expired")
        return [event for event in self.events if event[0] > version]

    def compact(self) -> None:
        self.version += 1
        self.oldest = self.version
        self.events.clear()

    def break_watches(self) -> None:
        self.epoch += 1
        self._wake()

    def close(self) -> None:
        self.closed = True
        self.break_watches()


def _same(old: Object, new: Object) -> bool:
    return json.dumps(old, sort_keys=True) == json.dumps(new, sort_keys=True)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def merged(old: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7386), as a new value."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    made = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = merged(made.get(key), value)
    return made
