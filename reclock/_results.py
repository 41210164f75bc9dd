"""How a handler says what is to happen next: by what it returns or raises."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeAlias


class Requeue(Exception):
    """Ask again, `after` seconds (or a timedelta) from now; returned or raised. No error: back-off starts afresh.

    `priority` is the next request's; the present one's when None.
    """

    def __init__(self, after: float | timedelta = 0.0, *, priority: int | None = None) -> None:
        seconds = after.total_seconds() if isinstance(after, timedelta) else float(after)
        if not 0 <= seconds <= 365 * 86400:
            raise ValueError(f"after={seconds}: allowed is 0 to 365 days")
        super().__init__(f"again in {seconds:g} s")
        self.after = seconds
        self.priority = priority


class Terminal(Exception):
    """Failed, and trying again does not help until the object changes; returned or raised."""


Result: TypeAlias = Exception | None
"""None: done. Requeue: again later. Terminal: failed for good. Any other exception: failed, again with back-off."""
