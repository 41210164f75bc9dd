"""What the fleet knows of one cluster, whichever engine runs it: real Kubernetes (`kube`) or simulated (`sim`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from deploy.local.api import Api
from deploy.local.kubeconfig import Access
from deploy.local.nodes import PodLog
from deploy.local.pki import Authority
from deploy.local.process import Process

Say = Callable[[str], None]
ADMINISTRATORS = ("system:masters",)


class Plane(ABC):
    """One cluster: the host or a member. Nothing runs before `start`."""

    name: str
    port: int
    """The API server's."""
    is_member: bool
    kubeconfig: Path
    api: Api
    authority: Authority
    """Vouches for the server and for its users."""
    processes: dict[str, Process]
    """Its own, by short name; none where clusters share one."""
    pod_log: PodLog | None
    """The file that its containers log to, where there is one."""

    @property
    @abstractmethod
    def server(self) -> str:
        """The API server's URL."""

    @abstractmethod
    def access(self, user: str, groups: Sequence[str] = ADMINISTRATORS) -> Access:
        """Access as `user` (an administrator unless `groups` says else)."""

    @abstractmethod
    async def start(self, say: Say, timeout: float = 120.0) -> None:
        """Starts it and returns when it can be used."""

    @abstractmethod
    async def stop(self, *, grace: float | None = None) -> None:
        """Stops it; what it held is gone."""

    @abstractmethod
    async def add_nodes(self, count: int, first: int = 0, **capacity: str) -> None:
        """Registers nodes `<name>-n<first>` and on; `capacity`: cpu, memory, pods."""

    @abstractmethod
    def build_controller_manager(
        self, name: str, port: int, kubeconfig: Path, controllers: Sequence[str]
    ) -> Process | None:
        """A controller manager against the server of `kubeconfig`; None where the engine works without one."""


class Engine(ABC):
    """Makes clusters. `etcd` is the program for Reclock's own store."""

    name: str
    title: str
    """For people."""
    etcd: Path

    @property
    def processes(self) -> dict[str, Process]:
        """What all its clusters share, by full name."""
        return {}

    @abstractmethod
    def cluster(self, name: str, *, nodes: int, number: int) -> Plane:
        """A cluster that is not started; the host has no nodes."""

    async def start(self, say: Say) -> None:
        """Starts what the clusters share."""
        return

    async def stop(self) -> None:
        """Stops it."""
        return
