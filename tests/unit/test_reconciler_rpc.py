"""Configuration and metrics of the reconciler."""

from __future__ import annotations

import pytest
from prometheus_client.core import Metric

from _fastpath.fair_queue import FairQueue
from services.common.config import ConfigError, convert
from services.reconciler import metrics
from services.reconciler.config import ReconcilerConfig
from services.reconciler.metrics import QueueMetrics
from services.reconciler.spreads import percentile, spreads


def collect(queue: FairQueue) -> dict[str, Metric]:
    """Name -> family."""
    made = QueueMetrics(lambda: [("c", row) for row in queue.stats()], lambda: spreads("c", queue))
    return {family.name: family for family in made.collect()}


def series(queue: FairQueue, name: str) -> dict[tuple[str, str], float]:
    """(controller, cluster) -> value."""
    families = collect(queue)
    return {(s.labels["controller"], s.labels["cluster"]): s.value for s in families[name].samples if not s.name.endswith("_created")}


def test_every_queue_figure_is_a_metric() -> None:
    queue = FairQueue(workers=8)
    queue.engage("", cap=8)
    queue.engage("east")
    queue.add("east", "ns/job/a")
    assert series(queue, "reclock_reconciler_queue_depth") == {("c", "host"): 0.0, ("c", "east"): 1.0}
    assert series(queue, "reclock_reconciler_queue_adds") == {("c", "host"): 0.0, ("c", "east"): 1.0}


def test_labels_are_bounded_and_nothing_is_lost_in_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "SERIES_MAX", 2)
    queue = FairQueue(workers=8)
    for number in range(5):
        queue.engage(f"c{number}")
        queue.add(f"c{number}", "a/b/c")
    assert series(queue, "reclock_reconciler_queue_adds") == {("c", "c0"): 1.0, ("c", "c1"): 1.0, ("c", "other"): 3.0}
    assert ("c", "other") not in series(queue, "reclock_reconciler_queue_weight")


class Work:
    """A queue whose keys wait and are worked on for as long as is said."""

    def __init__(self, *clusters: str) -> None:
        self.now = 1000.0
        self.queue = FairQueue(clock=lambda: self.now, workers=8)
        for cluster in clusters:
            self.queue.engage(cluster)

    def one(self, cluster: str, wait: float, work: float) -> None:
        """One key."""
        self.queue.add(cluster, "a/b")
        self.now += wait
        item = self.queue.get_nowait()
        assert item is not None
        self.now += work
        self.queue.done(item)


def test_waits_and_work_are_histograms() -> None:
    made = Work("", "east", "west")
    for wait, work in ((0.0, 0.002), (0.003, 5.0), (0.3, 5000.0)):
        made.one("east", wait, work)
    families = collect(made.queue)
    waits, works = (families[f"reclock_reconciler_queue_{name}_seconds"].samples for name in ("wait", "work"))
    assert {s.labels["cluster"] for s in waits} == {"east"}, "only who was served"
    below = {s.labels["le"]: s.value for s in waits if s.name.endswith("_bucket")}
    assert (below["0.0009765625"], below["0.00390625"], below["0.25"], below["1.0"], below["+Inf"]) == (1, 2, 2, 3, 3)
    below = {s.labels["le"]: s.value for s in works if s.name.endswith("_bucket")}
    assert (below["0.00390625"], below["4.0"], below["16.0"], below["256.0"], below["+Inf"]) == (1, 1, 2, 2, 3)
    assert [s.value for s in waits if s.name.endswith("_sum")] == [pytest.approx(0.303)]
    assert [s.value for s in works if s.name.endswith("_count")] == [3]


def test_histograms_are_bounded_and_go_with_their_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "HISTOGRAMS_MAX", 1)
    made = Work("a", "b", "c")
    for cluster in "abc":
        made.one(cluster, 0.1, 0.1)
    def counts() -> dict[str, float]:
        samples = collect(made.queue)["reclock_reconciler_queue_wait_seconds"].samples
        return {s.labels["cluster"]: s.value for s in samples if s.name.endswith("_count")}

    assert counts() == {"a": 1, "other": 2}
    size = made.queue.__sizeof__()
    made.queue.disengage("a")
    assert counts() == {"b": 1, "other": 1} and made.queue.__sizeof__() < size


@pytest.mark.parametrize("seconds", [0.0, 1e-5, 0.004, 0.0059, 0.1, 3.0, 900.0])
def test_a_percentile_is_right_to_within_a_third(seconds: float) -> None:
    made = Work("a")
    for number in range(100):
        made.one("a", seconds if number < 90 else 1800.0, 0.0)
    [spread] = spreads("c", made.queue)
    found = percentile(spread.waits, 0.5)
    assert found is not None and seconds / 1.5 <= found <= max(seconds * 1.5, 2**-16)
    late = percentile(spread.waits, 0.99)
    assert late is not None and 1200 < late < 2100
    assert percentile([0] * len(spread.waits), 0.5) is None
    made.one("a", 1e7, 0.0)
    assert percentile(spreads("c", made.queue)[0].waits, 1.0) == 2048.0


@pytest.mark.parametrize(("key", "value"), [
    ("workers", 0), ("workers", 1001), ("sweepSeconds", 0), ("workerLostTimeout", -1),
    ("discoveryAddress", "nonsense"), ("leaseSeconds", 0), ("replicaWeight", 0), ("replicaWeight", float("nan")),
    ("replicaLeaseSeconds", 1), ("replicaAddress", "nonsense"), ("unknown", 1), ("workers", "many"),
])  # fmt: skip
def test_bad_configuration_is_refused_by_its_key(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key):
        convert(ReconcilerConfig, {key: value})


def test_defaults() -> None:
    config = convert(ReconcilerConfig, {})
    assert (config.grpc_address, config.workers, config.worker_lost_timeout) == ("127.0.0.1:7404", 16, 900)
