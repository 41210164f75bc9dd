"""JSON conveniences of a Kubernetes client: decoded objects in and out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from multidict import CIMultiDictProxy

from services.common.errors import MemberUnreachable
from services.common.kube.resource import Resource

Query = Mapping[str, Any] | Sequence[tuple[str, str]] | str | None
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes

    def json(self) -> Any:
        """Decode the body; MemberUnreachable where it is no JSON."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise MemberUnreachable("the cluster answered with a body that is no JSON") from None


def encode_query(query: Query) -> str:
    """Return the query string; None is left out, booleans are `true`/`false`, a str is taken as it is."""
    if not query:
        return ""
    if isinstance(query, str):
        return query
    pairs = query.items() if isinstance(query, Mapping) else query
    flat: list[tuple[str, str]] = []
    for key, value in pairs:
        for item in value if isinstance(value, list | tuple) else (value,):
            if item is not None:
                flat.append((key, str(item).lower() if isinstance(item, bool) else str(item)))
    return urlencode(flat, quote_via=quote)


class ObjectApi:
    """Mixed into KubeClient, whose `request` it calls. Raises what that raises."""

    @property
    def label(self) -> str:
        """Name of the cluster for people."""
        raise NotImplementedError

    async def request(
        self, method: str, path: str, *, query: Query = None, body: bytes | None = None,
        headers: Mapping[str, str] | None = None, timeout: float = 30, check: bool = True,
    ) -> Response:  # fmt: skip
        """See KubeClient."""
        raise NotImplementedError

    async def _json(
        self, method: str, path: str, query: Query, obj: Any, content_type: str = JSON, timeout: float = 30
    ) -> dict[str, Any]:
        body = None if obj is None else msgspec.json.encode(obj)
        headers = {"Content-Type": content_type} if body is not None else None
        response = await self.request(method, path, query=query, body=body, headers=headers, timeout=timeout)
        answer = response.json()
        if not isinstance(answer, dict):
            raise MemberUnreachable(f"{self.label}: {method} {path}: the answer is no object")
        return answer

    async def get(self, res: Resource, ns: str | None, name: str, sub: str | None = None) -> dict[str, Any]:
        """Return one object."""
        return await self._json("GET", res.path(ns, name, sub), None, None)

    async def list(self, res: Resource, ns: str | None = None, **query: Any) -> dict[str, Any]:
        """Return the list; `query` as in the API (`labelSelector`, `fieldSelector`, `limit`, …)."""
        return await self._json("GET", res.path(ns), query, None, timeout=60)

    async def create(
        self, res: Resource, ns: str | None, obj: Mapping[str, Any], **query: Any
    ) -> dict[str, Any]:
        """Create and return as stored."""
        return await self._json("POST", res.path(ns), query, obj)

    async def update(
        self, res: Resource, ns: str | None, obj: Mapping[str, Any], sub: str | None = None, **query: Any
    ) -> dict[str, Any]:
        """Replace the object that `obj` names."""
        return await self._json("PUT", res.path(ns, obj["metadata"]["name"], sub), query, obj)

    async def patch(
        self, res: Resource, ns: str | None, name: str, patch: Any,
        content_type: str = MERGE_PATCH, sub: str | None = None, **query: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Patch (merge patch by default)."""
        return await self._json("PATCH", res.path(ns, name, sub), query, patch, content_type)

    async def apply(
        self, res: Resource, ns: str | None, name: str, obj: Mapping[str, Any], *,
        field_manager: str = "reclock", force: bool = True, sub: str | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Server-side apply."""
        query = {"fieldManager": field_manager, "force": force}
        return await self._json("PATCH", res.path(ns, name, sub), query, obj, APPLY_PATCH)

    async def delete(
        self, res: Resource, ns: str | None, name: str, *,
        propagation: str | None = None, uid: str | None = None, resource_version: str | None = None,
        grace: int | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Delete; `uid` and `resource_version` are preconditions (409 when they do not hold), `grace` seconds."""
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if propagation:
            options["propagationPolicy"] = propagation
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        if uid or resource_version:
            pairs = {"uid": uid, "resourceVersion": resource_version}
            options["preconditions"] = {key: value for key, value in pairs.items() if value}
        return await self._json("DELETE", res.path(ns, name), None, options)
