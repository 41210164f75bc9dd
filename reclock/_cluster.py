"""The Kubernetes API of one cluster, reached through the front."""

from __future__ import annotations

import builtins
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import quote

from reclock._connection import Connection, Query
from reclock._errors import Expired, NotFound, Unreachable
from reclock._informer import Change, Informer, Object
from reclock._resource import Resource, resource_of

if TYPE_CHECKING:
    from kubernetes_asyncio.client import ApiClient

PatchType: TypeAlias = Literal["merge", "strategic", "json"]
Propagation: TypeAlias = Literal["Background", "Foreground", "Orphan"]

PAGE = 500
_PATCHES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
}


class Cluster:
    """A client of one cluster, ready at once; made by `Fleet.cluster`. Every method raises ApiError.

    `name` "" is the host: the front's own root, where types that are aggregated (pods, …) show all clusters' objects.
    Objects are dicts, as JSON has them. Resources are written "v1/configmaps" or "apps/v1/deployments". `timeout` is in
    seconds, for one HTTP request.
    """

    def __init__(
        self, connection: Connection, name: str, *, manager: str = "reclock-sdk", guard: Callable[[], None] | None = None
    ) -> None:
        self.connection = connection
        self.name = name
        self.prefix = f"/clusters/{quote(name, safe='')}" if name else ""
        """Path of this cluster's API below the front's URL."""
        self.manager = manager
        """Field manager of `apply`, `create`, `update` and `patch`."""
        self._guard = guard

    def __str__(self) -> str:
        return f"cluster {self.name}" if self.name else "host"

    def __repr__(self) -> str:
        return f"<reclock.Cluster {self.name!r}>"

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Any = None,
        content_type: str = "application/json",
        timeout: float = 30.0,
    ) -> Any:
        """Any request below this cluster's API, decoded: `await cluster.call("GET", "/version")`."""
        if self._guard is not None:
            self._guard()
        data = await self.connection.request(
            method, self.prefix + path, query=query, timeout=timeout,
            body=None if body is None else json.dumps(body).encode(),
            content_type="" if body is None else content_type,
        )  # fmt: skip
        try:
            return json.loads(data)
        except ValueError:
            raise Unreachable(f"{method} {self.prefix}{path}: the answer is no JSON") from None

    async def get(self, resource: str | Resource, name: str, namespace: str = "") -> Object:
        """The object. NotFound when there is none."""
        found: Object = await self.call("GET", Resource.of(resource).path(namespace, name))
        return found

    async def find(self, resource: str | Resource, name: str, namespace: str = "") -> Object | None:
        """The object, or None. NotFound when there is no such cluster or type: that says nothing about the object."""
        where = Resource.of(resource)
        try:
            return await self.get(where, name, namespace)
        except NotFound as error:
            if not _is_about(error, where, name):
                raise
            return None

    async def list(
        self, resource: str | Resource, namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> builtins.list[Object]:
        """All objects that the selectors choose, of one namespace or of all."""
        return (await self.list_with_version(resource, namespace, labels=labels, fields=fields))[0]

    async def list_with_version(
        self, resource: str | Resource, namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> tuple[builtins.list[Object], str]:
        """The same, with the resourceVersion of the list."""
        path = Resource.of(resource).path(namespace)
        items: builtins.list[Object] = []
        token, limit = "", PAGE
        while True:
            query = {"labelSelector": labels, "fieldSelector": fields, "limit": limit or None, "continue": token}
            try:
                page = await self.call("GET", path, query=query, timeout=60.0)
            except Expired:
                if not token:
                    raise
                items, token, limit = [], "", 0  # the pages' version is gone: all at once instead
                continue
            kind = str(page.get("kind", "")).removesuffix("List")
            for item in page.get("items") or []:
                # Objects inside of a list do not name their type; everywhere else they do.
                items.append({"apiVersion": page.get("apiVersion"), "kind": kind, **item})
            token = page["metadata"].get("continue") or ""
            if not token:
                return items, str(page["metadata"]["resourceVersion"])

    async def watch(
        self, resource: str | Resource, namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> AsyncGenerator[Change, None]:
        """What is there, as ADDED, then changes for as long as one iterates; breaks are bridged, nothing is lost."""
        informer = Informer(self, Resource.of(resource), namespace=namespace, labels=labels, fields=fields)
        async with aclosing(informer.changes()) as changes:
            async for change in changes:
                yield change

    async def create(self, obj: Object, *, resource: str | Resource | None = None) -> Object:
        """Create; returns it as stored. AlreadyExists when it is there."""
        where, namespace, _ = _place(obj, resource)
        query = {"fieldManager": self.manager}
        made: Object = await self.call("POST", where.path(namespace), query=query, body=obj)
        return made

    async def update(self, obj: Object, *, resource: str | Resource | None = None, subresource: str = "") -> Object:
        """Replace. Conflict when it has changed since the resourceVersion that the object carries."""
        where, namespace, name = _place(obj, resource)
        query = {"fieldManager": self.manager}
        made: Object = await self.call("PUT", where.path(namespace, name, subresource), query=query, body=obj)
        return made

    async def apply(
        self,
        obj: Object,
        *,
        resource: str | Resource | None = None,
        manager: str = "",
        force: bool = True,
        subresource: str = "",
    ) -> Object:
        """Server-side apply: create it, or make the fields that are named what they are here.

        Fields that this manager applied before and that are missing now are removed. Without `force` fields of other
        managers are a Conflict.
        """
        where, namespace, name = _place(obj, resource)
        made: Object = await self.call(
            "PATCH", where.path(namespace, name, subresource), body=obj,
            query={"fieldManager": manager or self.manager, "force": force}, content_type="application/apply-patch+yaml",
        )  # fmt: skip
        return made

    async def patch(
        self,
        resource: str | Resource,
        name: str,
        patch: Any,
        namespace: str = "",
        *,
        type: PatchType = "merge",
        subresource: str = "",
    ) -> Object:
        """Patch; returns it as stored. `patch` is a dict, or a list of operations for type "json"."""
        path = Resource.of(resource).path(namespace, name, subresource)
        made: Object = await self.call(
            "PATCH", path, query={"fieldManager": self.manager}, body=patch, content_type=_PATCHES[type]
        )
        return made

    async def delete(
        self,
        resource: str | Resource,
        name: str,
        namespace: str = "",
        *,
        propagation: Propagation = "Background",
        uid: str = "",
        missing_ok: bool = True,
    ) -> None:
        """Delete, only the object of that `uid` when given (else Conflict). None there: nothing to do."""
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        if uid:
            options["preconditions"] = {"uid": uid}
        where = Resource.of(resource)
        try:
            await self.call("DELETE", where.path(namespace, name), body=options)
        except NotFound as error:
            if not missing_ok or not _is_about(error, where, name):
                raise

    def typed(self) -> ApiClient:
        """A `kubernetes_asyncio.client.ApiClient` of this cluster, for typed calls; a context manager of its own:
        `async with cluster.typed() as api: await CoreV1Api(api).read_namespaced_pod(…)`.
        """
        return self.connection.typed(self.prefix)


def _place(obj: Object, resource: str | Resource | None) -> tuple[Resource, str, str]:
    metadata = obj.get("metadata") or {}
    where = Resource.of(resource) if resource is not None else resource_of(obj)
    return where, str(metadata.get("namespace") or ""), str(metadata.get("name") or "")


def _is_about(error: NotFound, resource: Resource, name: str) -> bool:
    """Whether it is this object that is not there, and not its cluster or its type."""
    said = error.details
    return (said.get("kind"), said.get("group") or "", said.get("name")) == (resource.plural, resource.group, name)
