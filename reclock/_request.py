"""What a handler is given."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from reclock._fleet import Fleet
from reclock._informer import Object
from reclock._resource import Resource
from reclock._sync import Caller, SyncCluster, SyncFleet
from reclock.reconciler.v1 import reconciler_pb2 as pb


@dataclass(frozen=True, slots=True)
class IndexedObject:
    """An object that an index of the controller found."""

    cluster: str
    namespace: str
    name: str
    source: str
    uid: str


@dataclass(frozen=True, slots=True)
class Indexed:
    """What an index of the controller has for a value."""

    objects: tuple[IndexedObject, ...]
    missing_clusters: tuple[str, ...]
    """Clusters that could not be asked just now."""


Query = Callable[[str, str], Awaitable[Indexed]]


class _Log(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"{(self.extra or {})['where']}: {msg}", kwargs


class _Common:
    """An object to look at; what happened to it is not said: read its present state, and make the world as it should be."""

    def __init__(self, message: pb.Request, controller: str, resource: Resource) -> None:
        self.controller = controller
        self.resource = resource
        """Resource of the object, as the controller's `for_` names it."""
        self.cluster_name: str = message.cluster
        """Name of the object's cluster; "" is the host."""
        self.namespace: str = message.namespace
        self.name: str = message.name
        self.source: str = message.source
        """Name of its `For`; empty where that has none."""
        self.attempt: int = message.attempt
        """How often it failed since it last went well."""
        self.priority: int = message.priority
        self.waited: float = message.waited.ToTimedelta().total_seconds()
        """Seconds in the queue."""
        self.fence: int = message.fence
        """Grows with each change of the replica that hands the cluster's requests out: for writes elsewhere."""
        place = "/".join(part for part in (self.cluster_name or "host", self.namespace, self.name) if part)
        self.log = _Log(logging.getLogger(f"reclock.{controller}"), {"where": place})
        """A logger whose lines begin with the object's place."""
        self._place = place

    def __str__(self) -> str:
        return self._place

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.controller}: {self._place}>"


class Request(_Common):
    """A request to an asynchronous handler."""

    def __init__(
        self, message: pb.Request, controller: str, resource: Resource, fleet: Fleet, query: Query
    ) -> None:
        super().__init__(message, controller, resource)
        self.fleet = fleet
        """All clusters."""
        self.cluster = fleet.bound(self.cluster_name, controller)
        """The object's cluster. Writes carry the controller's name as field manager."""
        self._query = query

    async def get(self) -> Object | None:
        """The object as it is now; None when it is gone."""
        return await self.cluster.find(self.resource, self.name, self.namespace)

    async def indexed(self, index: str, value: str) -> Indexed:
        """Ask an index of the controller (`indexes=`, or "owner" by uid) over all clusters, in the service."""
        return await self._query(index, value)


class SyncRequest(_Common):
    """A request to a plain handler, which runs in a thread of its own."""

    def __init__(
        self, message: pb.Request, controller: str, resource: Resource, fleet: Fleet, query: Query, call: Caller
    ) -> None:
        super().__init__(message, controller, resource)
        self.fleet = SyncFleet(fleet, call, controller)
        """All clusters."""
        self.cluster: SyncCluster = self.fleet.cluster(self.cluster_name)
        """The object's cluster."""
        self._query, self._call = query, call

    @property
    def cancelled(self) -> bool:
        """The lease has ended, or the worker stops: a long computation should look, since threads cannot be stopped."""
        return self._call.lost

    def get(self) -> Object | None:
        """The object as it is now; None when it is gone."""
        return self.cluster.find(self.resource, self.name, self.namespace)

    def indexed(self, index: str, value: str) -> Indexed:
        """Ask an index of the controller over all clusters."""

        async def ask() -> Indexed:
            return await self._query(index, value)

        return self._call(ask())
