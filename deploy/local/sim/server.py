"""The simulated clusters on HTTP: `<url>/members/<name>/…` on one port, each path prefix an API server of its own."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import logging
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from aiohttp import web

from deploy.local.sim import admin, misbehave
from deploy.local.sim.cluster import Cluster
from deploy.local.sim.core import User
from deploy.local.sim.driver import Driver
from deploy.local.sim.errors import Refused, forbidden, internal, no_such_resource, unauthorized
from deploy.local.sim.rbac import MASTERS
from deploy.local.sim.represent import error_bytes
from deploy.local.sim.requests import ADMIN, Request, Response, StreamResponse, WatchResponse
from deploy.local.sim.streams import Streams
from deploy.local.sim.world import World

log = logging.getLogger(__name__)

PREFIX = "/members/"
#: Beyond this many events that a watcher has not taken, its watch ends, as a real server's does.
MOST_WAITING = 10_000
BOOKMARK_SECONDS = 60.0
LAST_BOOKMARK_SECONDS = 2.0  # before a watch ends
_GZIP_FROM = 128 * 1024
_MOST_BODY = 3 << 20
_AUTHENTICATED = "system:authenticated"
_PUBLIC = ("/healthz", "/livez", "/readyz", "/version")


class Server:
    """Serves a world that runs on real time. `anonymous`: whoever comes without credentials is an administrator."""

    def __init__(
        self,
        world: World,
        *,
        tls: ssl.SSLContext | None = None,
        anonymous: bool = False,
        home: Path | None = None,
    ) -> None:
        self.world = world
        self.port = 0
        self.streams = Streams(world, home)
        self._tls = tls
        self._anonymous = anonymous
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """The server's own URL; a cluster's is `url_of`."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def url_of(self, name: str) -> str:
        return f"{self.url}{PREFIX}{name}"

    @contextlib.asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[Server]:
        """Listens on loopback while the block runs, and turns the world's timers."""
        app = web.Application(client_max_size=_MOST_BODY)
        app.router.add_route("*", "/{tail:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port, ssl_context=self._tls, backlog=4096)
        await site.start()
        self.port = self._runner.addresses[0][1]
        driver = Driver(self.world, asyncio.get_running_loop())
        try:
            yield self
        finally:
            driver.close()
            for cluster in self.world.clusters.values():
                cluster.drop_watches()
            await self._runner.cleanup()

    async def _serve(self, http: web.Request) -> web.StreamResponse:
        path = http.rel_url.raw_path
        try:
            if path == f"{admin.PREFIX}/healthz":
                return web.Response(text="ok")
            if path.startswith(admin.PREFIX):
                self._user(http, None)
                return await admin.serve(self.world, http)
            cluster, rest = self._cluster(path)
            user = self._impersonated(http, self._user(http, cluster, rest))
        except Refused as refused:
            return _plain(Response(refused.code, error_bytes(refused)), http)
        query = dict(http.rel_url.query)
        headers = {name.lower(): value for name, value in http.headers.items()}
        body = await http.read() if http.method in ("POST", "PUT", "PATCH", "DELETE") else b""
        request = Request(http.method, rest, query, headers, body, user)
        rule = cluster.faults.decide(*cluster.verb(request)) if cluster.faults.rules else None
        if rule is not None:
            played = await misbehave.before(rule, http)
            if played is not None:
                return played
        try:
            answer = cluster.handle(request)
        except Exception as error:
            log.exception("%s %s", request.method, request.path)
            failed = internal(f"the simulated API server failed: {type(error).__name__}: {error}")
            return _plain(Response(failed.code, error_bytes(failed)), http)
        if isinstance(answer, WatchResponse):
            return await self._watch(http, answer, rule)
        if isinstance(answer, StreamResponse):
            return await self.streams.serve(cluster, answer, http)
        if rule is not None and rule.kind == "garbage":
            return await misbehave.spoiled(rule, http, answer)
        return _plain(answer, http)

    def _cluster(self, path: str) -> tuple[Cluster, str]:
        name, slash, rest = path.removeprefix(PREFIX).partition("/")
        if not path.startswith(PREFIX) or name not in self.world.clusters:
            raise no_such_resource()
        return self.world.clusters[name], slash + rest or "/"

    def _user(self, http: web.Request, cluster: Cluster | None, path: str = "") -> User:
        kind, _, token = http.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "bearer":
            found = cluster.core.tokens.get(token.strip()) if cluster is not None else None
            if found is None:
                raise unauthorized()
            return found
        certificate = http.transport.get_extra_info("peercert") if http.transport is not None else None
        if certificate:
            return _certified(certificate)
        if self._anonymous:
            return ADMIN
        if path.startswith(_PUBLIC):
            return User("system:anonymous", ("system:unauthenticated",))
        raise unauthorized()

    def _impersonated(self, http: web.Request, user: User) -> User:
        name = http.headers.get("Impersonate-User", "")
        if not name:
            return user
        if MASTERS not in user.groups:
            raise forbidden(
                "",
                "users",
                name,
                f'User "{user.name}" cannot impersonate resource "users" in API group "" at the cluster scope',
            )
        groups = http.headers.getall("Impersonate-Group", [])
        return User(name, (*groups, _AUTHENTICATED))

    async def _watch(self, http: web.Request, answer: WatchResponse, rule: Any) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "application/json", "Cache-Control": "no-cache, private"}
        )
        response.enable_chunked_encoding()
        watch, frames = answer.watch, answer.frames
        changed = asyncio.Event()
        watch.wake = changed.set
        deadline = time.monotonic() + answer.timeout
        marked = time.monotonic()
        try:
            await response.prepare(http)
            while True:
                changed.clear()
                if events := watch.take():
                    data = b"".join([frames.frame(event) for event in events])
                    if rule is not None and rule.kind == "garbage":
                        await misbehave.spoil_stream(rule, response, data, http)
                        return response
                    await response.write(data)
                    continue
                if watch.closed:
                    break
                now = time.monotonic()
                if now >= deadline:
                    watch.close("timeout")
                    continue
                due = marked + BOOKMARK_SECONDS
                if marked < deadline - LAST_BOOKMARK_SECONDS:
                    due = min(due, deadline - LAST_BOOKMARK_SECONDS)
                if now >= due:
                    watch.bookmark()
                    marked = now
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(due, deadline) - now):
                        await changed.wait()
                if len(watch.events) > MOST_WAITING:
                    watch.close("too slow")
            if watch.reason == "dropped":
                _cut(http)
            else:
                await response.write_eof()
        except ConnectionError:
            pass  # the client left
        finally:
            watch.close()
        return response


def _certified(certificate: dict[str, Any]) -> User:
    parts = [pair for group in certificate.get("subject", ()) for pair in group]
    name = next((value for key, value in parts if key == "commonName"), "")
    groups = tuple(value for key, value in parts if key == "organizationName")
    return User(name, (*groups, _AUTHENTICATED))


def _cut(http: web.Request) -> None:
    """Ends the connection in the middle of the answer, as a network would."""
    if http.transport is not None:
        http.transport.abort()


def _plain(answer: Response, http: web.Request) -> web.Response:
    headers = {"Cache-Control": "no-cache, private", **answer.headers, "Content-Type": answer.content_type}
    body = answer.body
    if len(body) > _GZIP_FROM and "gzip" in http.headers.get("Accept-Encoding", ""):
        headers["Content-Encoding"], headers["Vary"] = "gzip", "Accept-Encoding"
        body = gzip.compress(body, 1)
    return web.Response(status=answer.status, body=body if http.method != "HEAD" else b"", headers=headers)
