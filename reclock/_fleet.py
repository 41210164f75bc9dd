"""All clusters: what discovery knows of them, a client of each, caches and indexes over all."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeAlias

from reclock._cache import Cache, Found, IndexFunction
from reclock._cluster import Cluster
from reclock._connection import Connection, NoFront
from reclock._errors import ReclockError
from reclock._informer import Object
from reclock._resource import CLUSTERS, Resource
from reclock._settings import Settings
from reclock._tasks import Tasks

JoinType: TypeAlias = Literal["JOINED", "CHANGED", "LEFT"]
_JOINS: dict[str, JoinType] = {"ADDED": "JOINED", "MODIFIED": "CHANGED", "DELETED": "LEFT"}


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """What discovery knows of a cluster."""

    name: str
    provider: str
    """Provider that found it, for example `kind`."""
    source: str
    """Where the provider found it, for people."""
    server: str
    uid: str
    """Uid of its kube-system namespace; empty until it was reached once."""
    kube_version: str
    labels: dict[str, str]
    conditions: dict[str, str]
    """Condition type (Reachable, Ready, Configured) to True, False or Unknown."""
    object: Object = field(repr=False)
    """The whole `Cluster` object."""

    @property
    def reachable(self) -> bool:
        """Whether it answers."""
        return self.conditions.get("Reachable") == "True"

    @classmethod
    def of(cls, obj: Object) -> ClusterInfo:
        """From a `Cluster` object of reclock.dev/v1alpha1."""
        status = obj.get("status") or {}
        return cls(
            name=obj["metadata"]["name"],
            provider=status.get("provider", ""),
            source=status.get("source", ""),
            server=status.get("server", ""),
            uid=status.get("uid", ""),
            kube_version=status.get("kubeVersion", ""),
            labels=dict(obj["metadata"].get("labels") or {}),
            conditions={one["type"]: one["status"] for one in status.get("conditions") or []},
            object=obj,
        )


@dataclass(frozen=True, slots=True)
class ClusterChange:
    """A cluster has joined, changed or left."""

    type: JoinType
    cluster: ClusterInfo


class Fleet:
    """The fleet behind one front: `async with Fleet.connect() as fleet: …`. Needs no credentials of members."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._clusters: dict[tuple[str, str], Cluster] = {}
        self._tasks = Tasks("fleet")
        self._caches: dict[Resource, Cache] = {}
        self._closed = False

    @classmethod
    def connect(cls, kubeconfig: str | Path | dict[str, Any] | None = None, **settings: Any) -> _Connecting:
        """Connect, by a kubeconfig of the front or as `Settings.load` finds it: `await` it, or use it as a context."""
        return _Connecting(Settings.load(kubeconfig=kubeconfig, **settings))

    @classmethod
    def without_front(cls, token: str = "") -> Fleet:
        """For a worker that reaches clusters by means of its own; `token` says who it is to the reconciler."""
        return cls(NoFront(token))

    async def __aenter__(self) -> Fleet:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all caches, watches and requests; idempotent."""
        self._closed = True
        await self._tasks.close()
        await self.connection.close()

    def cluster(self, name: str) -> Cluster:
        """A client of a cluster ("" is the host), ready at once; calls raise NotFound while the fleet has none so named."""
        return self.bound(name, "reclock-sdk")

    def bound(self, name: str, manager: str) -> Cluster:
        """The same, whose writes carry a field manager of that name."""
        client = self._clusters.get((name, manager))
        if client is None:
            client = self._clusters[(name, manager)] = Cluster(self.connection, name, manager=manager)
        return client

    @property
    def host(self) -> Cluster:
        """The host, which is also the merged view: aggregated types show all clusters' objects."""
        return self.cluster("")

    async def provider(self, name: str) -> ClusterInfo:
        """What discovery knows of a cluster, and which provider found it. NotFound when it is not in the fleet."""
        return ClusterInfo.of(await self.host.get(CLUSTERS, name))

    async def clusters(self, labels: str = "") -> list[ClusterInfo]:
        """The clusters of the fleet now, by name; those that a label selector chooses."""
        found = await self.host.list(CLUSTERS, labels=labels)
        return sorted((ClusterInfo.of(item) for item in found), key=lambda info: info.name)

    async def watch_clusters(self, labels: str = "") -> AsyncGenerator[ClusterChange, None]:
        """The clusters there are, as JOINED, then who joins, changes and leaves, for as long as one iterates."""
        async with aclosing(self.host.watch(CLUSTERS, labels=labels)) as changes:
            async for change in changes:
                yield ClusterChange(_JOINS[change.type], ClusterInfo.of(change.object))

    def cache(
        self,
        resource: str | Resource,
        *,
        indexes: dict[str, IndexFunction] | None = None,
        labels: str = "",
        namespace: str = "",
        clusters: Callable[[ClusterInfo], bool] | None = None,
    ) -> Cache:
        """Keep a copy of a resource of every cluster, those that join later included; indexed by each of `indexes`.

        An index is a function of an object that returns its values. Starts at once; `await cache.synced()` waits until
        all clusters that answer were read. Asked for again, the same cache gets further indexes; another selector than
        before is a ValueError.
        """
        if self._closed:
            raise ReclockError("the fleet is closed")
        where = Resource.of(resource)
        cache = self._caches.get(where)
        if cache is None:
            cache = self._caches[where] = Cache(self, where, labels=labels, namespace=namespace, clusters=clusters)
            self._tasks.spawn(cache.run(), f"cache of {where}")
        else:
            cache.require_same(labels, namespace, clusters)
        for name, function in (indexes or {}).items():
            self._require_free(name, cache)
            cache.add_index(name, function)
        return cache

    def _require_free(self, index: str, cache: Cache) -> None:
        for other in self._caches.values():
            if other is not cache and index in other.indexes:
                raise ValueError(f"index {index!r} is of {other.resource} already")

    def query(self, index: str, value: str) -> list[Found]:
        """The cached objects of all clusters whose index has the value. KeyError when no cache has the index."""
        for cache in self._caches.values():
            if index in cache.indexes:
                return cache.query(index, value)
        known = sorted(name for cache in self._caches.values() for name in cache.indexes)
        raise KeyError(f"no index {index!r}; there are: {', '.join(known) or 'none'}")

    def caches(self) -> Iterable[Cache]:
        """The caches that were asked for."""
        return tuple(self._caches.values())


class _Connecting:
    """What `Fleet.connect` returns."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._fleet: Fleet | None = None

    def __await__(self) -> Generator[Any, None, Fleet]:
        return self._open().__await__()

    async def _open(self) -> Fleet:
        return Fleet(await Connection.open(self._settings))

    async def __aenter__(self) -> Fleet:
        self._fleet = await self._open()
        return self._fleet

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fleet is not None:
            await self._fleet.close()
