"""Operations over HTTP: /livez, /readyz (?verbose, /readyz/<check>), /metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from services.common.config import split_address

log = logging.getLogger(__name__)

Check = Callable[[], str | None]
"""Returns None when all is well, else what is missing."""


class OpsServer:
    """Serves the checks and the process's metrics; `start` returns the port (0 where it is off)."""

    def __init__(self, address: str, checks: Mapping[str, Check], live: Check | None = None) -> None:
        self._address = address
        self._checks = checks
        self._live = live
        self._runner: web.AppRunner | None = None

    async def start(self) -> int:
        """Listen; OSError where the address is taken."""
        if not self._address:
            return 0
        app = web.Application()
        app.add_routes([
            web.get("/livez", self._livez), web.get("/healthz", self._livez),
            web.get("/metrics", self._metrics),
            web.get("/readyz", self._readyz), web.get("/readyz/{check}", self._one),
        ])  # fmt: skip
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        host, port = split_address(self._address)
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        bound: int = self._runner.addresses[0][1]
        log.info("operations on http://%s:%d (/livez /readyz /metrics)", host, bound)
        return bound

    async def stop(self) -> None:
        """Stop listening; idempotent."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def failing(self) -> dict[str, str]:
        """Return the checks that do not pass, with what is missing."""
        return {name: reason for name, check in self._checks.items() if (reason := check())}

    async def _livez(self, request: web.Request) -> web.Response:
        reason = self._live() if self._live else None
        return web.Response(text=reason or "ok", status=500 if reason else 200)

    async def _readyz(self, request: web.Request) -> web.Response:
        failing = self.failing()
        if not failing and "verbose" not in request.query:
            return web.Response(text="ok")
        lines = [
            f"[-]{name} failed: {failing[name]}" if name in failing else f"[+]{name} ok"
            for name in self._checks
        ]
        lines.append("readyz check failed" if failing else "readyz check passed")
        return web.Response(text="\n".join(lines) + "\n", status=503 if failing else 200)

    async def _one(self, request: web.Request) -> web.Response:
        check = self._checks.get(request.match_info["check"])
        if check is None:
            return web.Response(text=f"no such check; there are: {', '.join(self._checks)}", status=404)
        reason = check()
        return web.Response(text=reason or "ok", status=503 if reason else 200)

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})
