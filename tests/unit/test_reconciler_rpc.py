"""Configuration and metrics of the reconciler."""

from __future__ import annotations

import pytest

from _fastpath.fair_queue import FairQueue
from services.common.config import ConfigError, convert
from services.reconciler import metrics
from services.reconciler.config import ReconcilerConfig
from services.reconciler.metrics import QueueMetrics


def series(queue: FairQueue, name: str) -> dict[tuple[str, str], float]:
    """(controller, cluster) -> value."""
    families = {family.name: family for family in QueueMetrics(lambda: [("c", row) for row in queue.stats()]).collect()}
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
