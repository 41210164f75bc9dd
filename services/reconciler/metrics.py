"""Prometheus metrics of the fair queue, read from it when asked for."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from _fastpath.fair_queue import FairQueue

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
CLUSTERS_MAX = 1000
"""Clusters with a series of their own; the rest is left out."""


class QueueMetrics(Collector):
    """Series `reclock_reconciler_queue_<name>{cluster=…}`; the host is `host`."""

    def __init__(self, queue: FairQueue) -> None:
        self._queue = queue
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
        rows = self._queue.stats()[:CLUSTERS_MAX]
        for name, text in GAUGES.items():
            gauge = GaugeMetricFamily(f"reclock_reconciler_queue_{name}", text, labels=["cluster"])
            for row in rows:
                gauge.add_metric([row.cluster or "host"], float(getattr(row, name)))
            yield gauge
        for name, text in COUNTERS.items():
            counter = CounterMetricFamily(f"reclock_reconciler_queue_{name}", text, labels=["cluster"])
            for row in rows:
                counter.add_metric([row.cluster or "host"], float(getattr(row, name)))
            yield counter
