"""/healthz, /livez, /readyz, /version, /metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from services.aggregator.front.server import FrontRequest
from services.common.cache import LoadingCache
from services.common.errors import StatusError
from services.common.kube.client import KubeClient

Check = Callable[[], str | None]
VERSION_SECONDS = 10.0
PUBLIC = ("/healthz", "/livez", "/readyz", "/version")
"""Served without credentials."""


def is_public(path: str) -> bool:
    """Whether `path` is served to anybody."""
    return path in PUBLIC or path.startswith(("/healthz/", "/livez/", "/readyz/")) or path == "/version/"


class Health:
    """Answers for the front itself; `checks` name what readiness needs: None when there, else the reason."""

    def __init__(self, host: KubeClient, checks: Mapping[str, Check]) -> None:
        self._host = host
        self._checks = checks
        self._versions: LoadingCache[str, bytes] = LoadingCache()
        self._last_version = b""

    async def serve(self, request: FrontRequest, path: str) -> web.Response:
        """Answer a path that `is_public`."""
        kind, _, name = path.strip("/").partition("/")
        if kind == "version":
            return web.Response(body=await self._version(), content_type="application/json")
        checks = self._checks if kind == "readyz" else {}
        if name:
            if name == "ping":
                return _text("ok")
            check = checks.get(name)
            if check is None:
                raise StatusError(404, "NotFound", f"no check {name!r} in {kind}")
            reason = check()
            return _text(reason or "ok", 500 if reason else 200)
        failing = {name: reason for name, check in checks.items() if (reason := check())}
        if not failing and "verbose" not in request.query:
            return _text("ok")
        lines = ["[+]ping ok"]
        lines += [f"[-]{name} failed: {failing[name]}" if name in failing else f"[+]{name} ok" for name in checks]
        lines.append(f"{kind} check {'failed' if failing else 'passed'}")
        return _text("\n".join(lines) + "\n", 500 if failing else 200)

    def metrics(self) -> web.Response:
        """The process's metrics."""
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _version(self) -> bytes:
        try:
            self._last_version = await self._versions.get("", self._load_version)
        except StatusError:
            if not self._last_version:
                raise
        return self._last_version

    async def _load_version(self) -> tuple[bytes, float]:
        answer = await self._host.request("GET", "/version", timeout=10)
        return msgspec.json.format(msgspec.json.encode(marked(answer.json())), indent=2), VERSION_SECONDS


def marked(version: dict[str, Any]) -> dict[str, Any]:
    """The host's version document with Reclock's mark in `gitVersion` (build metadata: it does not sort)."""
    git = str(version.get("gitVersion", ""))
    return {**version, "gitVersion": f"{git}{'.' if '+' in git else '+'}reclock"}


def _text(text: str, status: int = 200) -> web.Response:
    headers = {"X-Content-Type-Options": "nosniff"}
    return web.Response(text=text, status=status, headers=headers)
