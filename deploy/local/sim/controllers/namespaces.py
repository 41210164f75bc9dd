"""Namespaces: what every one gets, and how one goes."""

from __future__ import annotations

from collections.abc import Iterable

from deploy.local.sim.bootstrap import furnish
from deploy.local.sim.controllers.manager import Controller
from deploy.local.sim.deletes import Options, delete
from deploy.local.sim.objects import metadata
from deploy.local.sim.store import Change, Collection
from deploy.local.sim.types import Object


class Namespaces(Controller):
    """Makes `default` and `kube-root-ca.crt`; empties a namespace that is being deleted, then lets it go."""

    watches = ("*",)
    authority = ""

    def keys_of(self, collection: Collection, change: Change) -> Iterable[str]:
        if collection.name == "namespaces":
            yield change.state.key
        elif change.kind == "DELETED" and change.state.namespace:
            found = self.core.store.collection("namespaces").live.get(change.state.namespace)
            restored = collection.name in ("serviceaccounts", "configmaps")
            if found is not None and (restored or b'"deletionTimestamp":' in found.raw):
                yield change.state.namespace

    def reconcile(self, key: str) -> None:
        namespace = self.find("namespaces", key)
        if namespace is None:
            return
        if not namespace["metadata"].get("deletionTimestamp"):
            furnish(self.core, key, self.authority)
            return
        left = self._empty(key)
        if not left and (namespace["spec"].get("finalizers") or []):
            self.change("namespaces", key, _finalize, sub="finalize")

    def _empty(self, name: str) -> bool:
        """Deletes the namespace's contents; whether some is left, held by finalizers or grace."""
        left = False
        for collection in list(self.core.store.collections.values()):
            type_ = self.core.catalog.by_collection(collection.name)
            if type_ is None or not type_.namespaced:
                continue
            for key in list(collection.each(f"{name}/")):
                state = collection.live[key]
                gone = False
                if not metadata(state).get("deletionTimestamp"):
                    _, gone = delete(self.core, type_, name, state.name, Options(propagation="Background"))
                left = left or not gone
        return left


def _finalize(namespace: Object) -> Object:
    namespace["spec"]["finalizers"] = []
    return namespace
