"""gRPC channels and servers as all services set them up: mutual TLS, health, reflection, limits, traces."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from services.common import rpc_trace
from services.common.callers import Guard, is_local, is_tls
from services.common.config import TLS, ConfigError, is_loopback, split_address
from services.common.errors import StatusError, cut, rpc_code

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


class GrpcServer:
    """One server: `add` servicers, `start`, `set_serving`, `stop`. Health is NOT_SERVING until told."""

    def __init__(self, address: str, tls: TLS | None = None, *, shared: bool = False) -> None:
        """`shared`: other processes of this machine may listen on the same port, and get their share of calls."""
        self.address = address
        self.port = 0
        """Bound port, after `start`."""
        self._tls = tls
        self._health = HealthServicer()
        self._names: list[str] = []
        self.server = grpc.aio.server(
            options=[*SERVER_OPTIONS, ("grpc.so_reuseport", int(shared))],
            interceptors=[*rpc_trace.server_interceptors(), *([Guard()] if tls else [])],
            maximum_concurrent_rpcs=10_000,
        )  # fmt: skip
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)

    def add(self, register: Callable[[Any, Any], None], servicer: object, name: str) -> None:
        """Serve `servicer`: `add(pb2_grpc.add_XServicer_to_server, servicer, "reclock.x.v1.XService")`."""
        register(servicer, self.server)
        self._names.append(name)

    async def start(self) -> int:
        """Listen and return the port; ConfigError where the address cannot be had."""
        names = [*self._names, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name]
        reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), self.server)
        await self.set_serving(False)
        try:
            if self._tls:
                pair = (_read(self._tls.key, "key"), _read(self._tls.cert, "cert"))
                credentials = grpc.ssl_server_credentials(
                    [pair], root_certificates=_read(self._tls.ca, "ca"), require_client_auth=True
                )
                self.port = self.server.add_secure_port(self.address, credentials)
            else:
                self.port = self.server.add_insecure_port(self.address)
        except RuntimeError:
            self.port = 0
        if not self.port and not self.address.startswith("unix:"):
            raise ConfigError(f"grpcAddress {self.address}: cannot listen there (taken?)")
        await self.server.start()
        log.info("gRPC on %s (%s)", self.bound, "mutual TLS" if self._tls else "plaintext, this machine only")
        return self.port

    @property
    def bound(self) -> str:
        """Address with the bound port."""
        if self.address.startswith("unix:"):
            return self.address
        host = split_address(self.address)[0]
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    async def set_serving(self, serving: bool) -> None:
        """Set the health of the server and of each of its services."""
        status = health_pb2.HealthCheckResponse
        value = status.SERVING if serving else status.NOT_SERVING
        for name in ("", *self._names):
            await self._health.set(name, value)

    async def stop(self, grace: float) -> None:
        """Take no new calls, give running ones `grace` seconds, then cut them; idempotent."""
        # Streams of watchers never end by themselves: the limit is what ends them.
        await self.server.stop(grace)


def peer_may_have_secrets(context: grpc.aio.ServicerContext) -> bool:
    """Whether the caller proved who it is by TLS, or is on this machine."""
    return is_tls(context) or is_local(context)


async def abort(
    context: grpc.aio.ServicerContext,
    code: grpc.StatusCode,
    message: str,
    details: Mapping[str, str] | None = None,
) -> NoReturn:
    """End the call with an error; `details` travel as a google.rpc.ErrorInfo (reason = key `reason`)."""
    if details:
        info = error_details_pb2.ErrorInfo(reason=details.get("reason", ""), domain="reclock.dev")
        info.metadata.update({key: value for key, value in details.items() if key != "reason"})
        await _abort(context, code, message, info)
    await context.abort(code, cut(message))
    raise AssertionError("abort returns never")


async def abort_bad_request(
    context: grpc.aio.ServicerContext, code: grpc.StatusCode, violations: Sequence[tuple[str, str]]
) -> NoReturn:
    """End the call with a google.rpc.BadRequest of (field, what is wrong with it); the message says the same."""
    bad = error_details_pb2.BadRequest()
    for path, text in violations:
        bad.field_violations.add(field=path, description=cut(text))
    await _abort(context, code, "; ".join(f"{path}: {text}" for path, text in violations), bad)


async def _abort(context: grpc.aio.ServicerContext, code: grpc.StatusCode, message: str, detail: Any) -> NoReturn:
    packed = AnyMessage()
    packed.Pack(detail)
    status = status_pb2.Status(code=code.value[0], message=cut(message), details=[packed])
    await context.abort(code, cut(message), trailing_metadata=(("grpc-status-details-bin", status.SerializeToString()),))
    raise AssertionError("abort returns never")


async def abort_status(context: grpc.aio.ServicerContext, error: StatusError) -> NoReturn:
    """End the call with the gRPC code that says the same as `error`."""
    await abort(context, rpc_code(error), error.message, {"reason": error.reason, "code": str(error.code)})


async def wait_ready(chan: grpc.aio.Channel, limit: float) -> bool:
    """Whether `chan` connects within `limit` seconds."""
    try:
        async with asyncio.timeout(limit):
            await chan.channel_ready()
    except TimeoutError:
        return False
    return True
