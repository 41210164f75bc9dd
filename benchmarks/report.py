"""One line per figure: `name: figure (goal) ok|short`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def line(name: str, figure: float, unit: str, goal: float, *, at_least: bool) -> bool:
    """Print one figure against its goal; returns whether it was reached."""
    reached = figure >= goal if at_least else figure <= goal
    sign = ">=" if at_least else "<="
    print(f"{name}: {figure:.3g} {unit} (goal {sign} {goal:g}) {'ok' if reached else 'short'}", flush=True)
    return reached


def note(name: str, figure: float, unit: str) -> None:
    """Print a figure that has no goal."""
    print(f"{name}: {figure:.3g} {unit} (no goal) ok", flush=True)


def median_of(run: Callable[[], object], *, rounds: int = 7) -> float:
    """Seconds of CPU of one call: the median of `rounds`, after one to warm up. A busy machine disturbs
    CPU time less than the clock on the wall."""
    run()
    times = []
    for _ in range(rounds):
        began = time.thread_time()
        run()
        times.append(time.thread_time() - began)
    return statistics.median(times)
