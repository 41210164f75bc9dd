"""Prometheus metrics by resource and member, read from the clocks when asked for: an event costs them nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from services.aggregator.clock.metrics import PREFIX, named
from services.aggregator.clock.resource import ResourceClock

SERIES_MAX = 2000
"""(resource, member) pairs with series of their own; the sums of all others stand under the cluster "other"."""
OTHER = "other"


class Row(NamedTuple):
    """One member in one resource; what sums up in `other`."""

    lag_events: float
    lag_seconds: float
    markers: float
    gap: float
    events: float
    deliveries: float
    bytes: float
    commits: float
    lag: float


GAUGES = {
    "lag_events": "Events that wait for their number (on the replica that leads)",
    "lag_seconds": "How long the oldest of them has waited",
    "markers": "Live objects",
    "gap": "1 while answers were given without the member and its objects must be sent anew",
}
COUNTERS = {
    "events": "Events that this replica's log took",
    "deliveries": "Events that this replica wrote to watchers",
    "delivered_bytes": "Bytes of those events",
}
COMMIT_LAG = "Wait of the oldest event of a transaction until it was in the log, on the replica that leads"


class MemberMetrics(Collector):
    """Series `reclock_aggregator_clock_member_<name>{resource=…, cluster=…}`, and `…_watchers{resource=…}`."""

    def __init__(self, resources: Callable[[], Mapping[str, ResourceClock]]) -> None:
        self._resources = resources
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

    def describe(self) -> list[Metric]:
        """Nothing is collected to register."""
        return []

    def collect(self) -> list[Metric]:
        """One family per figure."""
        clocks = sorted(self._resources().items())
        watchers = GaugeMetricFamily(f"{PREFIX}_watchers", "Watches of this replica that are open", labels=["resource"])
        for key, clock in clocks:
            watchers.add_metric([key], clock.tally.watchers)
        rows = bounded({(key, named(cluster)): _row(clock, cluster) for key, clock in clocks for cluster in clock.members})
        return [watchers, *_families(rows)]


def _families(rows: dict[tuple[str, str], Row]) -> list[Metric]:
    labels = ["resource", "cluster"]
    out: list[Metric] = []
    for family, figures in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
        for name, text in figures.items():
            series = family(f"{PREFIX}_member_{name}", text, labels=labels)
            for at, row in rows.items():
                series.add_metric(at, getattr(row, name.removeprefix("delivered_")))
            out.append(series)
    lags = SummaryMetricFamily(f"{PREFIX}_member_commit_lag_seconds", COMMIT_LAG, labels=labels)
    for at, row in rows.items():
        lags.add_metric(at, count_value=round(row.commits), sum_value=row.lag)
    return [*out, lags]


def bounded(rows: dict[tuple[str, str], Row]) -> dict[tuple[str, str], Row]:
    """At most SERIES_MAX rows by name, then one `other` per resource: its longest lag, the sums of all else."""
    ordered = sorted(rows.items())
    out = dict(ordered[:SERIES_MAX])
    for (resource, _), row in ordered[SERIES_MAX:]:
        at = (resource, OTHER)
        before = out.get(at)
        if before is not None:
            summed = Row(*(one + two for one, two in zip(before, row, strict=True)))
            row = summed._replace(lag_seconds=max(before.lag_seconds, row.lag_seconds))
        out[at] = row
    return out


def _row(clock: ResourceClock, cluster: str) -> Row:
    tally, sequencer = clock.tally.members[cluster], clock.sequencer
    waiting, lag = (0, 0.0) if sequencer is None else sequencer.lag(cluster)
    return Row(
        waiting, lag, clock.state.live.get(cluster, 0), cluster in clock.state.gaps, tally.events,
        tally.deliveries, tally.bytes, tally.commits, tally.lag,
    )  # fmt: skip
