"""A fleet in memory behind a real HTTP server: the host at its root, members below `/clusters/<name>`.

What it does of a Kubernetes API: get, list, watch, create, update, patch, apply and delete of any type, selectors,
versions and conflicts, uids, generations, finalizers, status. What it does not: validation, defaults, garbage
collection; applies are merges, and lists inside of objects are replaced as a whole.
"""

from __future__ import annotations

import builtins
import copy
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from reclock._informer import Object
from reclock._resource import CLUSTERS, Resource, resource_of
from reclock.testing._http import Handler
from reclock.testing._store import Store


class FakeCluster:
    """One cluster's objects; everything is seen at once by who watches."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.store = Store()
        self.broken = 0
        """HTTP status that every request gets; 0: none. 503 is how the front answers for a cluster that is away."""
        self.writes: list[tuple[str, str]] = []
        """(method, path) of each write that came in through the API."""

    def put(self, obj: Object, *, resource: str | Resource | None = None) -> Object:
        """Create it, or make it so; returns it as stored."""
        where = Resource.of(resource) if resource is not None else resource_of(obj)
        return copy.deepcopy(self.store.put(where, copy.deepcopy(obj)))

    def get(self, resource: str | Resource, name: str, namespace: str = "") -> Object | None:
        """The object; None when there is none."""
        return copy.deepcopy(self.store.get(Resource.of(resource), namespace, name))

    def list(self, resource: str | Resource) -> builtins.list[Object]:
        """All objects of a type, by namespace and name."""
        return copy.deepcopy(self.store.list(Resource.of(resource)))

    def delete(self, resource: str | Resource, name: str, namespace: str = "") -> None:
        """Delete it (with finalizers: mark it as to be deleted). KeyError when there is none."""
        self.store.delete(Resource.of(resource), namespace, name)

    def forget_history(self) -> None:
        """As compaction does: watches that go on from before get 410."""
        self.store.compact()

    def break_watches(self) -> None:
        """End all open watches, as a network does."""
        self.store.break_watches()


class FakeFleet:
    """`async with FakeFleet("east", "west") as fleet`; `fleet.kubeconfig` gives access, `fleet[""]` is the host."""

    def __init__(self, *clusters: str) -> None:
        self._clusters: dict[str, FakeCluster] = {"": FakeCluster("")}
        self.port = 0
        self.requests: list[tuple[str, str]] = []
        """(method, path with query) of every request."""
        self.headers: list[dict[str, str]] = []
        self._runner: web.AppRunner | None = None
        for name in clusters:
            self.join(name)

    def __getitem__(self, name: str) -> FakeCluster:
        return self._clusters[name]

    def __iter__(self) -> Iterator[str]:
        return iter([name for name in self._clusters if name])

    @property
    def host(self) -> FakeCluster:
        """The host."""
        return self._clusters[""]

    @property
    def url(self) -> str:
        """Of its API."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def kubeconfig(self) -> dict[str, Any]:
        """For `Fleet.connect`."""
        return {
            "apiVersion": "v1", "kind": "Config", "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "users": [{"name": "fake", "user": {}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
        }  # fmt: skip

    def join(self, name: str, *, provider: str = "fake", ready: bool = True, **labels: str) -> FakeCluster:
        """A cluster joins the fleet."""
        cluster = self._clusters.setdefault(name, FakeCluster(name))
        word = "True" if ready else "False"
        self.host.put(
            {
                "apiVersion": "reclock.dev/v1alpha1", "kind": "Cluster", "metadata": {"name": name, "labels": labels},
                "status": {
                    "provider": provider, "server": f"https://{name}.invalid", "uid": f"uid-of-{name}", "kubeVersion": "v1.34.4",
                    "conditions": [{"type": kind, "status": word} for kind in ("Reachable", "Ready")],
                },
            },
            resource=CLUSTERS,
        )  # fmt: skip
        return cluster

    def leave(self, name: str) -> None:
        """It leaves; what it holds is there again should it come back."""
        self.host.delete(CLUSTERS, name)

    def find(self, name: str) -> FakeCluster | None:
        """A cluster that is in the fleet now, or the host."""
        if name and self.host.get(CLUSTERS, name) is None:
            return None
        return self._clusters[name]

    async def __aenter__(self) -> FakeFleet:
        app = web.Application(client_max_size=8 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", Handler(self))
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        for cluster in self._clusters.values():
            cluster.store.close()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
