"""A copy of one resource of every cluster of the fleet, with indexes; clusters that join later are followed too."""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from reclock._informer import Change, Informer, Key, Object
from reclock._resource import CLUSTERS, Resource
from reclock._tasks import Tasks

if TYPE_CHECKING:
    from reclock._fleet import ClusterInfo, Fleet

log = logging.getLogger("reclock")

IndexFunction: TypeAlias = Callable[[Object], Iterable[str]]
"""Returns the values under which an object is found; none is fine."""
Listener: TypeAlias = Callable[[str, Change], None]
"""Called with the cluster's name and what happened, in the cache's task; must not block. What it raises is logged:
the cache and the other listeners go on."""


@dataclass(frozen=True, slots=True)
class Found:
    """An object and where it is."""

    cluster: str
    object: Object


class Cache:
    """Made by `Fleet.cache`. Everything is read at once, without waiting; objects are shared: do not edit them."""

    def __init__(
        self,
        fleet: Fleet,
        resource: Resource,
        *,
        labels: str,
        namespace: str,
        clusters: Callable[[ClusterInfo], bool] | None,
    ) -> None:
        self.resource = resource
        self.indexes: dict[str, IndexFunction] = {}
        self._fleet = fleet
        self._labels, self._namespace, self._clusters = labels, namespace, clusters
        self._members: dict[str, Informer] = {}
        self._tasks = Tasks(f"cache of {resource}")
        self._running: dict[str, asyncio.Task[None]] = {}
        self._values: dict[str, dict[str, set[tuple[str, Key]]]] = {}
        self._listeners: list[Listener] = []
        self._known = asyncio.Event()

    def require_same(
        self, labels: str, namespace: str, clusters: Callable[[ClusterInfo], bool] | None
    ) -> None:
        """ValueError when a second request for the cache chooses other objects than the first."""
        if (labels, namespace, clusters) not in ((self._labels, self._namespace, self._clusters), ("", "", None)):
            raise ValueError(f"{self.resource} is cached already, with other selectors")

    def add_index(self, name: str, function: IndexFunction) -> None:
        """Index what is there and what comes, in every cluster. ValueError when the name has another function."""
        if self.indexes.get(name, function) is not function:
            raise ValueError(f"index {name!r} exists already, with another function")
        if name in self.indexes:
            return
        self.indexes[name] = function
        values = self._values[name] = {}
        for cluster, informer in self._members.items():
            for key, obj in informer.store.items():
                for value in _values(name, function, obj):
                    values.setdefault(value, set()).add((cluster, key))

    def listen(self, listener: Listener) -> None:
        """Tell `listener` of each change from now on."""
        self._listeners.append(listener)

    def get(self, cluster: str, name: str, namespace: str = "") -> Object | None:
        """An object as last seen."""
        informer = self._members.get(cluster)
        return informer.store.get((namespace, name)) if informer else None

    def list(self, cluster: str | None = None) -> list[Found]:
        """All objects of one cluster, or of all."""
        chosen = self._members if cluster is None else {cluster: self._members[cluster]} if cluster in self._members else {}
        return [Found(name, obj) for name, informer in chosen.items() for obj in informer.store.values()]

    def query(self, index: str, value: str) -> builtins.list[Found]:
        """The objects whose index has the value, by cluster, namespace and name."""
        places = sorted(self._values[index].get(value, ()))
        return [Found(cluster, self._members[cluster].store[key]) for cluster, key in places]

    async def synced(self) -> None:
        """Wait until every cluster was read once, but for those that do not answer (`problems` names them)."""
        await self._known.wait()
        for informer in list(self._members.values()):
            await informer.tried.wait()

    @property
    def problems(self) -> dict[str, str]:
        """Clusters that cannot be followed now, and why; what was last seen of them stays."""
        return {name: informer.problem for name, informer in self._members.items() if informer.problem}

    async def run(self) -> None:
        """Follow the fleet until cancelled."""
        fleet = Informer(self._fleet.host, CLUSTERS)
        self._tasks.spawn(self._mark_known(fleet), "first list of clusters")
        try:
            async with aclosing(fleet.changes()) as changes:
                async for change in changes:
                    self._cluster(change)
        finally:
            await self._tasks.close()

    async def _mark_known(self, fleet: Informer) -> None:
        await fleet.synced.wait()
        self._known.set()

    def _cluster(self, change: Change) -> None:
        from reclock._fleet import ClusterInfo

        info = ClusterInfo.of(change.object)
        wanted = change.type != "DELETED" and self._wants(info)
        if wanted and info.name not in self._members:
            self._join(info.name)
        elif not wanted and info.name in self._members:
            self._leave(info.name)

    def _wants(self, info: ClusterInfo) -> bool:
        try:
            return self._clusters is None or self._clusters(info)
        except Exception:
            # A choice that fails of one cluster must not end the following of all: that one stays what it was.
            log.exception("cache of %s: choosing clusters failed of %s", self.resource, info.name)
            return info.name in self._members

    def _join(self, name: str) -> None:
        informer = Informer(
            self._fleet.cluster(name), self.resource, namespace=self._namespace, labels=self._labels
        )
        self._members[name] = informer
        self._running[name] = self._tasks.spawn(self._follow(name, informer), name)

    def _leave(self, name: str) -> None:
        """Its objects are gone for us, whatever happens to them there."""
        self._running.pop(name).cancel()
        informer = self._members[name]
        for obj in list(informer.store.values()):
            self._changed(name, Change("DELETED", obj))
        del self._members[name]

    async def _follow(self, name: str, informer: Informer) -> None:
        async with aclosing(informer.changes()) as changes:
            async for change in changes:
                if self._members.get(name) is not informer:
                    return
                self._changed(name, change)

    def _changed(self, cluster: str, change: Change) -> None:
        metadata = change.object["metadata"]
        place = (cluster, (metadata.get("namespace", ""), metadata["name"]))
        before = change.object if change.type == "DELETED" else change.old
        for name, function in self.indexes.items():
            values = self._values[name]
            for value in _values(name, function, before):
                places = values.get(value, set())
                places.discard(place)
                if not places:
                    values.pop(value, None)
            if change.type != "DELETED":
                for value in _values(name, function, change.object):
                    values.setdefault(value, set()).add(place)
        for listener in list(self._listeners):
            try:
                listener(cluster, change)
            except Exception:
                # A listener's bug must not end the following for everybody: the cache would go stale unnoticed.
                log.exception("cache of %s: a listener failed on %s of %s", self.resource, change.type, place)


def _values(index: str, function: IndexFunction, obj: Object | None) -> set[str]:
    try:
        return set(function(obj)) if obj is not None else set()
    except Exception:
        # One object that a function of the user's stumbles over must not end the cache of all.
        log.exception("index %s: its function failed; the object is not found by it", index)
        return set()
