"""Prometheus metrics of the fair queue, read from it when asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from _fastpath.fair_queue import ClusterStats
from services.reconciler.spreads import Spread, buckets

GAUGES = {
    "depth": "Keys that wait", "delayed": "Keys in back-off or delayed", "processing": "Keys being processed",
    "weight": "Weight of the cluster", "cap": "Most keys processed at once", "paused": "1 while paused",
    "share": "Share of all worker-seconds so far", "unfinished_seconds": "Seconds of running work",
    "longest_running": "Seconds of the longest running work",
}  # fmt: skip
COUNTERS = {"adds": "Keys added", "served": "Keys handed out", "retries": "Rate-limited adds"}
SUMMED = {"depth", "delayed", "processing", "share", "unfinished_seconds", *COUNTERS}
"""Figures that make sense added up."""
SERIES_MAX = 2000
"""(controller, cluster) pairs with series of their own."""
HISTOGRAMS_MAX = 200
"""Those with histograms of their own: each has 30 series."""


class QueueMetrics(Collector):
    """Series `reclock_reconciler_queue_<name>{controller=…, cluster=…}`; the host is `host`.

    `rows` gives (controller, figures of one cluster), `spreads` how long waits and works were. Labels are bounded: of
    what is beyond SERIES_MAX rows, and HISTOGRAMS_MAX spreads, the sums stand under the cluster "other".
    """

    def __init__(
        self, rows: Callable[[], list[tuple[str, ClusterStats]]], spreads: Callable[[], list[Spread]]
    ) -> None:
        self._rows = rows
        self._spreads = spreads
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
        yield from self._histograms({(controller, row.cluster): row for controller, row in rows})

    def _histograms(self, rows: dict[tuple[str, str], ClusterStats]) -> Iterable[Metric]:
        waits = HistogramMetricFamily(
            "reclock_reconciler_queue_wait_seconds", "How long keys waited, delays not counted", labels=["controller", "cluster"]
        )
        works = HistogramMetricFamily(
            "reclock_reconciler_queue_work_seconds", "How long work took", labels=["controller", "cluster"]
        )
        found = sorted(self._spreads(), key=lambda spread: spread[:2])
        for labels, shown in _groups(found):
            figures = [rows[spread.controller, spread.cluster] for spread in shown]
            waits.add_metric(labels, buckets(_added(spread.waits for spread in shown)), sum(row.queue_seconds for row in figures))
            works.add_metric(labels, buckets(_added(spread.works for spread in shown)), sum(row.work_seconds for row in figures))
        yield waits
        yield works


def _groups(found: list[Spread]) -> Iterable[tuple[list[str], list[Spread]]]:
    """Labels, and whose sums stand under them."""
    for spread in found[:HISTOGRAMS_MAX]:
        yield [spread.controller, spread.cluster or "host"], [spread]
    rest = found[HISTOGRAMS_MAX:]
    for controller in sorted({spread.controller for spread in rest}):
        yield [controller, "other"], [spread for spread in rest if spread.controller == controller]


def _added(counts: Iterable[list[int]]) -> list[int]:
    return [sum(column) for column in zip(*counts, strict=True)]
