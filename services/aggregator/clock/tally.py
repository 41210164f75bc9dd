"""What is counted per resource and member, as plain numbers: looked at when metrics or `reclock top` ask, not before."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sized
from dataclasses import dataclass, field

from _fastpath.marker import Marker


@dataclass(slots=True)
class MemberTally:
    """One member in one resource, since this process has known it. Seconds and bytes."""

    events: int = 0
    """Entries that this process's log took, whoever committed them."""
    commits: int = 0
    """Transactions of this process that had something of the member."""
    lag: float = 0.0
    """Sum over those: how long the oldest work taken had waited until it was in the log."""
    relists: int = 0
    deliveries: int = 0
    """Events of the member that this process wrote to watchers."""
    bytes: int = 0
    """The same in bytes, before chunks and TLS."""


class Members(dict[str, MemberTally]):
    """Member -> its figures, made at first use."""

    def __missing__(self, cluster: str) -> MemberTally:
        made = self[cluster] = MemberTally()
        return made


@dataclass(slots=True)
class Tally:
    """One resource, since the start."""

    watchers: int = 0
    """Watches that are open now."""
    commits: int = 0
    markers: int = 0
    """In those commits."""
    seconds: float = 0.0
    """Time that they took."""
    members: Members = field(default_factory=Members)

    def logged(self, markers: Iterable[tuple[int, Marker]]) -> None:
        """The log took these."""
        members = self.members
        for _, marker in markers:
            members[marker.cluster].events += 1

    def committed(self, markers: int, seconds: float, lags: dict[str, float]) -> None:
        """A transaction of ours with so many markers took `seconds`; `lags`: cluster -> wait of its oldest work."""
        self.commits += 1
        self.markers += markers
        self.seconds += seconds
        for cluster, lag in lags.items():
            member = self.members[cluster]
            member.commits += 1
            member.lag += lag

    def keep(self, clusters: Container[str]) -> None:
        """Forget all other members: they have left."""
        for cluster in [name for name in self.members if name not in clusters]:
            del self.members[cluster]


class Arrivals:
    """When the oldest work that waits of each cluster came, in seconds of the loop's clock."""

    def __init__(self) -> None:
        self._oldest: dict[str, float] = {}

    def came(self, cluster: str, now: float) -> None:
        """Work came to a queue that was empty."""
        self._oldest[cluster] = now

    def took(self, clusters: Collection[str], queues: Mapping[str, Sized], now: float) -> dict[str, float]:
        """A batch took work of `clusters`; what `queues` still hold of them counts from now. -> when theirs came."""
        came = {cluster: self._oldest.get(cluster, now) for cluster in clusters}
        self._oldest = {
            cluster: now if cluster in came else since
            for cluster, since in self._oldest.items() if queues.get(cluster)
        }  # fmt: skip
        return came

    def clear(self) -> None:
        """Nothing waits."""
        self._oldest.clear()

    def lag(self, cluster: str, now: float) -> float:
        """How long the oldest work of a cluster has waited; 0 when none does."""
        return max(now - self._oldest.get(cluster, now), 0.0)
