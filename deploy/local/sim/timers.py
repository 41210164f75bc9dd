"""Time for simulated clusters: given from outside, so that tests turn the clock themselves.

`Timers` is a heap of callbacks. Nothing runs by itself: whoever owns the clock calls `run_due` (a test after it moved
its virtual clock, the HTTP server from its event loop).
"""

from __future__ import annotations

import datetime
import heapq
import itertools
from collections.abc import Callable

Now = Callable[[], float]


class VirtualClock:
    """Seconds since 1970 that only move when told to."""

    def __init__(self, start: float = 1_767_225_600.0) -> None:
        self.time = start

    def __call__(self) -> float:
        return self.time


class Timer:
    """A callback to come; `cancel` it while it has not run."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Timers:
    """Callbacks in order of time, then of registration. `on_earlier` hears when the next one became due earlier."""

    def __init__(self, now: Now) -> None:
        self.now = now
        self.on_earlier: Callable[[], None] | None = None
        self._heap: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        """Runs `call` in `run_due` once `seconds` have passed; never from within this call."""
        timer = Timer(call)
        due = self.now() + seconds
        earlier = not self._heap or due < self._heap[0][0]
        heapq.heappush(self._heap, (due, next(self._numbers), timer))
        if earlier and self.on_earlier is not None:
            self.on_earlier()
        return timer

    def next_due(self) -> float | None:
        """When the next callback is due, on the clock of `now`; None when there is none."""
        while self._heap and self._heap[0][2].call is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def run_due(self, limit: int = 100_000) -> int:
        """Runs what is due, what became due meanwhile included; how many ran. `limit` bounds one call."""
        ran = 0
        while ran < limit:
            due = self.next_due()
            if due is None or due > self.now():
                break
            call = heapq.heappop(self._heap)[2].call
            if call is not None:
                ran += 1
                call()
        return ran


def advance(clock: VirtualClock, timers: Timers, seconds: float) -> None:
    """Moves a virtual clock on, stopping at each timer on the way so that it sees its own time."""
    end = clock.time + seconds
    while (due := timers.next_due()) is not None and due <= end:
        clock.time = max(clock.time, due)
        timers.run_due()
    clock.time = end


def timestamp(seconds: float) -> str:
    """RFC 3339 in whole seconds, as metav1.Time."""
    return datetime.datetime.fromtimestamp(int(seconds), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(seconds: float) -> str:
    """RFC 3339 with microseconds, as metav1.MicroTime."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_timestamp(text: str) -> float:
    """Seconds since 1970 of an RFC 3339 time."""
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
