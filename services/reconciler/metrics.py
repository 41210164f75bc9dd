"""Prometheus metrics of the fair queue, read from it when asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from _fastpath.fair_queue import ClusterStats

GAUGES = {
    "depth": "Keys that wait", "delayed": "Keys in back-off or delayed", "processing": "Keys being processed",
    "weight": "Weight of the cluster", "cap": "Most keys processed at once", "paused": "1 while paused",
    "share": "Share of the worker-seconds of the last minute", "unfinished_seconds": "Seconds of running work",
    "longest_running": "Seconds of the longest running work",
}  # fmt: skip
COUNTERS = {
    "adds": "Keys added", "served": "Keys processed", "retries": "Rate-limited adds",
    "queue_seconds": "Seconds that keys waited", "work_seconds": "Seconds that work took",
}  # fmt: skip
SUMMED = {"depth", "delayed", "processing", "share", "unfinished_seconds", *COUNTERS}
"""Figures that make sense added up."""
SERIES_MAX = 2000
"""(controller, cluster) pairs with series of their own."""


class QueueMetrics(Collector):
    """Series `reclock_reconciler_queue_<name>{controller=…, cluster=…}`; the host is `host`.

    `rows` gives (controller, figures of one cluster). Labels are bounded: of what is beyond SERIES_MAX rows the
    others' sums stand under the cluster "other".
    """

    def __init__(self, rows: Callable[[], list[tuple[str, ClusterStats]]]) -> None:
        self._rows = rows
        self._registered = False

    def register(self) -> None:
        """Show up in the process's metrics."""
        REGISTRY.register(self)
        self._registered = True

    def unregister(self) -> None:
        """The inverse; idempotent."""
        if self._registered:
            REGISTRY.unregister(self)
            self._registered = False

    def describe(self) -> Iterable[Metric]:
        """Nothing is collected to register."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """One family per figure."""
        rows = self._rows()
        shown, rest = rows, []
        if len(rows) > SERIES_MAX:
            # Counters must not come and go with the depth: who is shown goes by name.
            ordered = sorted(rows, key=lambda row: (row[0], row[1].cluster))
            shown, rest = ordered[:SERIES_MAX], ordered[SERIES_MAX:]
        for family, figures in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
            for name, text in figures.items():
                series = family(f"reclock_reconciler_queue_{name}", text, labels=["controller", "cluster"])
                for controller, row in shown:
                    series.add_metric([controller, row.cluster or "host"], float(getattr(row, name)))
                for controller in sorted({controller for controller, _ in rest} if name in SUMMED else ()):
                    total = sum(float(getattr(row, name)) for owner, row in rest if owner == controller)
                    series.add_metric([controller, "other"], total)
                yield series
