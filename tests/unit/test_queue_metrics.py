"""Series of the fair queue: bounded, however many clusters there are, and nothing is missing from the sums."""

from __future__ import annotations

import pytest
from prometheus_client.core import Metric

from _fastpath.fair_queue import FairQueue
from services.reconciler import metrics
from services.reconciler.spreads import spreads

CLUSTERS = 5


def served() -> FairQueue:
    """Each cluster has one key that was done, one that runs and one that waits."""
    now = 0.0
    queue = FairQueue(clock=lambda: now, workers=64)
    for number in range(CLUSTERS):
        queue.engage(f"c{number}", cap=2)
        for key in ("a", "b"):
            queue.add(f"c{number}", f"ns/{key}")
    items = [queue.get_nowait() for _ in range(2 * CLUSTERS)]
    now = 1.5
    done = set()
    for item in items:
        assert item is not None
        if item.cluster not in done:
            done.add(item.cluster)
            queue.done(item)
            queue.add_after(item.cluster, "ns/later", 9.0)
    return queue


def collected(queue: FairQueue) -> dict[str, Metric]:
    rows = [("hello", row) for row in queue.stats()]
    collector = metrics.QueueMetrics(lambda: rows, lambda: spreads("hello", queue))
    return {one.name.removeprefix("reclock_reconciler_queue_"): one for one in collector.collect()}


def by_cluster(metric: Metric, suffix: str) -> dict[str, float]:
    return {one.labels["cluster"]: one.value for one in metric.samples if one.name.endswith(suffix)}


def test_what_is_beyond_the_limit_is_added_up_under_other(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = served()
    monkeypatch.setattr(metrics, "SERIES_MAX", 2)
    monkeypatch.setattr(metrics, "HISTOGRAMS_MAX", 1)
    found = collected(queue)
    for name, each in (("adds", 3.0), ("served", 2.0)):
        assert by_cluster(found[name], "_total") == {"c0": each, "c1": each, "other": 3 * each}
    assert by_cluster(found["processing"], "") == {"c0": 1.0, "c1": 1.0, "other": 3.0}
    assert by_cluster(found["delayed"], "") == {"c0": 1.0, "c1": 1.0, "other": 3.0}
    # Those make no sense added up.
    for name in ("weight", "cap", "paused", "longest_running"):
        assert set(by_cluster(found[name], "")) == {"c0", "c1"}
    assert by_cluster(found["wait_seconds"], "_count") == {"c0": 2.0, "other": 8.0}
    assert by_cluster(found["work_seconds"], "_count") == {"c0": 1.0, "other": 4.0}
    assert by_cluster(found["work_seconds"], "_sum") == {"c0": 1.5, "other": 6.0}


def test_within_the_limit_each_has_its_own() -> None:
    found = collected(served())
    names = {f"c{number}" for number in range(CLUSTERS)}
    assert set(by_cluster(found["depth"], "")) == set(by_cluster(found["wait_seconds"], "_count")) == names
