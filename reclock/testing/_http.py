"""Answers HTTP requests from stores of objects, as API servers do."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jsonpatch
from aiohttp import web

from reclock._errors import ApiError, NotFound
from reclock._informer import Object
from reclock._resource import Resource
from reclock.testing._selectors import chosen
from reclock.testing._store import Event, Store, merged

if TYPE_CHECKING:
    from reclock.testing._fleet import FakeCluster, FakeFleet


@dataclass(frozen=True)
class _Path:
    resource: Resource
    namespace: str
    name: str
    subresource: str


class Handler:
    """Serves a FakeFleet."""

    def __init__(self, fleet: FakeFleet) -> None:
        self._fleet = fleet

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self._fleet.requests.append((request.method, request.path_qs))
        self._fleet.headers.append(dict(request.headers))
        try:
            return await self._serve(request)
        except ApiError as error:
            return _status(error)
        except ValueError as error:
            return _status(ApiError(str(error), code=400, reason="BadRequest"))

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        name, parts = (parts[1], parts[2:]) if parts[0] == "clusters" and len(parts) > 1 else ("", parts)
        cluster = self._fleet.find(name)
        if cluster is None:
            raise NotFound(f'clusters.reclock.dev "{name}" not found', reason="NotFound", details={"group": "reclock.dev", "kind": "clusters", "name": name})
        if cluster.broken:
            raise ApiError("the cluster does not answer", code=cluster.broken, reason="ServiceUnavailable")
        if parts == ["version"]:
            return web.json_response({"gitVersion": "v1.34.4"})
        path = _parse(parts)
        if request.method == "GET":
            return await self._read(request, cluster.store, path)
        cluster.writes.append((request.method, request.path))
        return await _write(request, cluster, path)

    async def _read(self, request: web.Request, store: Store, path: _Path) -> web.StreamResponse:
        if path.name:
            return web.json_response(_existing(store, path))
        if request.query.get("watch") in ("true", "1"):
            return await _watch(request, store, path)
        items = [obj for obj in store.list(path.resource) if _wanted(request, path, obj)]
        kind = f"{items[0]['kind']}List" if items else "List"
        meta = {"resourceVersion": str(store.version)}
        version = f"{path.resource.group}/{path.resource.version}".lstrip("/")
        return web.json_response({"kind": kind, "apiVersion": version, "metadata": meta, "items": items})


async def _write(request: web.Request, cluster: FakeCluster, path: _Path) -> web.StreamResponse:
    store = cluster.store
    body: Any = json.loads(await request.read() or b"{}")
    if request.method == "POST":
        _place(body, path)
        return web.json_response(store.create(path.resource, body), status=201)
    if request.method == "PUT":
        _place(body, path)
        return web.json_response(store.update(path.resource, body, status=path.subresource == "status"))
    if request.method == "DELETE":
        found = _existing(store, path)
        uid = (body.get("preconditions") or {}).get("uid")
        if uid and uid != found["metadata"]["uid"]:
            raise ApiError("the UID in the precondition does not match", code=409, reason="Conflict")
        return web.json_response(store.delete(path.resource, path.namespace, path.name))
    if request.method == "PATCH":
        return web.json_response(_patch(store, path, request.content_type, body))
    raise ApiError("the server does not allow this method", code=405, reason="MethodNotAllowed")


def _patch(store: Store, path: _Path, kind: str, body: Any) -> Object:
    old = store.get(path.resource, path.namespace, path.name)
    if old is None and kind.startswith("application/apply-patch"):
        _place(body, path)
        return store.create(path.resource, body)
    old = _existing(store, path)
    made = jsonpatch.apply_patch(old, body) if kind == "application/json-patch+json" else merged(old, body)
    if not (isinstance(body, dict) and (body.get("metadata") or {}).get("resourceVersion")):
        made["metadata"] = {**made["metadata"], "resourceVersion": ""}
    return store.update(path.resource, made, status=path.subresource == "status")


def _place(obj: Object, path: _Path) -> None:
    metadata = obj.setdefault("metadata", {})
    if path.namespace:
        metadata["namespace"] = path.namespace
    if path.name:
        metadata["name"] = path.name


def _existing(store: Store, path: _Path) -> Object:
    found = store.get(path.resource, path.namespace, path.name)
    if found is None:
        details = {"group": path.resource.group, "kind": path.resource.plural, "name": path.name}
        raise NotFound(f'{path.resource.plural} "{path.name}" not found', reason="NotFound", details=details)
    return found


async def _watch(request: web.Request, store: Store, path: _Path) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    seen, epoch = int(request.query.get("resourceVersion") or store.version), store.epoch
    store.after(seen)
    await response.prepare(request)
    while not store.closed and store.epoch == epoch:
        moved = store.moved
        for event in store.after(seen):
            seen = event[0]
            if event[1] == path.resource and (line := _event(request, path, event)) is not None:
                await response.write(line)
        await moved.wait()
    return response


def _event(request: web.Request, path: _Path, event: Event) -> bytes | None:
    """The event as this watcher sees it: what comes into its selectors is ADDED, what goes out DELETED."""
    version, _, old, new = event
    before = old is not None and _wanted(request, path, old)
    after = new is not None and _wanted(request, path, new)
    if not before and not after:
        return None
    kind = "DELETED" if not after else "MODIFIED" if before else "ADDED"
    shown = dict((new if after else old) or {})
    shown["metadata"] = {**shown["metadata"], "resourceVersion": str(version)}
    return json.dumps({"type": kind, "object": shown}).encode() + b"\n"


def _wanted(request: web.Request, path: _Path, obj: Object) -> bool:
    if path.namespace and obj["metadata"].get("namespace") != path.namespace:
        return False
    return chosen(obj, request.query.get("labelSelector", ""), request.query.get("fieldSelector", ""))


def _parse(parts: list[str]) -> _Path:
    if len(parts) < 3 or parts[0] not in ("api", "apis"):
        raise NotFound("the server could not find the requested resource", reason="NotFound")
    group, version, rest = ("", parts[1], parts[2:]) if parts[0] == "api" else (parts[1], parts[2], parts[3:])
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    rest = [*rest, "", "", ""]
    return _Path(Resource(group, version, rest[0]), namespace, rest[1], rest[2])


def _status(error: ApiError) -> web.Response:
    body = {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": str(error),
        "reason": error.reason, "details": error.details, "code": error.code,
    }  # fmt: skip
    return web.json_response(body, status=error.code)
