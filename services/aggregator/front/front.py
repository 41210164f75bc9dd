"""The front itself: one HTTPS server, from the request's first byte to the answer's last."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from aiohttp import web
from opentelemetry.trace import SpanKind
from prometheus_client import Counter, Histogram

from services.aggregator.config import Limits
from services.aggregator.front import audit, errors
from services.aggregator.front.authn import Authenticator
from services.aggregator.front.authz import Authorizer
from services.aggregator.front.certificates import Authorities
from services.aggregator.front.connections import Listener
from services.aggregator.front.dispatch import Dispatch
from services.aggregator.front.documents import Documents
from services.aggregator.front.health import Health, is_public
from services.aggregator.front.identity import ANONYMOUS
from services.aggregator.front.impersonation import impersonate, wanted
from services.aggregator.front.limits import REFUSED, InFlight
from services.aggregator.front.members import Members
from services.aggregator.front.request_info import MalformedPath, parse
from services.aggregator.front.server import FrontRequest, FrontServer
from services.aggregator.front.tls import ServerTls
from services.aggregator.types import Call
from services.common import telemetry
from services.common.config import split_address
from services.common.errors import (
    StatusError,
    bad_request,
    method_not_allowed,
    too_many_requests,
    unauthorized,
)
from services.common.fleet import FleetWatcher
from services.common.kube.client import KubeClient
from services.common.kube.reviews import User
from services.common.tasks import Tasks

if TYPE_CHECKING:
    from services.aggregator.aggregations import Aggregations
    from services.aggregator.clock.clocks import ResourceClocks
    from services.aggregator.pages import Pages
    from services.aggregator.reads import Reads
    from services.aggregator.reads.versionmarkers import VersionMarkers
    from services.aggregator.writes import Writes

log = logging.getLogger(__name__)

DRAIN = 2.0
"""Seconds that running requests get when the front stops; watches and tunnels end at once, and resume elsewhere."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
RELOAD_PERIOD = 60.0

REQUESTS = Counter("reclock_aggregator_requests_total", "Requests answered", ["verb", "code"])
SECONDS = Histogram(
    "reclock_aggregator_request_seconds", "Time to answer (watches and tunnels not counted)", ["verb"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)  # fmt: skip


class ServingFiles(Protocol):
    """Paths of the serving certificate; without one the front speaks plain HTTP (tests)."""

    @property
    def cert(self) -> str: ...
    @property
    def key(self) -> str: ...


class FrontConfig(Protocol):
    """What the front reads of the aggregator's configuration."""

    @property
    def front_address(self) -> str: ...
    @property
    def front_tls(self) -> ServingFiles: ...
    @property
    def client_ca(self) -> str: ...
    @property
    def request_header_ca(self) -> str: ...
    @property
    def request_header_names(self) -> list[str]: ...


class Front:
    """The Kubernetes API of the fleet. `checks` are what /readyz names."""

    def __init__(
        self,
        config: FrontConfig,
        *,
        host: KubeClient,
        fleet: FleetWatcher,
        aggregations: Aggregations,
        clock: ResourceClocks,
        reads: Reads,
        writes: Writes,
        version_markers: VersionMarkers,
        pages: Pages | None = None,
        checks: Mapping[str, Callable[[], str | None]] | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._config = config
        self._authenticator = Authenticator(host)
        self._authorizer = Authorizer(host)
        self._limits = limits or Limits()
        self._in_flight = InFlight(self._limits)
        self._tasks = Tasks("front")
        self._streams: set[asyncio.Task[object]] = set()
        self._server: FrontServer | None = None
        self._listener: Listener | None = None
        self._dispatch = Dispatch(
            host=host,
            authorizer=self._authorizer,
            members=Members(host, fleet, clock, self._authorizer),
            documents=Documents(host, fleet, aggregations),
            health=Health(host, checks or {}),
            aggregations=aggregations,
            reads=reads,
            writes=writes,
            version_markers=version_markers,
            pages=pages,
        )

    async def start(self, *, shared: bool = False) -> int:
        """Listen; returns the port. `shared`: so do other processes of this machine, each takes its share of
        connections. Raises OSError (address, files) and ssl.SSLError."""
        config = self._config
        authorities = Authorities(config.client_ca, config.request_header_ca, tuple(config.request_header_names))
        self._server = FrontServer(self._handle, authorities, self._limits)
        host, port = split_address(config.front_address)
        tls = None
        if config.front_tls.cert:
            tls = ServerTls(config.front_tls.cert, config.front_tls.key, authorities)
            self._tasks.spawn(_renew(tls, self._server), "certificates")
        self._listener = Listener(self._limits, self._server.protocol, tls.context if tls else None)
        bound = await self._listener.start(host, port, shared=shared)
        log.info("front on %s://%s:%d", "https" if tls else "http", host, bound)
        return bound

    async def stop(self) -> None:
        """Stop listening, give running requests DRAIN seconds, then end them; idempotent."""
        if self._listener is not None:
            await self._listener.close()
            self._listener = None
        if self._server is not None:
            self._server.pre_shutdown()
            for stream in self._streams:
                stream.cancel()
            await self._dispatch.drain(DRAIN)
            await self._server.shutdown(DRAIN / 2)
            self._server = None
        await self._tasks.close()

    async def _handle(self, request: FrontRequest) -> web.StreamResponse:
        """Answer one request; whatever goes wrong becomes a Status."""
        started = time.monotonic()
        url = request.rel_url
        code = 500
        verb = request.method
        try:
            with telemetry.span(
                request.method,
                kind=SpanKind.SERVER,
                parent=telemetry.extract(request.headers) if telemetry.enabled() else None,
            ) as span:
                try:
                    response = await self._authenticated(request)
                except (asyncio.CancelledError, ConnectionError):
                    code = 499
                    raise
                except Exception as error:
                    status = errors.from_exception(error, f"{request.method} {url.raw_path}")
                    if request.started:
                        code = status.code
                        raise ConnectionAbortedError(status.message) from error
                    response = errors.response(status, request.headers.get("Accept", ""))
                code = response.status
                if telemetry.enabled():
                    span.set_attribute("url.path", url.raw_path)
                    span.set_attribute("http.response.status_code", code)
            return response
        finally:
            call = request.call
            lasting = call is not None and self._dispatch.is_stream(call)
            if call is not None and call.info.verb:
                verb = call.info.verb
            REQUESTS.labels(verb, code).inc()
            if not lasting:
                SECONDS.labels(verb).observe(time.monotonic() - started)

    async def _authenticated(self, request: FrontRequest) -> web.StreamResponse:
        url = request.rel_url
        if request.method not in METHODS:
            raise method_not_allowed(f"method {request.method} is not served")
        if not url.raw_path.startswith("/"):
            raise bad_request("the request's target is no path")
        try:
            info = parse(request.method, url.raw_path, url.raw_query_string)
        except MalformedPath as error:
            raise StatusError(error.code, None, str(error)) from None
        by = await self._authenticator.user(request, request.connection.peer())
        if by is None:
            if not is_public(info.path) or info.cluster is not None:
                raise unauthorized()
            by = ANONYMOUS
        elif not request.connection.slot.vouch():
            REFUSED.labels("connection").inc()
            raise too_many_requests("too many connections, please try again later", retry_after=1)
        user = await impersonate(by, request.headers, self._authorizer) if wanted(request.headers) else by
        call = request.call = Call(request, info, user, audit_id=request.audit_id)
        lasting = self._dispatch.is_stream(call)
        with self._in_flight.enter(by.name, "stream" if lasting else "request", call), self._ended_by_stop(lasting):
            if not audit.is_audited(call):
                return await self._dispatch.serve(call)
            return await self._audited(call, by)

    @contextmanager
    def _ended_by_stop(self, lasting: bool) -> Iterator[None]:
        """Let `stop` cancel the running handler if it lasts."""
        task = asyncio.current_task() if lasting else None
        if task is not None:
            self._streams.add(task)
        try:
            yield
        finally:
            if task is not None:
                self._streams.discard(task)

    async def _audited(self, call: Call, by: User) -> web.StreamResponse:
        started = time.monotonic()
        outcome: int | str = "broken off"
        try:
            response = await self._dispatch.serve(call)
            outcome = response.status
            return response
        except StatusError as error:
            outcome = error.code
            raise
        finally:
            audit.record(call, by.name, outcome, time.monotonic() - started)


async def _renew(tls: ServerTls, server: FrontServer) -> None:
    while True:
        await asyncio.sleep(RELOAD_PERIOD)
        if tls.reload():
            server.recheck()
