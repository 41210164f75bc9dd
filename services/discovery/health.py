"""How a cluster has fared: its last changes of state, and how fast it answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

CHANGES = 20
"""Changes that are kept of each cluster; they are in its object, so not many."""
SAMPLES = 200
"""Probes whose latency counts: with the default interval, the last 17 minutes."""


@dataclass(frozen=True, slots=True)
class Change:
    """A condition's status, or the reason for it, became another."""

    time: datetime
    type: str
    status: str
    reason: str
    message: str


@dataclass(slots=True)
class Health:
    """Of one cluster. `changes` outlive a restart, latencies do not."""

    changes: deque[Change] = field(default_factory=lambda: deque(maxlen=CHANGES))
    _latencies: deque[int] = field(default_factory=lambda: deque(maxlen=SAMPLES))

    def answered(self, latency_us: int) -> None:
        """A probe was answered."""
        self._latencies.append(latency_us)

    def began(self, changes: Iterable[Change]) -> None:
        """Put what was known before a restart in front."""
        merged = [*changes, *self.changes]
        self.changes.clear()
        self.changes.extend(merged)

    @property
    def samples(self) -> int:
        """Probes that the latencies are of."""
        return len(self._latencies)

    def latency(self, share: float) -> int:
        """The latency (µs) that this share of the last probes did not exceed; 0 before the first."""
        if not self._latencies:
            return 0
        ordered = sorted(self._latencies)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
