"""Configuration of the scheduler, both roles."""

from __future__ import annotations

from typing import Literal

import msgspec

from services.common.config import UserFacingConfig
from services.scheduler.policy import LONGEST


class MemberAccess(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Access of a worker to its member."""

    kubeconfig: str = ""
    """Path of a kubeconfig; "" is the service account of the pod that this runs in."""


class EtcdAccess(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Not used yet: the leader is elected by a Lease on the host."""

    endpoints: list[str] = msgspec.field(default_factory=list)
    prefix: str = "/reclock/v1/"


class SchedulerConfig(UserFacingConfig, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """One program, two roles: `manager` places, `worker` admits beside one member."""

    grpc_address: str = "127.0.0.1:7402"
    role: Literal["manager", "worker"] = "manager"
    discovery_address: str = "127.0.0.1:7401"
    """Where the manager learns of the fleet."""
    state_file: str = ""
    """Manager: file (mode 0600: it holds members' credentials) of the fleet's last snapshot, for starts while discovery
    is away."""
    workers: dict[str, str] = msgspec.field(default_factory=dict)
    """Member -> address of the worker beside it; other members are read through their API by the manager."""
    etcd: EtcdAccess = msgspec.field(default_factory=EtcdAccess)
    cluster: str = ""
    """Worker: the member's name in the fleet."""
    member: MemberAccess = msgspec.field(default_factory=MemberAccess)
    fence: bool = True
    """Worker: stop what must not run twice when the manager has been out of contact for half of its workerLostTimeout."""
    admit_timeout: float = 10.0
    """Seconds that a member may take to answer a reservation."""
    reservation_ttl: float = 30.0
    """Seconds that an unconfirmed reservation is held without renewal."""
    worker_lost_timeout: float = 900.0
    """Seconds from a member's first disconnect until its workloads are dispatched again."""
    pods_ready_timeout: float = 300.0
    """Seconds that pods may be unschedulable on their member before the workload is evicted."""
    lease_namespace: str = "kube-system"
    """Namespace on the host of the leader's Lease."""
    lease_seconds: float = 6.0
    """How long a leader that died keeps others, and its own next start, from leading."""
    concurrency: int = 32
    """Workloads that are worked on at once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.role == "worker" and not self.cluster:
            raise ValueError("cluster: a worker needs the name of its member")
        if self.role == "worker" and self.user_address:
            raise ValueError("userAddress: a worker has nothing for users; the manager has")
        for name in ("admit_timeout", "reservation_ttl", "worker_lost_timeout", "pods_ready_timeout"):
            if not 0 < getattr(self, name) <= LONGEST:  # so that it is no number at all is refused, too
                raise ValueError(f"{name}: must be more than 0 seconds, and {LONGEST} (ten years) at most")
        if not 2 <= self.lease_seconds <= LONGEST:
            raise ValueError("leaseSeconds: must be at least 2")
        if self.concurrency < 1:
            raise ValueError("concurrency: must be at least 1")
