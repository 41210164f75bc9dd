"""A small apiserver for the clock's tests: one resource (pods), metadata only, that can misbehave on request.

Versions, watch cache, compaction and bookmarks behave as kube-apiserver's do where the clock looks.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from services.common.fleet import Member
from services.common.kube.client import KubeClient

Key = tuple[str, str]


@dataclass(frozen=True)
class Obj:
    """One state of one object."""

    namespace: str
    name: str
    uid: str
    version: int
    labels: tuple[tuple[str, str], ...] = ()
    deleting: bool = False
    value: int = 0

    def json(self, version: int = 0) -> dict[str, Any]:
        """PartialObjectMetadata."""
        metadata: dict[str, Any] = {
            "name": self.name, "namespace": self.namespace, "uid": self.uid,
            "resourceVersion": str(version or self.version), "labels": dict(self.labels),
        }  # fmt: skip
        if self.deleting:
            metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}


class FakeMember:
    """A cluster named `name`. `rev` is its etcd's revision."""

    def __init__(self, name: str, resource: str = "pods") -> None:
        self.name, self.resource = name, resource
        self.uid = str(uuid.uuid4())
        self.rev = 100
        self.objects: dict[Key, Obj] = {}
        self.history: list[tuple[int, str, Obj]] = []
        self.snapshots: list[tuple[int, dict[Key, Obj]]] = [(100, {})]
        self.cut = 100
        """Watches below this version get 410."""
        self.compacted = 0
        """Exact lists below this version get 410."""
        self.has_type = True
        self._discovery_says = False
        self.refuse = False
        self.list_delay = 0.0
        self.watch_gate = asyncio.Event()
        self.watch_gate.set()
        self.lists = 0
        self.watches: list[str] = []
        """What the open watches accept."""
        self.values = 0
        self.page_limit = 0
        self._changed: set[asyncio.Event] = set()
        self._epoch = 0
        self._connections: set[asyncio.BaseTransport] = set()
        self._known: set[asyncio.BaseTransport] = set()
        """Every connection on which something was asked, idle ones too."""
        self._dead: set[asyncio.BaseTransport] = set()
        self._runner: web.AppRunner | None = None
        self.port = 0
        self.member = Member(name)

    # Changes.

    def put(
        self, name: str, namespace: str = "default", *, uid: str = "", step: int = 1, **labels: str
    ) -> Obj:
        """Create or change an object."""
        self.rev += step
        old = self.objects.get((namespace, name))
        self.values += 1
        one = Obj(
            namespace, name, uid or (old.uid if old else str(uuid.uuid4())), self.rev,
            tuple(sorted(labels.items())), value=self.values,
        )  # fmt: skip
        self.objects[namespace, name] = one
        self._record("MODIFIED" if old and old.uid == one.uid else "ADDED", one)
        return one

    def delete(self, *names: str, namespace: str = "default") -> None:
        """Delete objects, all at one version."""
        self.rev += 1
        gone = [self.objects.pop((namespace, name)) for name in names]
        for one in gone:
            self.history.append((self.rev, "DELETED", one))
        self._snap()

    def begin_delete(self, name: str, namespace: str = "default") -> None:
        """Set the deletionTimestamp."""
        self.rev += 1
        old = self.objects[namespace, name]
        one = Obj(namespace, name, old.uid, self.rev, old.labels, True, old.value)
        self.objects[namespace, name] = one
        self._record("MODIFIED", one)

    def tick(self, revisions: int = 1) -> None:
        """Something else happens in the cluster."""
        self.rev += revisions
        self._wake()

    def _record(self, kind: str, one: Obj) -> None:
        self.history.append((one.version, kind, one))
        self._snap()

    def _snap(self) -> None:
        self.snapshots.append((self.rev, dict(self.objects)))
        self._wake()

    def _wake(self) -> None:
        for event in self._changed:
            event.set()

    def at(self, version: int) -> dict[Key, Obj]:
        """The objects as of a version."""
        return next(objects for rev, objects in reversed(self.snapshots) if rev <= version)

    # Faults.

    def restart(self) -> None:
        """The apiserver restarts: connections break, its watch cache is empty."""
        self.cut = self.rev
        self.break_connections()

    def compact(self) -> None:
        """Its etcd is compacted."""
        self.compacted = self.rev

    def restore(self, snapshot: int) -> None:
        """Its etcd is set back to an earlier state."""
        self.snapshots = self.snapshots[: snapshot + 1]
        self.rev, objects = self.snapshots[-1]
        self.objects = dict(objects)
        self.history = [one for one in self.history if one[0] <= self.rev]
        self.cut = self.rev
        self.compacted = min(self.compacted, self.rev)
        self.break_connections()

    def go_deaf(self) -> None:
        """The network forgets all connections that there are, without a word: they stay, and nothing comes on them."""
        self._dead |= self._known

    def break_connections(self) -> None:
        """Reset every connection."""
        self._epoch += 1
        for transport in list(self._connections):
            transport.abort()  # type: ignore[attr-defined]
        self._wake()

    # Serving.

    async def start(self) -> None:
        """Listen."""
        app = web.Application()
        app.router.add_get("/api/v1", self._discovery)
        app.router.add_get("/apis", self._groups)
        app.router.add_get(f"/api/v1/{self.resource}", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        if self.member.client is None:
            self.member.client = await KubeClient.connect(self.kubeconfig(), name=self.name)
        self.member.uid, self.member.reachable = self.uid, True

    async def stop(self) -> None:
        """Stop listening, break all connections."""
        self.break_connections()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def close(self) -> None:
        """Stop, and close the client."""
        await self.stop()
        await self.member.client.close()

    def kubeconfig(self) -> dict[str, Any]:
        """Access to it."""
        return {
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{"name": "x", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "x", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        }  # fmt: skip

    async def _discovery(self, request: web.Request) -> web.Response:
        names = [{"name": self.resource}] if self.has_type or self._discovery_says else []
        return web.json_response({"kind": "APIResourceList", "resources": names})

    async def _groups(self, request: web.Request) -> web.Response:
        return web.json_response({"kind": "APIGroupList", "groups": []})

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        transport = request.transport
        assert transport is not None
        self._connections.add(transport)
        self._known.add(transport)
        try:
            if transport in self._dead:
                await asyncio.Event().wait()
            if self.refuse:
                return _status(503, "ServiceUnavailable", "away")
            if not self.has_type:
                return _status(404, "NotFound", "the server could not find the requested resource")
            if request.query.get("watch"):
                return await self._watch(request)
            return await self._list(request)
        finally:
            self._connections.discard(transport)

    async def _list(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        limit = int(query.get("limit", 0))
        self.lists += limit != 1
        if self.list_delay and limit != 1:
            await asyncio.sleep(self.list_delay)
        version, after = self.rev, ""
        if token := query.get("continue"):
            number, after = token.split("|")
            version = int(number)
        elif query.get("resourceVersionMatch") == "Exact":
            version = int(query["resourceVersion"])
        if version < self.compacted:
            return _status(410, "Expired", "too old")
        if version > self.rev:
            return _status(504, "Timeout", f"Too large resource version: {version}, current: {self.rev}")
        items = sorted(self.at(version).items())
        items = [pair for pair in items if "/".join(pair[0]) > after]
        limit = min(limit or 10**9, self.page_limit or 10**9)
        page, rest = items[:limit], items[limit:]
        metadata = {"resourceVersion": str(version)}
        if rest:
            metadata["continue"] = f"{version}|{'/'.join(page[-1][0])}"
        return web.json_response({
            "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
            "items": [one.json() for _, one in page],
        })  # fmt: skip

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        version = int(request.query["resourceVersion"])
        if version < self.cut:
            return _status(410, "Expired", f"too old resource version: {version} ({self.cut})")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        event, epoch = asyncio.Event(), self._epoch
        self._changed.add(event)
        accept = request.headers.get("Accept", "")
        self.watches.append(accept)
        transport = request.transport
        sent = sum(rev <= version for rev, _, _ in self.history)
        marked = max(version, self.rev)
        try:
            while epoch == self._epoch:
                if transport in self._dead:
                    await asyncio.Event().wait()
                while sent < len(self.history) and epoch == self._epoch:
                    await self.watch_gate.wait()
                    rev, kind, one = self.history[sent]
                    sent += 1
                    if rev <= version:
                        continue  # a watch from the future is silent below it
                    await response.write(_frame(kind, one.json(rev)))
                if self.rev > marked and epoch == self._epoch:
                    marked = self.rev
                    bookmark = {
                        "kind": "PartialObjectMetadata", "metadata": {"resourceVersion": str(self.rev)},
                    }  # fmt: skip
                    if self.rev > version:
                        await response.write(_frame("BOOKMARK", bookmark))
                event.clear()
                if sent == len(self.history) and marked >= self.rev:
                    await event.wait()
            return response
        except ConnectionError:
            return response  # the client went, or a test broke the connection
        finally:
            self._changed.discard(event)
            self.watches.remove(accept)


def _frame(kind: str, obj: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


def _status(code: int, reason: str, message: str) -> web.Response:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
    return web.json_response(body, status=code)
