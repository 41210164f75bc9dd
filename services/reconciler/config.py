"""Configuration of the reconciler."""

from __future__ import annotations

from services.common.config import ServiceConfig, check_listen


class ReconcilerConfig(ServiceConfig, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Keys of the reconciler beside those of every service."""

    grpc_address: str = "127.0.0.1:7404"
    """Address of the gRPC server, `host:port`; port 0 takes a free one."""
    discovery_address: str = "127.0.0.1:7401"
    """Where discovery is: members and access to them come from there."""
    state_file: str = ""
    """File (mode 0600: it holds members' credentials) of the fleet's last snapshot, for starts while discovery is away."""
    scheduler_address: str = "127.0.0.1:7402"
    """Where the scheduler is; both meet in `Workload` objects, so it may be away."""
    aggregator_address: str = "127.0.0.1:7403"
    """Where the aggregator's gRPC is; not called yet."""
    front_kubeconfig: str = ""
    """Kubeconfig of the front, for reads of aggregated objects; not read yet."""
    workers: int = 16
    """Reconciles that run at once, 1 to 1000; one member gets a quarter of them at most."""
    sweep_seconds: int = 60
    """Seconds between garbage collections of a member, 1 to 86400."""
    worker_lost_timeout: int = 900
    """Seconds for which the deletion of a namespace waits for an unreachable member, 0 to 604800."""

    def __post_init__(self) -> None:
        super().__post_init__()
        bounds = {
            "workers": (self.workers, 1, 1000),
            "sweepSeconds": (self.sweep_seconds, 1, 86400),
            "workerLostTimeout": (self.worker_lost_timeout, 0, 604800),
        }
        for key, (value, low, high) in bounds.items():
            if not low <= value <= high:
                raise ValueError(f"{key}: {value} is out of range; allowed: {low} to {high}")
        addresses = {
            "discoveryAddress": self.discovery_address, "schedulerAddress": self.scheduler_address,
            "aggregatorAddress": self.aggregator_address,
        }  # fmt: skip
        for key, address in addresses.items():
            check_listen(key, address)


