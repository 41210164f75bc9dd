"""Many small apiservers in one: host and members by path, any resource, for tests of the reconcile protocol."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from aiohttp import web

from services.common.kube.client import KubeClient

HOST = ""
KINDS = {"configmaps": "ConfigMap", "pods": "Pod", "secrets": "Secret", "deployments": "Deployment", "nodes": "Node"}
CLUSTER_SCOPED = {"nodes", "namespaces", "clusters", "apiaggregations"}


class Store:
    """Objects of one resource of one cluster, and who watches them."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.items: dict[tuple[str, str], dict[str, Any]] = {}
        self.log: list[tuple[int, str, dict[str, Any]]] = []
        self.moved = asyncio.Event()

    def tell(self, event: str, item: dict[str, Any]) -> None:
        """Note an event and wake the watches."""
        self.log.append((self.cluster.version, event, json.loads(json.dumps(item))))
        self.moved.set()
        self.moved = asyncio.Event()


class FakeCluster:
    """One cluster; `put` and `remove` change it. `lacks` names resources that it does not serve."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.version = 100
        self.lacks: set[str] = set()
        self.stores: dict[str, Store] = defaultdict(lambda: Store(self))
        self.allow: Callable[[dict[str, Any]], bool] = lambda spec: True
        self.tokens: dict[str, dict[str, Any]] = {}
        self.reviews: list[dict[str, Any]] = []
        self.accepts: list[str] = []
        self.queries: list[dict[str, str]] = []
        self.hangs = False

    def put(self, resource: str, namespace: str, name: str, **metadata: Any) -> dict[str, Any]:
        """Create or change; `spec` and `data` go beside the metadata."""
        self.version += 1
        store = self.stores[resource]
        old = store.items.get((namespace, name))
        uid = old["metadata"]["uid"] if old else f"uid-{self.name}-{self.version}"
        body = {key: metadata.pop(key) for key in ("spec", "data") if key in metadata}
        generation = (old["metadata"]["generation"] + (body != {k: old[k] for k in ("spec", "data") if k in old})) if old else 1
        item = {
            "apiVersion": "v1", "kind": KINDS.get(resource, "Thing"),
            "metadata": {"name": name, "uid": uid, "resourceVersion": str(self.version), "generation": generation,
                         "managedFields": [{"manager": "m"}], **({"namespace": namespace} if namespace else {}), **metadata},
            **body,
        }  # fmt: skip
        store.items[namespace, name] = item
        store.tell("MODIFIED" if old else "ADDED", item)
        return item

    def remove(self, resource: str, namespace: str, name: str) -> None:
        """Delete."""
        self.version += 1
        store = self.stores[resource]
        item = store.items.pop((namespace, name))
        item["metadata"]["resourceVersion"] = str(self.version)
        store.tell("DELETED", item)

    async def handle(self, request: web.Request, path: str) -> web.StreamResponse:
        """Answer one request."""
        if self.hangs:
            await asyncio.sleep(3600)
        parts = path.strip("/").split("/")
        if parts == ["readyz"]:
            return web.Response(text="ok")
        if parts[-1] in ("tokenreviews", "subjectaccessreviews"):
            return await self._review(request, parts[-1])
        rest = parts[2:] if parts[0] == "api" else parts[3:]
        if not rest:
            return self._discovery("/".join(parts))
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        if rest[0] in self.lacks:
            return problem(404, "NotFound", "the server could not find the requested resource")
        if rest == ["namespaces", "kube-system"]:
            return web.json_response({"kind": "Namespace", "metadata": {"name": "kube-system", "uid": f"uid-of-{self.name}"}})
        if request.method != "GET" or len(rest) > 1:
            return problem(404, "NotFound", "not here")
        return await self._collection(request, rest[0], namespace)

    def _discovery(self, group: str) -> web.Response:
        names = ["deployments"] if group == "apis/apps/v1" else ["configmaps", "pods", "secrets", "nodes"] if group == "api/v1" else []
        if not names:
            return problem(404, "NotFound", "no such group")
        return web.json_response({"kind": "APIResourceList", "resources": [
            {"name": name, "namespaced": name not in CLUSTER_SCOPED, "kind": KINDS[name], "verbs": ["get", "list", "watch"]}
            for name in names if name not in self.lacks
        ]})  # fmt: skip

    async def _review(self, request: web.Request, kind: str) -> web.Response:
        spec = (await request.json())["spec"]
        if kind == "tokenreviews":
            user = self.tokens.get(spec["token"])
            return web.json_response({"status": {"authenticated": bool(user), "user": user or {}}}, status=201)
        self.reviews.append(spec)
        return web.json_response({"status": {"allowed": self.allow(spec)}}, status=201)

    async def _collection(self, request: web.Request, resource: str, namespace: str) -> web.StreamResponse:
        self.accepts.append(request.headers.get("Accept", ""))
        self.queries.append(dict(request.query))
        if "bad" in request.query.get("fieldSelector", ""):
            return problem(400, "BadRequest", 'field label not supported: "bad"')
        store = self.stores[resource]
        if request.query.get("watch") == "true":
            return await self._watch(request, store, namespace)
        items = [item for item in store.items.values() if fits(request, namespace, item)]
        return web.json_response({
            "kind": f"{KINDS.get(resource, 'Thing')}List", "apiVersion": "v1",
            "metadata": {"resourceVersion": str(self.version)}, "items": items,
        })  # fmt: skip

    async def _watch(self, request: web.Request, store: Store, namespace: str) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        seen, place = int(request.query["resourceVersion"]), 0
        while True:
            moved = store.moved
            while place < len(store.log):
                version, event, item = store.log[place]
                place += 1
                if version > seen and fits(request, namespace, item):
                    await response.write(json.dumps({"type": event, "object": item}).encode() + b"\n")
            await moved.wait()


def fits(request: web.Request, namespace: str, item: dict[str, Any]) -> bool:
    """Whether an object is in the namespace and has the label of a request's selector (`key=value`)."""
    if namespace and item["metadata"].get("namespace") != namespace:
        return False
    key, _, value = request.query.get("labelSelector", "").partition("=")
    return not key or item["metadata"].get("labels", {}).get(key) == value


def problem(code: int, reason: str, message: str) -> web.Response:
    """A Status."""
    return web.json_response(
        {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message}, status=code
    )


class FakeFleet:
    """All clusters on one port: `/c/<name>`; the host is `/c/host`."""

    def __init__(self) -> None:
        self.clusters: dict[str, FakeCluster] = {HOST: FakeCluster(HOST)}
        self.port = 0
        self._runner: web.AppRunner | None = None

    def add(self, name: str) -> FakeCluster:
        """One more cluster."""
        self.clusters[name] = FakeCluster(name)
        return self.clusters[name]

    async def start(self) -> None:
        """Listen."""
        app = web.Application()
        app.router.add_route("*", "/c/{cluster}/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Break everything."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["cluster"]
        cluster = self.clusters.get(HOST if name == "host" else name)
        if cluster is None:
            return problem(404, "NotFound", "no such cluster")
        return await cluster.handle(request, request.match_info["path"])

    def kubeconfig(self, name: str) -> dict[str, Any]:
        """Access to a cluster."""
        server = f"http://127.0.0.1:{self.port}/c/{name or 'host'}"
        return {
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": server}}], "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        }  # fmt: skip

    async def client(self, name: str) -> KubeClient:
        """A client of a cluster."""
        return await KubeClient.connect(self.kubeconfig(name), name=name)
