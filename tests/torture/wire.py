"""Requests of the torture run's clients: JSON over TLS to a front or a member, and what they show as history records."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec

from deploy.local.kubeconfig import Access
from deploy.local.probes import tls_context
from services.common.kube.transport import sending
from tests.proof.history import Seen

NAMESPACE = "torture"
PATH = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
JSON = "application/json"
STAMP, VALUE = "torture/stamp", "torture/value"
WARNED = " warned"
CLUSTER = "reclock.dev/cluster"
IGNORED = "kube-root-ca.crt"
"""Made by each cluster for itself: one name on all of them, nobody's stamp."""
FAILURES = (aiohttp.ClientError, OSError, TimeoutError, asyncio.IncompleteReadError)
"""No answer, or half of one."""

Obj = dict[str, Any]


class Refused(Exception):
    """An answer that is no success: `code` of its Status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message[:300]}")
        self.code = code


class Server:
    """One API server, by name; connections are kept."""

    def __init__(self, name: str, access: Access, limit: int = 0) -> None:
        self.name = name
        self.url = access.server
        self._tls: ssl.SSLContext = tls_context(access.authority, access.identity)
        self._session: aiohttp.ClientSession | None = None
        self._limit = limit

    @property
    def session(self) -> aiohttp.ClientSession:
        """Made when it is first needed: it belongs to the running loop."""
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self._tls, limit=self._limit, force_close=False)
            self._session = aiohttp.ClientSession(connector=connector)
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def request(
        self, method: str, path: str, body: Obj | None = None, *, query: dict[str, str] | None = None,
        kind: str = "application/json", timeout: float = 8.0, accept: str = JSON,
    ) -> Obj:  # fmt: skip
        """One call. Refused for >= 400; FAILURES where the outcome is not known. An answer with a Warning has a
        key WARNED."""
        data = None if body is None else msgspec.json.encode(body)
        async with self.session.request(
            method, self.url + path, data=data, params=query, headers={"Content-Type": kind, "Accept": accept},
            timeout=aiohttp.ClientTimeout(total=timeout),
            # Sent again by aiohttp, a PUT that was done is answered 409: a conflict, as it would be counted, it is not.
            middlewares=sending(method),
        ) as answer:  # fmt: skip
            text = await answer.read()
            try:
                found: Obj = msgspec.json.decode(text)
            except msgspec.DecodeError as error:
                if answer.status >= 400:
                    raise Refused(answer.status, text[:200].decode(errors="replace")) from error
                raise aiohttp.ClientPayloadError(f"{answer.status}: half an answer") from error
            if answer.status >= 400:
                raise Refused(answer.status, str(found.get("message", "")))
            if "Warning" in answer.headers:
                found[WARNED] = True
            return found

    async def watch(
        self, path: str, query: dict[str, str], *, silence: float = 75.0, accept: str = JSON, warned: list[bool] | None = None,
    ) -> AsyncIterator[Obj]:
        """Events of a watch until it ends in order. Refused when it is, FAILURES when it breaks. `warned` is filled where
        the answer has a Warning."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=silence)
        async with self.session.get(self.url + path, params={"watch": "1", **query}, timeout=timeout, headers={"Accept": accept}) as answer:
            if answer.status >= 400:
                text = await answer.read()
                raise Refused(answer.status, text[:200].decode(errors="replace"))
            if warned is not None and "Warning" in answer.headers:
                warned.append(True)
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line:
                        yield msgspec.json.decode(line)


def seen_of(obj: Obj) -> Seen:
    """What a client of the front sees of an object's state."""
    metadata = obj["metadata"]
    annotations = metadata.get("annotations") or {}
    return Seen(
        metadata["namespace"], metadata["name"], metadata["uid"], annotations.get(CLUSTER, "?"),
        int(metadata["resourceVersion"]), annotations.get(STAMP, ""),
    )  # fmt: skip


def ledger(name: str, stamp: str, group: str, **annotations: str) -> Obj:
    """An object of the load."""
    return {
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": name, "namespace": NAMESPACE, "labels": {"group": group},
            "annotations": {STAMP: stamp, **annotations},
        },
        "data": {"filler": "x" * 200},
    }  # fmt: skip
