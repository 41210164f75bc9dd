"""Indexes of a controller's objects over all clusters: by owner always, by label, annotation or path as registered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from services.reconciler.work.spec import IndexSpec
from services.reconciler.work.spec_sources import OWNER

Obj = dict[str, Any]


class Ref(NamedTuple):
    """An indexed object; sorts as pages do."""

    cluster: str
    namespace: str
    name: str
    source: str
    uid: str


class Indexes:
    """Written by the feeds' handlers, read by QueryIndex. O(values of the object) for each event."""

    def __init__(self, specs: Iterable[IndexSpec]) -> None:
        self.specs = tuple(specs)
        self._refs: dict[tuple[str, str], set[Ref]] = {}
        self._objects: dict[tuple[str, str], dict[tuple[str, str], tuple[Ref, tuple[tuple[str, str], ...]]]] = {}

    @property
    def names(self) -> list[str]:
        """What can be asked."""
        return [OWNER, *(spec.name for spec in self.specs)]

    def __len__(self) -> int:
        """Objects that are in some index."""
        return sum(len(objects) for objects in self._objects.values())

    def put(self, cluster: str, source: str, obj: Obj) -> None:
        """Take an object's present values."""
        self.remove(cluster, source, obj)
        entries = tuple(sorted(set(self._entries(source, obj))))
        if not entries:
            return
        metadata = obj["metadata"]
        key = metadata.get("namespace", ""), metadata["name"]
        ref = Ref(cluster, *key, source, metadata.get("uid", ""))
        self._objects.setdefault((cluster, source), {})[key] = ref, entries
        for entry in entries:
            self._refs.setdefault(entry, set()).add(ref)

    def remove(self, cluster: str, source: str, obj: Obj) -> None:
        """Forget an object."""
        objects = self._objects.get((cluster, source))
        metadata = obj["metadata"]
        found = objects.pop((metadata.get("namespace", ""), metadata["name"]), None) if objects else None
        if found is not None:
            self._forget(*found)
            if not objects:
                del self._objects[cluster, source]

    def drop(self, cluster: str, source: str) -> None:
        """Forget all objects of one source in one cluster."""
        for found in self._objects.pop((cluster, source), {}).values():
            self._forget(*found)

    def find(self, index: str, value: str) -> list[Ref]:
        """Objects with that value, in order."""
        return sorted(self._refs.get((index, value), ()))

    def _forget(self, ref: Ref, entries: Iterable[tuple[str, str]]) -> None:
        for entry in entries:
            refs = self._refs[entry]
            refs.discard(ref)
            if not refs:
                del self._refs[entry]

    def _entries(self, source: str, obj: Obj) -> Iterator[tuple[str, str]]:
        metadata = obj["metadata"]
        for owner in metadata.get("ownerReferences") or ():
            yield OWNER, owner["uid"]
        for spec in self.specs:
            if spec.source and spec.source != source:
                continue
            if spec.path is not None:
                yield from ((spec.name, value) for value in spec.path.values(obj))
            else:
                texts = metadata.get("labels" if spec.kind == "label" else "annotations") or {}
                if spec.key in texts:
                    yield spec.name, texts[spec.key]
