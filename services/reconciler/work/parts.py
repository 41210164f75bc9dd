"""One cluster's part of a controller on the replica that owns the cluster."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from services.common.kube.client import KubeClient
from services.reconciler.work.feeds import Subscription
from services.reconciler.work.spec import ControllerSpec, SourceSpec


@dataclass(slots=True)
class Engaged:
    """A cluster that this replica hands out, for all controllers alike."""

    cluster: str
    client: KubeClient
    fence: int
    incarnation: str = ""
    closed_until: float = 0.0
    """Monotonic time before which another replica's leases may still run: nothing is handed out until then."""
    held: bool = False
    """It is about to be another replica's: nothing more is handed out, what runs may end."""


@dataclass(slots=True)
class Part:
    """What a controller keeps for one cluster."""

    engaged: Engaged
    feeds: dict[SourceSpec, list[Subscription]] = field(default_factory=dict)
    opening: asyncio.TimerHandle | None = None
    """Runs while the cluster is closed for another replica's leases."""

    @property
    def synced(self) -> bool:
        """Whether all first lists are in."""
        return all(each.feed.synced for held in self.feeds.values() for each in held)

    def problems(self) -> list[str]:
        """What its sources cannot follow now."""
        informers = [each.feed.informer for held in self.feeds.values() for each in held]
        return [
            f"{informer.client.label}: {informer.resource.key}: {informer.last_error}"
            for informer in informers if informer.last_error
        ]  # fmt: skip

    def close(self) -> None:
        """Follow nothing more."""
        if self.opening is not None:
            self.opening.cancel()
            self.opening = None
        for held in self.feeds.values():
            for subscription in held:
                subscription.close()
        self.feeds.clear()


@dataclass(slots=True)
class Steering:
    """What an operator set for clusters of a controller; it outlives registrations, and clusters that come back."""

    weights: dict[str, float] = field(default_factory=dict)
    caps: dict[str, int] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)

    def weight(self, spec: ControllerSpec, cluster: str) -> float:
        """The weight that counts."""
        return self.weights.get(cluster, spec.weights.get(cluster, 1.0))

    def cap(self, spec: ControllerSpec, cluster: str) -> int | None:
        """The cap that counts; None is a quarter of the workers."""
        return self.caps.get(cluster, spec.caps.get(cluster))
