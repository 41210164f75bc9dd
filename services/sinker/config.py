"""Configuration of the sinker."""

from __future__ import annotations

from services.common.config import ServiceConfig, check_listen


class SinkerConfig(ServiceConfig, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Keys of the sinker beside those of every service."""

    grpc_address: str = "127.0.0.1:7405"
    """Address of the gRPC server (health only), `host:port`; port 0 takes a free one."""
    front_kubeconfig: str = ""
    """Kubeconfig of the front, through which the members are reached."""
    reconciler_address: str = "127.0.0.1:7404"
    """Where the reconcile protocol is served."""
    resync_seconds: int = 300
    """Seconds between full comparisons of a cluster, 1 to 86400; in between only what changed is looked at."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_listen("reconcilerAddress", self.reconciler_address)
        if not self.front_kubeconfig:
            raise ValueError("frontKubeconfig: give a kubeconfig of the front: members are reached through it")
        if not 1 <= self.resync_seconds <= 86400:
            raise ValueError(f"resyncSeconds: {self.resync_seconds} is out of range; allowed: 1 to 86400")
