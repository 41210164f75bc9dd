"""Members and a clock to test reads with: real HTTP, the real log, and time in the test's hands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import aiohttp
import proto_model as model
from aiohttp import web

from _fastpath.marker import CLASH, Marker
from services.aggregator.clock.position import Position
from services.aggregator.clock.state import Change
from services.aggregator.clock.tap import Tap
from services.aggregator.clock.view import Snapshot, View
from services.aggregator.front.errors import response as error_response
from services.aggregator.front.request_info import parse
from services.aggregator.reads import Reads, VersionMarkers
from services.aggregator.types import Aggregated, Call
from services.common.errors import StatusError, expired, too_large_version
from services.common.kube import status_pb
from services.common.kube.client import KubeClient
from services.common.kube.reviews import User

Object = dict[str, Any]
PODS = Aggregated("pods", "", "v1", "pods", "Pod", namespaced=True)
BASE = 1_700_000_000_000
PROTOBUF = "application/vnd.kubernetes.protobuf"
NAMES = {
    "json": ("v1", "Pod"), "jsons": ("v1", "PodList"), "partial": ("meta.k8s.io/v1", "PartialObjectMetadata"),
    "partials": ("meta.k8s.io/v1", "PartialObjectMetadataList"),
}  # fmt: skip


def kubeconfig(url: str) -> Object:
    return {
        "clusters": [{"name": "c", "cluster": {"server": url}}], "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x",
    }  # fmt: skip


def status(code: int, reason: str, message: str = "no") -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message}
    return web.json_response(body, status=code)


class FakeMember:
    """Pods of one cluster, with their history: Exact lists, pages, watches, three forms."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.version = 100
        self.objects: dict[str, Object] = {}
        self.history: dict[int, dict[str, Object]] = {100: {}}
        self.events: list[tuple[int, str, Object]] = []
        self.requests: list[web.Request] = []
        self.fail: Any = None  # a response for every list
        self.fail_get: Any = None
        self.fail_review: Any = None  # makes a response for every access review
        self.watch_from = 0  # versions below are 410 for a watch
        self.delay = 0.0  # seconds before an answer's body
        self.columns = ["Name", "Ready"]
        self.mute = False  # watches stay silent
        self.calls = 0  # of `go_deaf`
        self.denied: set[str] = set()
        self.protobuf = True  # pods have it; False: as of a custom resource
        self._moved = asyncio.Event()

    async def start(self) -> None:
        app = web.Application(handler_args={"handler_cancellation": True})
        self.serve_many = self._many
        app.router.add_route("GET", "/api/v1/pods", lambda request: self.serve_many(request))
        app.router.add_route("GET", "/api/v1/namespaces/{ns}/pods", self._many)
        app.router.add_route("GET", "/api/v1/namespaces/{ns}/pods/{name}", self._one)
        app.router.add_route("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", self._review)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self.client = await KubeClient.connect(kubeconfig(self.url), name=self.name)

    async def stop(self) -> None:
        await self.client.close()
        await self._runner.cleanup()

    def write(self, obj: Object, *, delete: bool = False) -> Object:
        self.version += 1
        obj = json.loads(json.dumps(obj))
        obj["metadata"]["resourceVersion"] = str(self.version)
        key = f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"
        type_ = "DELETED" if delete else ("MODIFIED" if key in self.objects else "ADDED")
        if delete:
            self.objects.pop(key)
        else:
            self.objects[key] = obj
        self.history[self.version] = dict(self.objects)
        self.events.append((self.version, type_, obj))
        self.nudge()
        return obj

    def nudge(self) -> None:
        """Watches look again."""
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def go_deaf(self) -> None:
        """Watches that are open stay so, and bring nothing any more."""
        self.calls += 1
        self.nudge()

    def at(self, version: int) -> dict[str, Object]:
        return self.history[max(v for v in self.history if v <= version)]

    def _form(self, request: web.Request) -> str:
        accept = request.headers["Accept"]
        return "table" if "as=Table" in accept else "partial" if "as=Partial" in accept else "json"

    @staticmethod
    def _proto(request: web.Request) -> bool:
        return request.headers["Accept"].startswith(PROTOBUF)

    def _refuses(self, request: web.Request) -> bool:
        return self._proto(request) and not self.protobuf

    def _row(self, obj: Object, include: str) -> Object:
        partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
        cells = {"Name": obj["metadata"]["name"], "Ready": "1/1"}
        kept = {"kind": "Pod", "apiVersion": "v1", **obj} if include == "Object" else partial
        return {"cells": [cells.get(c, "?") for c in self.columns], "object": kept}

    def _table(self, objects: list[Object], version: str, include: str, columns: bool = True) -> Object:
        names = [{"name": c, "type": "string", "format": "name" if c == "Name" else "", "description": "", "priority": 0}
                 for c in self.columns]  # fmt: skip
        return {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": version},
                "columnDefinitions": names if columns else None,
                "rows": [self._row(obj, include) for obj in objects]}  # fmt: skip

    def _shape(self, obj: Object, form: str, include: str, columns: bool = True) -> Object:
        if form == "table":
            return self._table([obj], obj["metadata"]["resourceVersion"], include, columns)
        if form == "partial":
            return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
        return {"kind": "Pod", "apiVersion": "v1", **obj}

    async def _one(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        if self.fail_get is not None:
            return self.fail_get() if callable(self.fail_get) else self.fail_get
        obj = self.objects.get(f"{request.match_info['ns']}/{request.match_info['name']}")
        if obj is None:
            return status(404, "NotFound")
        if self._refuses(request):
            return status(406, "NotAcceptable")
        if self._proto(request):
            version, kind = NAMES[self._form(request)]
            body = model.envelope(version, kind, model.body_of(obj, version, kind))
            return web.Response(body=body, content_type=PROTOBUF)
        return web.json_response(self._shape(obj, self._form(request), request.query.get("includeObject", "")))

    async def _review(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        user = request.headers.get("Impersonate-User", "")
        if self.fail_review is not None:
            return self.fail_review()
        return web.json_response({"status": {"allowed": user not in self.denied}}, status=201)

    async def _many(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        if self._refuses(request):
            return status(406, "NotAcceptable")
        if request.query.get("watch") == "true":
            return await self._watch(request)
        if self.fail is not None:
            return self.fail() if callable(self.fail) else self.fail
        if request.headers.get("Impersonate-User", "") in self.denied:
            return status(403, "Forbidden", "denied")
        await asyncio.sleep(self.delay)
        query, after = request.query, ""
        version = int(query.get("resourceVersion") or self.version)
        if "continue" in query:
            import base64

            token = json.loads(base64.urlsafe_b64decode(query["continue"] + "=="))
            version, after = token["rv"], token["start"].rstrip("\0")
        ns = request.match_info.get("ns", "")
        rows = sorted(self.at(version).items())
        rows = [(k, o) for k, o in rows if (not ns or k.startswith(ns + "/")) and self._selected(query, o)]
        if after:
            rows = [(k, o) for k, o in rows if (k.partition("/")[2] if ns else k) > after]
        metadata: Object = {"resourceVersion": str(version)}
        limit = int(query.get("limit", 0))
        if limit and len(rows) > limit:
            metadata["continue"] = "more"
            if not query.get("labelSelector") and not query.get("fieldSelector"):
                metadata["remainingItemCount"] = len(rows) - limit
            rows = rows[:limit]
        objects = [o for _, o in rows]
        form = self._form(request)
        if self._proto(request):
            names, (version_, kind) = NAMES[form + "s"], NAMES[form]
            body = model.list_of(*names, metadata, [model.body_of(o, version_, kind) for o in objects])
            return web.Response(body=body, content_type=PROTOBUF)
        if form == "table":
            return web.json_response(self._table(objects, str(version), query.get("includeObject", "")) | {"metadata": metadata})
        if form == "partial":
            items = [self._shape(o, "partial", "") for o in objects]
            return web.json_response({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "items": items})
        return web.json_response({"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": objects})

    @staticmethod
    def _selected(query: Mapping[str, str], obj: Object) -> bool:
        labels = obj["metadata"].get("labels", {})
        for term in filter(None, query.get("labelSelector", "").split(",")):
            key, _, value = term.partition("=")
            if labels.get(key) != value:
                return False
        for term in filter(None, query.get("fieldSelector", "").split(",")):
            key, _, value = term.partition("=")
            node: Any = obj
            for part in key.split("."):
                node = node.get(part, {}) if isinstance(node, dict) else {}
            if (node or "") != value:
                return False
        return True

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        position = int(request.query.get("resourceVersion") or 0)
        form, include = self._form(request), request.query.get("includeObject", "")

        async def send(type_: str, obj: Object) -> None:
            if self._proto(request):
                if type_ == "ERROR":
                    body = status_pb.message(obj)
                    await response.write(model.event(type_, "v1", "Status", body))
                    return
                version, kind = NAMES[form]
                await response.write(model.event(type_, version, kind, model.body_of(obj, version, kind)))
                return
            await response.write(json.dumps({"type": type_, "object": obj}).encode() + b"\n")

        if position < self.watch_from:
            await send("ERROR", {"kind": "Status", "apiVersion": "v1", "code": 410, "reason": "Expired", "message": "old"})
            return response
        first, calls = True, self.calls
        while True:
            if calls != self.calls:
                await asyncio.Event().wait()
            moved = self._moved
            for version, type_, obj in list(self.events):
                if version > position and not self.mute:
                    position = version
                    await send(type_, self._shape(obj, form, include, first))
                    first = False
            await moved.wait()


class FakeClock(View):
    """A ResourceClock on the real log; `log` commits what a member wrote."""

    def __init__(self, aggregated: Aggregated = PODS) -> None:
        super().__init__(aggregated)
        self.state.base = BASE
        self.members: dict[str, Any] = {}
        self.revision = 10
        self.gaps: list[tuple[str, int]] = []
        self.refreshed: list[str] = []
        self.vectors: dict[int, dict[str, Position]] = {}
        self.left_out: list[str] = []
        self.barriers = 0
        self.certain = False
        self.committing = False  # a transaction is under way
        self.on_refresh: Any = None
        self.commit({})

    def commit(self, positions: Mapping[str, Position], *markers: Marker) -> int:
        self.revision += 1
        change = Change(self.revision, list(enumerate(markers)), dict(positions))
        self.state.apply(change)
        self.vectors[self.head] = dict(self.state.positions)
        self.topics.told(self.state)
        self.pulse.beat()
        return self.head

    def log(self, cluster: str, obj: Object, *, delete: bool = False, kind: int = 0, incarnation: str = "") -> int:
        meta = obj["metadata"]
        version = int(meta["resourceVersion"])
        life = incarnation or f"{cluster}-uid/0"
        marker = Marker(cluster, life, meta["namespace"], meta["name"], meta["uid"], version,
                        dict(meta.get("labels", {})), deleted=delete, kind=kind)  # fmt: skip
        before = self.marker(cluster, meta["namespace"], meta["name"])
        if before is not None and not before.deleted and before.uid == meta["uid"]:
            marker.keep_since(before.since)
        return self.commit({cluster: Position(life, version, version - 1)}, marker)

    def show_next(self, gone: Marker, obj: Object, cluster: str) -> None:
        """A clash ends: the shown object goes and the next is shown, in one transaction."""
        meta = obj["metadata"]
        rest = Marker(cluster, f"{cluster}-uid/0", meta["namespace"], meta["name"], meta["uid"],
                      int(meta["resourceVersion"]), dict(meta.get("labels", {})), kind=CLASH)  # fmt: skip
        rest.keep_since(self.marker(cluster, meta["namespace"], meta["name"]).since)
        self.commit({gone.cluster: Position(gone.incarnation, gone.version, gone.version)}, gone, rest)

    async def snapshot(self, *, linearizable: bool = True, minimum: int = 0, timeout: float = 10) -> Snapshot:
        self.barriers += linearizable
        if minimum > self.head:
            raise too_large_version(minimum, self.head)
        members = {c: p for c, p in self.state.positions.items() if c in self.members and c not in self.left_out}
        return Snapshot(self.head, members, list(self.left_out))

    async def settled(self) -> None:
        while self.committing:
            await self.pulse.wait()

    async def vector_at(self, version: int) -> Snapshot:
        known = [v for v in self.vectors if v <= version]
        if version < self.floor or not known:
            raise expired("no vector")
        return Snapshot(version, {c: p for c, p in self.vectors[max(known)].items() if c in self.members})

    async def open_gap(self, cluster: str) -> None:
        self.gaps.append((cluster, self.head))

    async def refresh(self, cluster: str) -> None:
        self.refreshed.append(cluster)
        if self.on_refresh is not None:
            self.on_refresh()


class FakeOwners:
    """Maps uids as told."""

    def __init__(self) -> None:
        self.known: dict[str, str | None] = {}
        self.slow: dict[str, str | None] = {}
        self.resolved = 0

    def outgoing(self, cluster: str, uids: Any) -> dict[str, str | None] | None:
        uids = list(uids)
        return None if any(u in self.slow for u in uids) else {u: self.known[u] for u in uids if u in self.known}

    async def resolve(self, cluster: str, owners: Any, namespace: str) -> dict[str, str | None]:
        self.resolved += 1
        self.known |= {o.uid: self.slow.pop(o.uid) for o in owners if o.uid in self.slow}
        return self.outgoing(cluster, [o.uid for o in owners]) or {}

    def object_uids(self, cluster: str) -> dict[str, str]:
        return {}

    def object_uid(self, cluster: str, uid: str) -> str:
        return self.known.get(uid) or uid

    def member_uid(self, cluster: str, uid: str) -> str:
        return next((m for m, h in self.known.items() if h == uid), uid)


class Fleet:
    """Members, one clock, and a front that serves reads of pods only."""

    def __init__(self, *names: str) -> None:
        self.members = {name: FakeMember(name) for name in names}
        self.clock = FakeClock()
        self.owners = FakeOwners()
        self.aggregated = PODS
        self.user = User("jane", groups=("system:authenticated",))
        clocks = SimpleNamespace(
            get=lambda group, resource: self.clock if (group, resource) == ("", "pods") else None,
            resources={"pods": self.clock})  # fmt: skip
        identity = lambda call, aggregated: {"Impersonate-User": call.user.name}  # noqa: E731
        self.reads = Reads(clocks, self.owners, fleet_id="fleet", token_secret=b"secret", identity=identity)  # type: ignore[arg-type]
        self.markers = VersionMarkers(clocks, fleet_id="fleet", token_secret=b"secret")  # type: ignore[arg-type]
        self.calls: list[Call] = []

    async def start(self) -> None:
        for name, member in self.members.items():
            await member.start()
            self.clock.members[name] = SimpleNamespace(
                cluster=name, client=member.client, tap=Tap(), state="Live", message="", serves=True,
                position=Position(f"{name}-uid/0", 100, 99))  # fmt: skip
            self.clock.commit({name: Position(f"{name}-uid/0", 100, 99)})
        server = web.Server(self._serve, handler_cancellation=True)
        self._runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self.http = aiohttp.ClientSession(self.url, headers={"User-Agent": "test"})

    async def stop(self) -> None:
        await self.http.close()
        await self.reads.close()
        await self._runner.cleanup()
        for member in self.members.values():
            await member.stop()

    async def forget(self) -> None:
        """As after a restart, or on another replica: a continue token is all there is of a walk."""
        await self.reads._lister.close()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        info = parse(request.method, request.rel_url.raw_path, request.rel_url.raw_query_string)
        call = Call(request, info, self.user)  # type: ignore[arg-type]
        self.calls.append(call)
        try:
            if info.resource == "versionmarkers":
                return await getattr(self.markers, info.verb)(call)
            return await getattr(self.reads, info.verb)(call, self.aggregated)
        except StatusError as error:
            return error_response(error, request.headers.get("Accept", ""))

    def write(self, cluster: str, obj: Object, *, delete: bool = False, log: bool = True) -> Object:
        """A change on a member, and (by default at once) in the log."""
        written = self.members[cluster].write(obj, delete=delete)
        if log:
            self.clock.log(cluster, written, delete=delete)
            self.clock.members[cluster].position = self.clock.state.positions[cluster]
        return written

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        async with self.http.get(path, headers=headers) as answer:
            return answer.status, json.loads(await answer.read())

    @asynccontextmanager
    async def watch(self, query: str, path: str = "/api/v1/pods", **headers: str) -> AsyncIterator[Stream]:
        async with self.http.get(f"{path}?watch=true&{query}", headers=headers) as answer:
            yield Stream(answer)


class Stream:
    """A watch's events."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer

    async def next(self, seconds: float = 5) -> Any:
        line = await asyncio.wait_for(self.answer.content.readline(), seconds)
        return json.loads(line) if line else None

    async def silent(self, seconds: float = 0.15) -> bool:
        try:
            await asyncio.wait_for(self.answer.content.readline(), seconds)
        except TimeoutError:
            return True
        return False


def pod(name: str, ns: str = "default", uid: str = "", **labels: str) -> Object:
    return {"metadata": {"name": name, "namespace": ns, "uid": uid or f"uid-{ns}-{name}", "labels": labels},
            "spec": {"nodeName": "n0"}, "status": {"phase": "Running"}}  # fmt: skip


@asynccontextmanager
async def fleet_of(*names: str) -> AsyncIterator[Fleet]:
    fleet = Fleet(*names)
    await fleet.start()
    try:
        yield fleet
    finally:
        await fleet.stop()
