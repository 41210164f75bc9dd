"""Time, so that tests can move it: a wall clock for what is stored, a monotonic one for what is not."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Tells the time."""

    def now(self) -> datetime:
        """Wall clock, UTC: for times that outlive the process."""

    def monotonic(self) -> float:
        """Seconds that never go back: for time-outs inside the process."""


def boottime() -> float:
    """Seconds since the machine's boot, suspension included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        """See Clock."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """See Clock."""
        return time.monotonic()


def write(moment: datetime) -> str:
    """Write a time as `metav1.Time` does: whole seconds, UTC."""
    # Several per decision: isoformat takes a fifth of strftime's time.
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def after(moment: datetime, seconds: float) -> datetime:
    """So many seconds later, or the last moment that there is."""
    try:
        return moment + timedelta(seconds=seconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)
