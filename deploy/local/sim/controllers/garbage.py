"""Garbage collection by ownerReferences: background, foreground and orphan.

Source: k8s.io/kubernetes pkg/controller/garbagecollector.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from deploy.local.sim.controllers.manager import Controller
from deploy.local.sim.controllers.owners import owner_references
from deploy.local.sim.deletes import FOREGROUND, ORPHAN, Options, delete
from deploy.local.sim.errors import Refused
from deploy.local.sim.objects import metadata
from deploy.local.sim.store import Change, Collection, object_key
from deploy.local.sim.types import Object
from deploy.local.sim.writes import Writing, update

_BY_COLLECTOR = Writing("kube-controller-manager")


class GarbageCollector(Controller):
    """Keys are `<collection> <key>` of objects that may have to go, or whose deletion waits for their dependents."""

    watches = ("*",)

    def keys_of(self, collection: Collection, change: Change) -> Iterable[str]:
        name = collection.name
        if change.kind == "DELETED":
            uid = metadata(change.state)["uid"]
            for place in self.manager.owners.dependents(uid):
                yield " ".join(place)
            for owner in owner_references(change.state):
                found = self._place_of(owner, change.state.namespace)
                if found is not None:
                    yield " ".join(found)
            return
        if owner_references(change.state) or b'"deletionTimestamp":' in change.state.raw:
            yield f"{name} {change.state.key}"

    def reconcile(self, key: str) -> None:
        collection, _, key = key.partition(" ")
        type_ = self.core.catalog.by_collection(collection)
        state = self.core.store.collection(collection).live.get(key)
        if type_ is None or state is None:
            return
        meta = metadata(state)
        if meta.get("deletionTimestamp"):
            finalizers = meta.get("finalizers") or ()
            if ORPHAN in finalizers:
                self._orphan(collection, key, meta)
            elif FOREGROUND in finalizers:
                self._foreground(collection, key, meta)
            return
        owners = meta.get("ownerReferences") or []
        alive = [owner for owner in owners if self._lives(owner, state.namespace)]
        if owners and not alive:
            self._delete(collection, key, Options(propagation="Background", uid=meta["uid"]))
        elif len(alive) < len(owners):
            self._rewrite(collection, key, lambda obj: obj["metadata"].update(ownerReferences=alive))

    def _place_of(self, owner: dict[str, Any], namespace: str) -> tuple[str, str] | None:
        type_ = self.core.catalog.by_kind(owner.get("apiVersion", ""), owner.get("kind", ""))
        if type_ is None:
            return None
        return type_.collection, object_key(namespace if type_.namespaced else None, owner["name"])

    def _lives(self, owner: dict[str, Any], namespace: str) -> bool:
        """An owner of a kind that is not served counts as alive, as it does to the real collector."""
        place = self._place_of(owner, namespace)
        if place is None:
            return True
        state = self.core.store.collection(place[0]).live.get(place[1])
        return state is not None and metadata(state)["uid"] == owner["uid"]

    def _orphan(self, collection: str, key: str, meta: dict[str, Any]) -> None:
        uid = meta["uid"]
        for place in self.manager.owners.dependents(uid):
            self._rewrite(*place, lambda obj: _without_owner(obj, uid))
        self._rewrite(collection, key, lambda obj: _without_finalizer(obj, ORPHAN))

    def _foreground(self, collection: str, key: str, meta: dict[str, Any]) -> None:
        uid, blocking = meta["uid"], False
        for place in self.manager.owners.dependents(uid):
            state = self.core.store.collection(place[0]).live[place[1]]
            found = metadata(state)
            blocks = any(
                owner["uid"] == uid and owner.get("blockOwnerDeletion") for owner in found["ownerReferences"]
            )
            blocking = blocking or blocks
            if not found.get("deletionTimestamp"):
                self._delete(*place, Options(propagation="Foreground", uid=found["uid"]))
        if not blocking or not self.manager.owners.dependents(uid):
            self._rewrite(collection, key, lambda obj: _without_finalizer(obj, FOREGROUND))

    def _delete(self, collection: str, key: str, options: Options) -> None:
        type_ = self.core.catalog.by_collection(collection)
        namespace, _, name = key.rpartition("/")
        if type_ is not None and key in self.core.store.collection(collection).live:
            delete(self.core, type_, namespace or None, name, options)

    def _rewrite(self, collection: str, key: str, change: Any) -> None:
        type_ = self.core.catalog.by_collection(collection)
        namespace, _, name = key.rpartition("/")

        def apply(obj: Object) -> Object:
            change(obj)
            return obj

        if type_ is not None and key in self.core.store.collection(collection).live:
            try:
                update(self.core, type_, namespace or None, name, apply, _BY_COLLECTOR)
            except Refused:
                # An object that its own schema refuses by now cannot be rewritten; the real collector fails on it too.
                return


def _without_finalizer(obj: Object, finalizer: str) -> None:
    meta = obj["metadata"]
    meta["finalizers"] = [name for name in meta.get("finalizers") or () if name != finalizer]


def _without_owner(obj: Object, uid: str) -> None:
    meta = obj["metadata"]
    meta["ownerReferences"] = [owner for owner in meta.get("ownerReferences") or () if owner["uid"] != uid]
