"""gRPC channels and servers as all services set them up: TLS, who may call, health, reflection, limits, traces."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from services.common import rpc_trace
from services.common.aborts import abort, abort_bad_request, abort_status
from services.common.access import Access
from services.common.callers import for_users
from services.common.config import TLS, ConfigError, UserPort, is_loopback, split_address
from services.common.guard import Guard, UserGuard
from services.common.recheck import Recheck

__all__ = ["GrpcServer", "abort", "abort_bad_request", "abort_status", "channel", "wait_ready"]

log = logging.getLogger(__name__)

MAX_MESSAGE = 64 * 1024 * 1024
OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_send_message_length", MAX_MESSAGE),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
CHANNEL_OPTIONS = [
    *OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 200),
    # Despite its name this is how long one attempt to connect may take.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 10_000),
    # Channels of one process must not share a broken connection's back-off.
    ("grpc.use_local_subchannel_pool", 1),
]
SERVER_OPTIONS = [
    *OPTIONS,
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 0),
]
USER_OPTIONS = [
    ("grpc.max_receive_message_length", 8 * 1024 * 1024),
    # Anybody may connect there: so many, who must be done with TLS in time, and call something now and then.
    ("grpc.max_allowed_incoming_connections", 10_000),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 120_000),
]


def _read(path: str, key: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"tls.{key}: {path}: {error.strerror}") from None


def channel(address: str, tls: TLS | None = None) -> grpc.aio.Channel:
    """Open a channel (it connects by itself, again and again). ConfigError for plaintext off the machine."""
    interceptors = rpc_trace.client_interceptors()
    if tls:
        credentials = grpc.ssl_channel_credentials(
            _read(tls.ca, "ca"), _read(tls.key, "key"), _read(tls.cert, "cert")
        )
        return grpc.aio.secure_channel(address, credentials, CHANNEL_OPTIONS, interceptors=interceptors)
    if not is_loopback(address):
        raise ConfigError(f"{address} is not on this machine: set tls.cert, tls.key and tls.ca")
    return grpc.aio.insecure_channel(address, CHANNEL_OPTIONS, interceptors=interceptors)


class Port:
    """One port of a server: its credentials, and who its guard lets in."""

    def __init__(
        self, key: str, address: str, guard: Any, credentials: Callable[[], grpc.ServerCredentials | None], *, shared: bool,
        options: Sequence[tuple[str, Any]] = (),
    ) -> None:  # fmt: skip
        self.key, self.address, self.port = key, address, 0
        self._credentials = credentials
        self.also: list[str] = []
        self.names: list[str] = []
        # Each key once: of two values gRPC takes the first.
        whole = dict([*SERVER_OPTIONS, *options, ("grpc.so_reuseport", int(shared))])
        self.server = grpc.aio.server(
            options=list(whole.items()),
            interceptors=[*rpc_trace.server_interceptors(), guard],
            maximum_concurrent_rpcs=10_000,
        )  # fmt: skip

    async def start(self) -> None:
        """Listen; ConfigError where the address cannot be had."""
        health = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
        reflection.enable_server_reflection((*self.names, health, reflection.SERVICE_NAME), self.server)
        credentials = self._credentials()
        try:
            if credentials is not None:
                self.port = self.server.add_secure_port(self.address, credentials)
            else:
                self.port = self.server.add_insecure_port(self.address)
        except RuntimeError:
            self.port = 0
        if not self.port and not self.address.startswith("unix:"):
            raise ConfigError(f"{self.key} {self.address}: cannot listen there (taken?)")
        for address in self.also:
            self.server.add_insecure_port(address)
        await self.server.start()

    @property
    def bound(self) -> str:
        """Address with the bound port."""
        if self.address.startswith("unix:"):
            return self.address
        host = split_address(self.address)[0]
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


class GrpcServer:
    """One server: `add` servicers, `start`, `set_serving`, `stop`. Health is NOT_SERVING until told.

    It has a port for the other services, and with `users` another one for everybody with a token, which has only
    those RPCs that are for users.
    """

    def __init__(
        self, address: str, tls: TLS | None = None, *, shared: bool = False, users: UserPort | None = None,
        access: Access | None = None, recheck: Recheck | None = None,
    ) -> None:  # fmt: skip
        """`shared`: other processes of this machine may listen on the same ports, and get their share of calls."""
        self.access = access or Access()
        self.recheck = recheck or Recheck()
        self._tls = tls
        self._health = HealthServicer()
        self.guard = Guard(self.access, self.recheck)
        self._services = Port("grpcAddress", address, self.guard, lambda: _mutual(tls) if tls else None, shared=shared)
        self.also = self._services.also
        """Unix sockets (`unix:/path`) to listen on too, in plaintext: for who may enter their directory."""
        self.listening = asyncio.Event()
        self._users: Port | None = None
        if users is not None:
            self._users = Port(
                "userAddress", users.address, UserGuard(self.access, self.recheck), lambda: _one_sided(users), shared=shared,
                options=USER_OPTIONS,
            )  # fmt: skip
        for port in self._ports:
            health_pb2_grpc.add_HealthServicer_to_server(self._health, port.server)

    @property
    def _ports(self) -> list[Port]:
        return [self._services, *([self._users] if self._users else [])]

    def add(self, register: Callable[[Any, Any], None], servicer: object, name: str) -> None:
        """Serve `servicer`: `add(pb2_grpc.add_XServicer_to_server, servicer, "reclock.x.v1.XService")`."""
        for port in self._ports:
            if port is self._services or for_users(name):
                register(servicer, port.server)
                port.names.append(name)

    async def start(self) -> int:
        """Listen and return the services' port; ConfigError where an address cannot be had."""
        await self.set_serving(False)
        for port in self._ports:
            await port.start()
        self.listening.set()
        log.info("gRPC on %s (%s)", self.bound, "mutual TLS" if self._tls else "plaintext, this machine only")
        if self._users is not None:
            log.info("gRPC for users on %s (TLS, bearer tokens)", self._users.bound)
        return self.port

    @property
    def port(self) -> int:
        """Bound port of the services, after `start`."""
        return self._services.port

    @property
    def bound(self) -> str:
        """Address of the services with the bound port."""
        return self._services.bound

    @property
    def users_bound(self) -> str:
        """Address of the users' port; "" without one."""
        return self._users.bound if self._users is not None else ""

    async def set_serving(self, serving: bool) -> None:
        """Set the health of the server and of each of its services."""
        status = health_pb2.HealthCheckResponse
        value = status.SERVING if serving else status.NOT_SERVING
        for name in ("", *self._services.names):
            await self._health.set(name, value)

    async def stop(self, grace: float) -> None:
        """Take no new calls, give running ones `grace` seconds, then cut them; idempotent."""
        # Streams of watchers never end by themselves: the limit is what ends them.
        for port in self._ports:
            await port.server.stop(grace)


def _mutual(tls: TLS) -> grpc.ServerCredentials:
    pair = (_read(tls.key, "key"), _read(tls.cert, "cert"))
    return grpc.ssl_server_credentials([pair], root_certificates=_read(tls.ca, "ca"), require_client_auth=True)


def _one_sided(users: UserPort) -> grpc.ServerCredentials:
    """No certificate of a client is asked for, so none can be taken for a service's."""
    return grpc.ssl_server_credentials([(_read(users.key, "key"), _read(users.cert, "cert"))])


async def wait_ready(chan: grpc.aio.Channel, limit: float) -> bool:
    """Whether `chan` connects within `limit` seconds."""
    try:
        async with asyncio.timeout(limit):
            await chan.channel_ready()
    except TimeoutError:
        return False
    return True
