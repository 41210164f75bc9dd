"""One endpoint of etcd: its channel and stubs; and who we say we are: TLS, client certificate, user and password."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import msgspec
from aetcd import rpc as stubs
from aetcd.rpc import rpc_pb2

from services.common.config import ConfigError, is_loopback
from services.common.etcd_types import EtcdDenied, map_error

log = logging.getLogger(__name__)

OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # etcd refuses pings that come more often than every 5 s; a member that hangs is left after ten.
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 4_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.ping_timeout_ms", 4_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Despite its name this is how long one attempt to connect may take.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 3_000),
    ("grpc.use_local_subchannel_pool", 1),
]
_UNARY: dict[str, dict[str, Any]] = {
    "KV": {
        "Range": rpc_pb2.RangeResponse, "Put": rpc_pb2.PutResponse, "DeleteRange": rpc_pb2.DeleteRangeResponse,
        "Txn": rpc_pb2.TxnResponse, "Compact": rpc_pb2.CompactionResponse,
    },
    "Lease": {
        "LeaseGrant": rpc_pb2.LeaseGrantResponse, "LeaseRevoke": rpc_pb2.LeaseRevokeResponse,
        # A stream by its definition: one message, and its end, get one answer.
        "LeaseKeepAlive": rpc_pb2.LeaseKeepAliveResponse,
    },
}  # fmt: skip
"""What is called often: service -> method -> its answer."""
STREAM_METADATA = (("hasleader", "true"),)
"""A member that has lost its leader ends such streams instead of staying silent."""


def _encoded(request: Any) -> bytes:
    encoded: bytes = request.SerializeToString()
    return encoded


class EtcdTls(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Files of TLS to etcd: `ca` alone checks the server, `cert` and `key` say who we are."""

    ca: str = ""
    """PEM certificates that etcd is checked against; "" is the system's."""
    cert: str = ""
    """PEM certificate chain of this client; its common name is the etcd user."""
    key: str = ""
    """PEM private key."""

    def __bool__(self) -> bool:
        return bool(self.ca or self.cert)

    def __post_init__(self) -> None:
        if bool(self.cert) != bool(self.key):
            raise ValueError("cert and key go together")

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files. ConfigError names the one that cannot be read."""
        parts = []
        for name in (self.ca, self.key, self.cert):
            try:
                parts.append(Path(name).read_bytes() if name else None)
            except OSError as error:
                raise ConfigError(f"etcd.tls: {name}: {error.strerror}") from None
        return grpc.ssl_channel_credentials(*parts)


class EtcdLogin(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """User and password, where etcd's authentication is on and certificates do not say who we are."""

    user: str = ""
    password_file: str = ""
    """File with the password; read at each login, so that it may be rotated."""

    def __bool__(self) -> bool:
        return bool(self.user)

    def __post_init__(self) -> None:
        if bool(self.user) != bool(self.password_file):
            raise ValueError("user and passwordFile go together")


class Endpoint:
    """One channel and its stubs. ConfigError for an address that cannot be used."""

    def __init__(self, url: str, tls: EtcdTls | None) -> None:
        self.address = url.removeprefix("https://").removeprefix("http://").rstrip("/")
        if tls or url.startswith("https://"):
            credentials = (tls or EtcdTls()).credentials()
            self.channel = grpc.aio.secure_channel(self.address, credentials, OPTIONS)
        elif is_loopback(self.address):
            self.channel = grpc.aio.insecure_channel(self.address, OPTIONS)
        else:
            raise ConfigError(
                f"etcd.endpoints: {url} is not on this machine: use https:// (and etcd.tls ca, cert and key)"
            )
        self.kv, self.lease = (self._methods(service) for service in _UNARY)
        self.watch = stubs.WatchStub(self.channel)
        self.maintenance = stubs.MaintenanceStub(self.channel)
        self.cluster = stubs.ClusterStub(self.channel)
        self.auth = stubs.AuthStub(self.channel)
        self.failures = 0
        """Calls that it did not answer in time; streams of it look whether it lives when this grows."""

    def _methods(self, service: str) -> SimpleNamespace:
        # Not aetcd's stubs: those take messages only, and a commit comes encoded.
        return SimpleNamespace(**{
            name: self.channel.unary_unary(
                f"/etcdserverpb.{service}/{name}", request_serializer=_encoded, response_deserializer=answer.FromString
            )
            for name, answer in _UNARY[service].items()
        })  # fmt: skip

    async def close(self) -> None:
        """Close the channel."""
        await self.channel.close()


class Session:
    """The token of a login, shared by all endpoints; made when it is first needed."""

    def __init__(self, login: EtcdLogin | None) -> None:
        self._login = login or EtcdLogin()
        self._token = ""
        self._lock = asyncio.Lock()

    async def metadata(self, endpoint: Endpoint, timeout: float) -> tuple[tuple[str, str], ...]:
        """What a call says; logs in on `endpoint` when there is no token. EtcdError."""
        if not self._login:
            return ()
        async with self._lock:
            if not self._token:
                self._token = await self._authenticate(endpoint, timeout)
            return (("token", self._token),)

    def renew(self, used: tuple[tuple[str, str], ...]) -> bool:
        """The call that said `used` was refused: forget its token. False where a login cannot help."""
        if not self._login:
            return False
        if (("token", self._token),) == used:
            self._token = ""
        return True

    def _password(self) -> str:
        try:
            return Path(self._login.password_file).read_text().strip()
        except OSError as error:
            raise EtcdDenied(f"etcd: {self._login.password_file}: {error.strerror}") from None

    async def _authenticate(self, endpoint: Endpoint, timeout: float) -> str:
        request = rpc_pb2.AuthenticateRequest(name=self._login.user, password=self._password())
        try:
            answer = await endpoint.auth.Authenticate(request, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise map_error(error, f"login of {self._login.user}") from error
        log.info("logged in to etcd at %s as %s", endpoint.address, self._login.user)
        return str(answer.token)
