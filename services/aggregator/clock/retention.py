"""The window: which revision lies so far back that nobody may resume from it. Pure but for the caller's clock."""

from __future__ import annotations

from collections import deque

PURGE_AT_ONCE = 5000
"""Tombstones taken to be purged at each step: what is deleted faster for long stays longer."""
STEPS = 30
"""Into how many parts the window is divided: it is exact to one of them."""


class Window:
    """Samples of (time, revision), and the revision that is `seconds` old or `revisions` back.

    After a restart nothing is known of earlier times: what etcd still has is kept for a whole window more.
    """

    def __init__(self, seconds: float, revisions: int) -> None:
        self.seconds, self.revisions = seconds, revisions
        self._samples: deque[tuple[float, int]] = deque()
        self._start = 0

    @property
    def step(self) -> float:
        """Seconds between samples."""
        return max(self.seconds / STEPS, 0.05)

    def sample(self, now: float, revision: int) -> int:
        """Note the current revision; return the window's start: what lies up to it may go. 0: nothing."""
        if self._samples and revision < self._samples[-1][1]:
            # The etcd was set back or replaced.
            self._samples.clear()
            self._start = 0
        self._samples.append((now, revision))
        while self._samples and self._samples[0][0] <= now - self.seconds:
            self._start = max(self._start, self._samples.popleft()[1])
        return max(self._start, revision - self.revisions, 0)
