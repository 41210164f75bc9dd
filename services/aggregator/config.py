"""Configuration of the aggregator."""

from __future__ import annotations

import msgspec

from services.common.config import KeyPair, UserFacingConfig, split_address
from services.common.etcd_endpoint import EtcdLogin, EtcdTls


class EtcdConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The etcd that holds the version markers."""

    endpoints: list[str] = msgspec.field(default_factory=lambda: ["127.0.0.1:2379"])
    """Client addresses of one etcd cluster: `host:port`, or `https://host:port`."""
    prefix: str = "/reclock/v1/"
    """Prefix of every key; one fleet per prefix."""
    tls: EtcdTls = msgspec.field(default_factory=EtcdTls)
    login: EtcdLogin = msgspec.field(default_factory=EtcdLogin)


class Limits(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """What the front's clients may take of it."""

    requests: int = 600
    """Requests of one user at once; more are 429."""
    streams: int = 8000
    """Watches, followed logs and tunnels of one user at once; more are 429."""
    connections: int = 16384
    """Connections on which somebody was authenticated, of all users. One more takes the place of one that is idle, else
    its requests are 429."""
    unauthenticated: int = 2048
    """Other connections, those in their TLS handshake included. One more takes the place of the oldest, if that is older
    than 5 s; else it is closed."""
    header_bytes: int = 1024 * 1024
    """Length of a request's line and headers together; more is 431."""
    header_seconds: float = 20.0
    """How long they may take to come."""

    def __post_init__(self) -> None:
        low = {
            "requests": self.requests, "streams": self.streams, "connections": self.connections,
            "unauthenticated": self.unauthenticated,
        }  # fmt: skip
        for key, value in low.items():
            if value < 1:
                raise ValueError(f"{key}: {value}; allowed: 1 and more")
        if not 8192 <= self.header_bytes <= 16 * 1024 * 1024:
            raise ValueError(f"headerBytes: {self.header_bytes}; allowed: 8192 to 16777216")
        if not 0.1 <= self.header_seconds <= 3600:
            raise ValueError(f"headerSeconds: {self.header_seconds}; allowed: 0.1 to 3600")


class Window(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """How far back a client may resume: whichever bound is reached first."""

    seconds: int = 900
    revisions: int = 2_000_000


class AggregatorConfig(UserFacingConfig, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Everything that the aggregator can be told."""

    grpc_address: str = "127.0.0.1:7403"
    front_address: str = "127.0.0.1:6443"
    """Where kubectl connects (HTTPS)."""
    processes: int = 1
    """Replicas of this machine that share `frontAddress` and `grpcAddress`, one for each core that is to serve. The
    n-th one's operations are on the port of `httpAddress` plus n (from 0)."""
    front_tls: KeyPair = msgspec.field(default_factory=KeyPair)
    """Its serving certificate."""
    client_ca: str = ""
    """CA of client certificates: the host's, so that one certificate works on both."""
    request_header_ca: str = ""
    """CA of front proxies whose X-Remote-* headers are believed; none when empty."""
    request_header_names: list[str] = msgspec.field(default_factory=list)
    """Common names of those proxies; any with a certificate of the CA when empty."""
    etcd: EtcdConfig = msgspec.field(default_factory=EtcdConfig)
    etcd_overrides: list[str] = msgspec.field(default_factory=list)
    """Resources whose markers lie on another etcd: `pods=https://a:2379;https://b:2379`, `jobs.batch=…`. Prefix,
    TLS and login are those of `etcd`."""
    discovery_address: str = "127.0.0.1:7401"
    scheduler_address: str = "127.0.0.1:7402"
    state_file: str = ""
    """File (mode 0600: it holds members' credentials) of the fleet's last snapshot, with which a start while discovery
    is away serves at once; "" keeps none, then aggregated resources are 503 until discovery is there."""
    window: Window = msgspec.field(default_factory=Window)
    limits: Limits = msgspec.field(default_factory=Limits)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.overrides()
        if self.processes < 1:
            raise ValueError(f"processes: {self.processes}; allowed: 1 and more")
        addresses = {"frontAddress": self.front_address, "grpcAddress": self.grpc_address, "userAddress": self.user_address}
        for key, address in addresses.items():
            if self.processes > 1 and address and split_address(address)[1] == 0:
                raise ValueError(f"{key}: {address}: several processes need a port that is not 0")

    def overrides(self) -> dict[str, list[str]]:
        """Key of a resource (`pods`, `jobs.batch`) -> endpoints of its etcd. ValueError for what is none."""
        found: dict[str, list[str]] = {}
        for text in self.etcd_overrides:
            key, _, urls = text.partition("=")
            endpoints = [url.strip() for url in urls.split(";") if url.strip()]
            if not key.strip() or not endpoints:
                raise ValueError(f"etcdOverrides: {text!r}; allowed: resource.group=endpoint;endpoint")
            if found.setdefault(key.strip(), endpoints) != endpoints:
                raise ValueError(f"etcdOverrides: {key} is named twice")
        return found
