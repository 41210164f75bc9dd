"""What all controllers share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from services.common.kube.client import KubeClient
from services.common.kube.resource import Resource
from services.reconciler.applier import Applier
from services.reconciler.events import Recorder
from services.reconciler.keys import Key
from services.reconciler.member_cache import MemberCache
from services.reconciler.names import HOST
from services.reconciler.world import Report, World


class Queue(Protocol):
    """The part of the fair queue that reconciles use."""

    def add(self, cluster: str, key: str, priority: int = 0) -> object: ...
    def add_after(self, cluster: str, key: str, delay: float, priority: int = 0) -> object: ...


Release = Callable[[str, datetime, list[str], int], Awaitable[None]]
"""Tell discovery to drop a leaving member: name, since when, what is left behind (the first few), how much that is."""


async def _nobody(name: str, since: datetime, left: list[str], count: int) -> None:
    """Without discovery nothing leaves."""


class Again(Exception):
    """Nothing is wrong, but the reconcile has to run again after `delay` seconds."""

    def __init__(self, delay: float) -> None:
        super().__init__(f"again in {delay:g} s")
        self.delay = delay


@dataclass(slots=True)
class Context:
    """World, queue, and what writes. One per process."""

    world: World
    queue: Queue
    applier: Applier
    events: Recorder
    worker_lost_timeout: float = 900.0
    release: Release = _nobody
    sinks: Callable[[], Iterable[Resource]] = tuple
    """Resources that Sinks copy."""
    unread: Callable[[], bool] = lambda: False
    """Whether it is not known yet which types members may hold objects of ours of (aggregations, Sinks)."""
    surge_timeout: float = 600.0
    """Seconds after which replicas leave a cluster even if that makes the workload short (rule 11)."""
    settling: dict[str, float] = field(default_factory=dict)
    """Uid of a Deployment -> since when its placement has not followed its size."""

    @property
    def host(self) -> KubeClient:
        """Client of the host."""
        return self.world.host.client

    def add(self, cluster: str, kind: str, namespace: str, name: str, priority: int = 0) -> None:
        """Queue one object of one cluster."""
        self.queue.add(cluster, str(Key(kind, namespace, name)), priority)

    def add_host(self, kind: str, namespace: str, name: str, priority: int = 0) -> None:
        """Queue one object of the host."""
        self.add(HOST, kind, namespace, name, priority)

    def report(self, key: Key, member: MemberCache, state: str = "", message: str = "") -> None:
        """Note how a copy fares ("" = well); its owner is told of news."""
        if self.world.report(key, member.name, Report(state, message) if state else None):
            self.add_host(*key)
