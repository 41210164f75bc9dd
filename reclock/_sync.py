"""The clients for plain handlers: the same calls, which wait; they run in the event loop of the worker."""

from __future__ import annotations

import asyncio
import builtins
import concurrent.futures
from collections.abc import AsyncGenerator, Coroutine, Iterator
from typing import Any, TypeVar

from reclock._cache import Found
from reclock._cluster import Cluster, PatchType, Propagation
from reclock._connection import Query
from reclock._errors import LeaseLost
from reclock._fleet import ClusterInfo, Fleet
from reclock._informer import Change, Object
from reclock._resource import Resource

T = TypeVar("T")


class Caller:
    """Runs coroutines of a loop for one thread, until `lose`: then LeaseLost, also for the call that waits."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.lost = False
        self._pending: set[concurrent.futures.Future[Any]] = set()

    def __call__(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for the coroutine, in a thread that is not the loop's."""
        if self.lost:
            work.close()
            raise LeaseLost("the lease of this request has ended: another worker may have it")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._pending.add(future)
        try:
            if self.lost:  # since the check above
                future.cancel()
            return future.result()
        except concurrent.futures.CancelledError:
            raise LeaseLost("the lease of this request has ended: another worker may have it") from None
        finally:
            self._pending.discard(future)

    def iterate(self, source: AsyncGenerator[T, None]) -> Iterator[T]:
        """Iterate over an asynchronous generator."""
        try:
            while True:
                try:
                    yield self(_next(source))
                except StopAsyncIteration:
                    return
        finally:
            asyncio.run_coroutine_threadsafe(source.aclose(), self._loop)  # also when the lease has ended

    def lose(self) -> None:
        """The lease has ended; called in the loop."""
        self.lost = True
        for future in list(self._pending):
            future.cancel()


async def _next(source: AsyncGenerator[T, None]) -> T:
    return await anext(source)


class SyncCluster:
    """`Cluster` for plain handlers; see there."""

    def __init__(self, cluster: Cluster, call: Caller) -> None:
        self._cluster, self._call = cluster, call
        self.name = cluster.name

    def __repr__(self) -> str:
        return f"<reclock.SyncCluster {self.name!r}>"

    def call(self, method: str, path: str, *, query: Query | None = None, body: Any = None, timeout: float = 30.0) -> Any:
        """Any request below this cluster's API, decoded."""
        return self._call(self._cluster.call(method, path, query=query, body=body, timeout=timeout))

    def get(self, resource: str | Resource, name: str, namespace: str = "") -> Object:
        """The object. NotFound when there is none."""
        return self._call(self._cluster.get(resource, name, namespace))

    def find(self, resource: str | Resource, name: str, namespace: str = "") -> Object | None:
        """The object, or None."""
        return self._call(self._cluster.find(resource, name, namespace))

    def list(
        self, resource: str | Resource, namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> builtins.list[Object]:
        """All objects that the selectors choose."""
        return self._call(self._cluster.list(resource, namespace, labels=labels, fields=fields))

    def watch(
        self, resource: str | Resource, namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> Iterator[Change]:
        """What is there, as ADDED, then changes."""
        return self._call.iterate(self._cluster.watch(resource, namespace, labels=labels, fields=fields))

    def create(self, obj: Object, *, resource: str | Resource | None = None) -> Object:
        """Create; returns it as stored."""
        return self._call(self._cluster.create(obj, resource=resource))

    def update(self, obj: Object, *, resource: str | Resource | None = None, subresource: str = "") -> Object:
        """Replace."""
        return self._call(self._cluster.update(obj, resource=resource, subresource=subresource))

    def apply(
        self,
        obj: Object,
        *,
        resource: str | Resource | None = None,
        manager: str = "",
        force: bool = True,
        subresource: str = "",
    ) -> Object:
        """Server-side apply."""
        return self._call(
            self._cluster.apply(obj, resource=resource, manager=manager, force=force, subresource=subresource)
        )

    def patch(
        self,
        resource: str | Resource,
        name: str,
        patch: Any,
        namespace: str = "",
        *,
        type: PatchType = "merge",
        subresource: str = "",
    ) -> Object:
        """Patch; returns it as stored."""
        return self._call(
            self._cluster.patch(resource, name, patch, namespace, type=type, subresource=subresource)
        )

    def delete(
        self,
        resource: str | Resource,
        name: str,
        namespace: str = "",
        *,
        propagation: Propagation = "Background",
        uid: str = "",
        missing_ok: bool = True,
    ) -> None:
        """Delete."""
        self._call(
            self._cluster.delete(
                resource, name, namespace, propagation=propagation, uid=uid, missing_ok=missing_ok
            )
        )


class SyncFleet:
    """`Fleet` for plain handlers; see there. Caches are set up outside of handlers."""

    def __init__(self, fleet: Fleet, call: Caller, manager: str) -> None:
        self._fleet, self._call, self._manager = fleet, call, manager

    def cluster(self, name: str) -> SyncCluster:
        """A client of a cluster ("" is the host)."""
        return SyncCluster(self._fleet.bound(name, self._manager), self._call)

    @property
    def host(self) -> SyncCluster:
        """The host, which is also the merged view."""
        return self.cluster("")

    def provider(self, name: str) -> ClusterInfo:
        """What discovery knows of a cluster."""
        return self._call(self._fleet.provider(name))

    def clusters(self, labels: str = "") -> list[ClusterInfo]:
        """The clusters of the fleet now."""
        return self._call(self._fleet.clusters(labels))

    def query(self, index: str, value: str) -> list[Found]:
        """The cached objects of all clusters whose index has the value."""

        async def ask() -> list[Found]:
            return self._fleet.query(index, value)  # in the loop: the cache changes there

        return self._call(ask())
