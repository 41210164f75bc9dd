"""The gRPC channel to the controller service: who we are, and what its errors mean."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2

from reclock._connection import Connection
from reclock._errors import ReclockError, RegistrationRefused
from reclock._settings import Settings

MAX_MESSAGE = 64 * 1024 * 1024
_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # despite its name: how long one attempt to connect may take
    ("grpc.max_reconnect_backoff_ms", 10_000),
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    # Several replicas behind one name: streams spread over them, and find another one when theirs goes.
    ("grpc.service_config", '{"loadBalancingConfig": [{"round_robin": {}}]}'),
    ("grpc.use_local_subchannel_pool", 1),
]
_NO_PROXY = [("grpc.enable_http_proxy", 0)]
_FINAL = {
    grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND,
}  # fmt: skip


def open_channel(settings: Settings) -> grpc.aio.Channel:
    """A channel that connects by itself, again and again. ReclockError for plaintext off this machine."""
    address = settings.reconciler
    if settings.tls_ca:
        read = {name: _read(path) for name, path in _files(settings) if path}
        credentials = grpc.ssl_channel_credentials(read.get("ca"), read.get("key"), read.get("cert"))
        return grpc.aio.secure_channel(address, credentials, [*_OPTIONS, *(_NO_PROXY if on_this_machine(address) else ())])
    if not on_this_machine(address):
        raise ReclockError(f"{address} is not on this machine: give tls_ca (RECLOCK_TLS_CA), and tls_cert with tls_key or a token")
    return grpc.aio.insecure_channel(address, [*_OPTIONS, *_NO_PROXY])


def _files(settings: Settings) -> list[tuple[str, str]]:
    return [("ca", settings.tls_ca), ("key", settings.tls_key), ("cert", settings.tls_cert)]


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ReclockError(f"{path}: {error.strerror}") from error


def on_this_machine(address: str) -> bool:
    """Whether a gRPC address is loopback."""
    if address.startswith("unix:"):
        return True
    host = address.rsplit(":", 1)[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def identity(connection: Connection, settings: Settings) -> tuple[tuple[str, str], ...]:
    """Metadata that says who we are: the bearer token that the front gets too, if there is one."""
    if settings.tls_cert:
        return ()
    token = await connection.authorization()
    return (("authorization", token),) if token else ()


def is_final(error: grpc.aio.AioRpcError) -> bool:
    """Whether asking again in the same words would get the same answer."""
    return error.code() in _FINAL


def describe(error: grpc.aio.AioRpcError) -> str:
    """The error in one line, with the fields that a BadRequest names, where the message does not."""
    text = f"{error.code().name}: {error.details() or 'no detail'}"
    fields = "; ".join(f"{one.field}: {one.description}" for one in _violations(error) if one.description not in text)
    return f"{text} ({fields})" if fields else text


def refused(error: grpc.aio.AioRpcError, controller: str) -> RegistrationRefused:
    """The error of a controller that the service does not take."""
    return RegistrationRefused(f"controller {controller}: {describe(error)}")


def _violations(error: grpc.aio.AioRpcError) -> list[Any]:
    found: list[Any] = []
    for key, value in error.trailing_metadata() or ():
        if key != "grpc-status-details-bin":
            continue
        for detail in status_pb2.Status.FromString(value).details:
            bad = error_details_pb2.BadRequest()
            if detail.Unpack(bad):
                found += bad.field_violations
    return found
