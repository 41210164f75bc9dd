"""What the clock counts by member, and the metrics made of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from _fastpath.marker import Marker
from services.aggregator.clock import member_metrics
from services.aggregator.clock.member_metrics import MemberMetrics, Row, bounded
from services.aggregator.clock.position import Position
from services.aggregator.clock.state import Change, State
from services.aggregator.clock.tally import Arrivals, Tally


def marker(cluster: str, name: str, version: int, *, deleted: bool = False) -> Marker:
    return Marker(cluster, f"{cluster}/0", "ns", name, f"uid-{cluster}-{name}", version, deleted=deleted)


def test_lag_counts_from_the_oldest_work_that_waits() -> None:
    arrivals = Arrivals()
    queues = {"east": [1], "west": [1]}
    arrivals.came("east", 10.0)
    arrivals.came("west", 12.0)
    assert (arrivals.lag("east", 13.0), arrivals.lag("north", 13.0)) == (3.0, 0.0)
    queues["east"].clear()
    assert arrivals.took({"east", "west"}, queues, 14.0) == {"east": 10.0, "west": 12.0}
    assert (arrivals.lag("east", 15.0), arrivals.lag("west", 15.0)) == (0.0, 1.0), "west has more, from the batch on"
    queues["west"].clear()
    arrivals.took(set(), queues, 16.0)
    assert arrivals.lag("west", 17.0) == 0.0, "what was known already waits no more"


def test_live_objects_are_counted_by_cluster() -> None:
    state = State(1, 1)
    state.apply(Change(2, [(0, marker("east", "a", 5)), (1, marker("west", "a", 6)), (2, marker("east", "b", 7))]))
    state.apply(Change(3, [(0, marker("east", "a", 8))]))
    assert state.live == {"east": 2, "west": 1}
    state.apply(Change(4, [(0, marker("west", "a", 9, deleted=True))], {"west": Position("west/0", 9, 9)}))
    state.apply(Change(5, [], {"west": None}))
    assert state.live == {"east": 2}


def test_events_commits_and_lags_are_summed_by_member() -> None:
    tally = Tally()
    tally.logged(enumerate([marker("east", "a", 1), marker("east", "b", 2), marker("west", "c", 3)]))
    tally.committed(3, 0.004, {"east": 0.010, "west": 0.002})
    tally.committed(1, 0.002, {"east": 0.030})
    assert (tally.members["east"].events, tally.members["east"].commits, round(tally.members["east"].lag, 3)) == (2, 2, 0.04)
    assert (tally.commits, tally.markers, round(tally.seconds, 3)) == (2, 4, 0.006)
    tally.keep({"east"})
    assert set(tally.members) == {"east"}


def samples(metrics: MemberMetrics) -> dict[str, float]:
    return {
        f"{one.name}{{{','.join(one.labels.values())}}}": one.value
        for family in metrics.collect() for one in family.samples
    }  # fmt: skip


def clock(**members: Tally) -> Any:
    tally = Tally(watchers=3)
    for cluster, _ in members.items():
        tally.members[cluster].events = 5
    state = SimpleNamespace(live=dict.fromkeys(members, 2), gaps={"west": 9})
    return SimpleNamespace(tally=tally, state=state, members=dict.fromkeys(members), sequencer=None)


def test_the_host_has_a_label_and_open_gaps_show() -> None:
    one = clock(east=Tally())
    one.members[""] = None
    found = samples(MemberMetrics(lambda: {"pods": one}))
    prefix = "reclock_aggregator_clock"
    assert found[f"{prefix}_watchers{{pods}}"] == 3
    assert found[f"{prefix}_member_events_total{{pods,east}}"] == 5
    assert found[f"{prefix}_member_events_total{{pods,host}}"] == 0
    assert found[f"{prefix}_member_markers{{pods,east}}"] == 2


def test_labels_are_bounded_and_the_rest_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_metrics, "SERIES_MAX", 2)
    rows = {("pods", f"c{at}"): Row(1, float(at), 10, 0, 5, 4, 3, 2, 1) for at in range(5)}
    shown = bounded(rows)
    assert list(shown) == [("pods", "c0"), ("pods", "c1"), ("pods", "other")]
    assert shown["pods", "other"] == Row(3, 4.0, 30, 0, 15, 12, 9, 6, 3), "the longest lag, sums of all else"
