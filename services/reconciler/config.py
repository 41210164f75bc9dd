"""Configuration of the reconciler."""

from __future__ import annotations

import math

import msgspec

from services.common.config import UserFacingConfig, check_listen
from services.common.etcd_endpoint import EtcdLogin, EtcdTls


class EtcdConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The etcd in which replicas split the clusters; without endpoints there is one replica."""

    endpoints: list[str] = msgspec.field(default_factory=list)
    """Client addresses, `host:port`."""
    prefix: str = "/reclock/reconciler/v1/"
    """Prefix of every key; one fleet per prefix."""
    tls: EtcdTls = msgspec.field(default_factory=EtcdTls)
    login: EtcdLogin = msgspec.field(default_factory=EtcdLogin)


class LocalUser(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Who a worker is that connects without TLS and without a token; that is possible from this machine only."""

    user: str = "reclock:local"
    """User that the host's RBAC is asked about."""
    groups: list[str] = msgspec.field(default_factory=lambda: ["system:masters"])
    """Its groups; with system:masters the host is not asked."""


class ReconcilerConfig(UserFacingConfig, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Keys of the reconciler beside those of every service."""

    grpc_address: str = "127.0.0.1:7404"
    """Address of the gRPC server, `host:port`; port 0 takes a free one."""
    discovery_address: str = "127.0.0.1:7401"
    """Where discovery is: members and access to them come from there."""
    state_file: str = ""
    """File (mode 0600: it holds members' credentials) of the fleet's last snapshot, for starts while discovery is away."""
    workers: int = 16
    """Reconciles that run at once, 1 to 1000; one member gets a quarter of them at most."""
    sweep_seconds: int = 60
    """Seconds between garbage collections of a member, 1 to 86400."""
    worker_lost_timeout: int = 900
    """Seconds for which the deletion of a namespace waits for an unreachable member, 0 to 604800."""
    lease_seconds: int = 15
    """How long a worker's request is leased without a heartbeat, 1 to 3600."""
    local: LocalUser = msgspec.field(default_factory=LocalUser)
    etcd: EtcdConfig = msgspec.field(default_factory=EtcdConfig)
    replica_lease_seconds: int = 5
    """How long after its last sign of life a replica's clusters go to others, 2 to 300."""
    replica_weight: float = 1.0
    """Share of the clusters that this replica takes, beside the others' weights; above 0, up to 1000."""
    replica_address: str = ""
    """Where other replicas reach this one's gRPC; grpcAddress when empty."""
    surge_timeout: int = 600
    """Seconds that replicas stay on a cluster that is drained for new ones to become available, 0 to 86400."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.replica_weight) and 0 < self.replica_weight <= 1000):
            raise ValueError(f"replicaWeight: {self.replica_weight} is out of range; allowed: above 0, up to 1000")
        if self.replica_address:
            check_listen("replicaAddress", self.replica_address)
        bounds = {
            "leaseSeconds": (self.lease_seconds, 1, 3600),
            "replicaLeaseSeconds": (self.replica_lease_seconds, 2, 300),
            "workers": (self.workers, 1, 1000),
            "sweepSeconds": (self.sweep_seconds, 1, 86400),
            "workerLostTimeout": (self.worker_lost_timeout, 0, 604800),
            "surgeTimeout": (self.surge_timeout, 0, 86400),
        }
        for key, (value, low, high) in bounds.items():
            if not low <= value <= high:
                raise ValueError(f"{key}: {value} is out of range; allowed: {low} to {high}")
        check_listen("discoveryAddress", self.discovery_address)


