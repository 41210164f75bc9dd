"""Metrics of discovery."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from services.discovery.record import REACHABLE, READY, Record

ENGAGED = Counter("reclock_discovery_engaged", "Clusters engaged since the start.", ["provider"])
SOURCE_PROBLEMS = Gauge(
    "reclock_discovery_source_problems", "Sources that cannot be read, or are odd, now.", ["provider"]
)
SOURCE_PROBLEMS_SINCE = Gauge(
    "reclock_discovery_source_problems_since_seconds",
    "Unix time since when the oldest of the provider's source problems holds; 0 without any.", ["provider"],
)  # fmt: skip
CLUSTER_REACHABLE = Gauge("reclock_discovery_cluster_reachable", "1 while probes are answered.", ["cluster"])
CLUSTER_READY = Gauge("reclock_discovery_cluster_ready", "1 while the cluster says it is ready.", ["cluster"])
CLUSTER_INFO = Gauge(
    "reclock_discovery_cluster_unhealthy_reason", "1 for the reason that holds now.", ["cluster", "reason"]
)
CLUSTER_SINCE = Gauge(
    "reclock_discovery_cluster_unhealthy_since_seconds", "Unix time since when the reason holds.", ["cluster", "reason"]
)
CLUSTER_LATENCY = Gauge(
    "reclock_discovery_cluster_latency_seconds", "Latency of the last probes that were answered.", ["cluster", "quantile"]
)
QUANTILES = (0.5, 0.99)
PROBES = Histogram(
    "reclock_discovery_probe_duration_seconds", "How long probes take.", ["outcome"],
    buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
)  # fmt: skip
WATCHERS = Gauge("reclock_discovery_watchers", "Open WatchClusters streams.")

_reasons: dict[str, str] = {}
_shown: set[str] = set()


def show_cluster(record: Record) -> None:
    """Show the cluster's health."""
    _shown.add(record.name)
    CLUSTER_REACHABLE.labels(record.name).set(record.is_true(REACHABLE))
    CLUSTER_READY.labels(record.name).set(record.is_true(READY))
    failing = [c for kind in (REACHABLE, READY) if (c := record.conditions[kind]).status != "True"]
    reason = failing[0].reason if failing else ""
    if reason != _reasons.get(record.name, ""):
        _drop_reason(record.name)
        if reason:
            CLUSTER_INFO.labels(record.name, reason).set(1)
            _reasons[record.name] = reason
    if failing:
        CLUSTER_SINCE.labels(record.name, reason).set(failing[0].since.timestamp())
    for quantile in QUANTILES:
        CLUSTER_LATENCY.labels(record.name, str(quantile)).set(record.health.latency(quantile) / 1e6)


def _drop_reason(cluster: str) -> None:
    reason = _reasons.pop(cluster, "")
    if reason:
        CLUSTER_INFO.remove(cluster, reason)
        CLUSTER_SINCE.remove(cluster, reason)


def forget_cluster(cluster: str) -> None:
    """Drop a departed cluster's series."""
    if cluster not in _shown:
        return
    _shown.discard(cluster)
    _drop_reason(cluster)
    for gauge in (CLUSTER_REACHABLE, CLUSTER_READY):
        gauge.remove(cluster)
    for quantile in QUANTILES:
        CLUSTER_LATENCY.remove(cluster, str(quantile))
