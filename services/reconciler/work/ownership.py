"""Which replica hands out the requests of which cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Owner(Protocol):
    """What an ownership tells a replica. `closed_until`: monotonic time until which a former owner's leases may run."""

    def gained(self, cluster: str, fence: int, closed_until: float) -> None:
        """The cluster is this replica's."""

    def lost(self, cluster: str) -> None:
        """It is not any more, from now on."""

    def moved(self, cluster: str, replica: str) -> None:
        """Another replica has it now ("" = nobody)."""


class Ownership(Protocol):
    """Splits clusters among replicas."""

    def want(self, clusters: Iterable[str]) -> None:
        """All clusters that there are, the host ("") among them."""


class Alone:
    """One replica, which owns everything. Of workers of an earlier process nothing is known: one lease is waited for."""

    def __init__(self, owner: Owner, closed_until: float) -> None:
        self._owner = owner
        self._closed_until = closed_until
        self._owned: set[str] = set()

    def want(self, clusters: Iterable[str]) -> None:
        """See Ownership."""
        wanted = set(clusters)
        for cluster in self._owned - wanted:
            self._owner.lost(cluster)
        for cluster in sorted(wanted - self._owned):
            self._owner.gained(cluster, 1, self._closed_until)
        self._owned = wanted
