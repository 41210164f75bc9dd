"""Collections of any resource on the fake apiserver: lists, watches with label selectors, single objects."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiohttp import web
from kube_fake import KubeFake, status


class Collection:
    """Objects of one resource: `Collection(kube, "/api/v1", "secrets", "Secret")` before the fake starts."""

    def __init__(self, base: str, resource: str, kind: str) -> None:
        self.base, self.resource, self.kind = base, resource, kind
        self.items: dict[tuple[str, str], dict[str, Any]] = {}
        self.version = 100
        self.broken = 0
        """Status code that every request is answered with."""
        self.gets_broken = False
        self.history: list[tuple[int, dict[str, Any] | None, dict[str, Any] | None]] = []
        self.watches: set[asyncio.Task[None]] = set()
        self._moved = asyncio.Event()

    def routes(self) -> list[web.RouteDef]:
        """What it serves."""
        path = f"{self.base}/{self.resource}"
        inside = f"{self.base}/namespaces/{{namespace}}/{self.resource}"
        return [web.get(path, self._list), web.get(inside, self._list), web.get(f"{inside}/{{name}}", self._get)]

    def put(self, namespace: str, name: str, **body: Any) -> None:
        """Create or change an object; `labels` go into its metadata."""
        self.version += 1
        old = self.items.get((namespace, name))
        uid = old["metadata"]["uid"] if old else f"uid-{self.version}"
        item = {"metadata": {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": str(self.version),
                             "labels": body.pop("labels", {})}, **body}  # fmt: skip
        self.items[(namespace, name)] = item
        self._tell(old, item)

    def remove(self, namespace: str, name: str) -> None:
        """Delete an object."""
        self.version += 1
        self._tell(self.items.pop((namespace, name)), None)

    def _tell(self, old: dict[str, Any] | None, new: dict[str, Any] | None) -> None:
        self.history.append((self.version, old, new))
        self._moved.set()
        self._moved = asyncio.Event()

    def fail(self, code: int) -> None:
        """Answer all with an error from now on, and break open watches; 0 ends it."""
        self.broken = code
        for task in self.watches:
            task.cancel()

    async def _get(self, request: web.Request) -> web.Response:
        item = self.items.get((request.match_info["namespace"], request.match_info["name"]))
        if self.broken or self.gets_broken:
            return status(self.broken or 500, "InternalError", "out of order")
        return web.json_response({"kind": self.kind, **item}) if item else status(404, "NotFound")

    async def _list(self, request: web.Request) -> web.StreamResponse:
        if self.broken:
            return status(self.broken, "InternalError", "out of order")
        if request.query.get("watch") == "true":
            return await self._watch(request)
        items = [item for item in self.items.values() if wanted(request, item)]
        metadata = {"resourceVersion": str(self.version)}
        return web.json_response({"kind": f"{self.kind}List", "metadata": metadata, "items": items})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        task = asyncio.ensure_future(self._send(request, response))
        self.watches.add(task)
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
            self.watches.discard(task)
        return response

    async def _send(self, request: web.Request, response: web.StreamResponse) -> None:
        seen = int(request.query["resourceVersion"])
        while True:
            moved = self._moved
            for version, old, new in list(self.history):
                if version <= seen:
                    continue
                seen = version
                before, after = old and wanted(request, old), new and wanted(request, new)
                if not before and not after:
                    continue
                kind = "DELETED" if not after else "MODIFIED" if before else "ADDED"
                body = json.loads(json.dumps(new if after else old))
                body["metadata"]["resourceVersion"] = str(version)
                await response.write(json.dumps({"type": kind, "object": body}).encode() + b"\n")
            await moved.wait()


def wanted(request: web.Request, item: dict[str, Any]) -> bool:
    """Whether an object is in the namespace and fits the label selector of a request."""
    namespace = request.match_info.get("namespace")
    if namespace and item["metadata"]["namespace"] != namespace:
        return False
    key, _, value = request.query.get("labelSelector", "").partition("=")
    return not key or item["metadata"]["labels"].get(key) == value


class CollectionFake(KubeFake):
    """A fake apiserver with collections."""

    def __init__(self, *collections: Collection) -> None:
        super().__init__()
        self.extra_routes = [route for collection in collections for route in collection.routes()]
