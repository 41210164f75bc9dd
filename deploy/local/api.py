"""A small client of one API server, enough to set a fleet up: requests with a client certificate, apply, waits.

Shapes are plain JSON objects. Not for the services, which have their own client.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from typing import Any

import aiohttp

from deploy.local.errors import FleetFailed
from deploy.local.kubeconfig import Access
from deploy.local.probes import http, tls_context

_FIELD_MANAGER = "reclock-fleet"


class ApiError(FleetFailed):
    """An answer >= 400: `status` and the server's message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Api:
    """Requests to one API server as one user."""

    def __init__(self, access: Access) -> None:
        self.server = access.server
        self.tls: ssl.SSLContext = tls_context(access.authority, access.identity)
        self._plurals: dict[tuple[str, str], tuple[str, bool]] = {}

    async def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> Any:
        """The decoded JSON answer. Raises ApiError for >= 400, aiohttp.ClientError when unreachable."""
        data = json.dumps(body).encode() if body is not None else None
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        status, answer = await http(
            method, self.server + path, tls=self.tls, body=data, headers=headers, timeout=30
        )
        if status >= 400:
            raise ApiError(status, _message(answer))
        return json.loads(answer)

    async def apply(self, obj: Mapping[str, Any]) -> Any:
        """Server-side apply of any object, namespace `default` unless it says another."""
        path = await self._path(obj)
        query = f"?fieldManager={_FIELD_MANAGER}&force=true"
        return await self.request("PATCH", path + query, obj, "application/apply-patch+yaml")

    async def create(self, obj: Mapping[str, Any]) -> Any:
        """Creates an object; one that exists already is left as it is."""
        path = (await self._path(obj)).rpartition("/")[0]
        try:
            return await self.request("POST", path, obj)
        except ApiError as error:
            if error.status != 409:
                raise
            return None

    async def _path(self, obj: Mapping[str, Any]) -> str:
        version, kind = obj["apiVersion"], obj["kind"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if (version, kind) not in self._plurals:
            document = await self.request("GET", root)
            for entry in document["resources"]:
                if "/" not in entry["name"]:
                    self._plurals[(version, entry["kind"])] = (entry["name"], entry["namespaced"])
        if (version, kind) not in self._plurals:
            raise ApiError(404, f"{self.server} serves no {kind} in {version}")
        plural, namespaced = self._plurals[(version, kind)]
        namespace = obj["metadata"].get("namespace", "default")
        middle = f"/namespaces/{namespace}" if namespaced else ""
        return f"{root}{middle}/{plural}/{obj['metadata']['name']}"

    async def check(self, path: str) -> str | None:
        """For probes: None when a GET of `path` succeeds, else why not."""
        try:
            await self.request("GET", path)
        except (ApiError, aiohttp.ClientError, TimeoutError, OSError) as error:
            return f"{path}: {error or type(error).__name__}"
        return None


def _message(answer: bytes) -> str:
    try:
        return str(json.loads(answer).get("message", ""))
    except (json.JSONDecodeError, AttributeError):
        return answer[:300].decode(errors="replace")
