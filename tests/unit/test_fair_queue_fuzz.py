"""Random histories: the compiled queue hands out exactly what its model does, in the same order.

Times and weights are binary fractions, so that both reckon tags without rounding.
"""

from __future__ import annotations

import random
from typing import Any

import fair_queue_model as model
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from _fastpath import fair_queue as fast

CLUSTERS = ["a", "b", "c", "d"]
KEYS = ["n/1", "n/2", "n/3", "m/1", "m/2", "é/1", "😀/x", "node", "other", "n/"]
WEIGHTS = [0.25, 0.5, 1.0, 2.0, 4.0]
DELAYS = [0.0, 0.125, 0.25, 0.5, 1.0, 8.0, 64.0]
PRIORITIES = [-100, 0, 0, 0, 5]
OPTIONS = {"expected_work": 0.125, "base_delay": 0.125, "max_delay": 16.0, "max_wait": 16.0}


class Twins:
    """Both queues, told the same; every answer is compared."""

    def __init__(self, **options: Any) -> None:
        self.now = 1024.0
        self.fast = fast.FairQueue(clock=lambda: self.now, **OPTIONS, **options)
        self.model = model.FairQueue(clock=lambda: self.now, **OPTIONS, **options)
        self.running: list[tuple[Any, Any]] = []
        self.locked: set[tuple[str, str]] = set()

    def both(self, name: str, *args: Any) -> Any:
        got, want = getattr(self.fast, name)(*args), getattr(self.model, name)(*args)
        assert got == want, (name, args)
        return got

    def get(self) -> bool:
        got, want = self.fast.get_nowait(), self.model.get_nowait()
        if got is None or want is None:
            assert got is None and want is None, (got, want)
            return False
        for field in ("cluster", "key", "priority", "attempts", "waited"):
            assert getattr(got, field) == getattr(want, field), (field, got, want)
        assert (got.cluster, got.key) not in self.locked, "processed twice at a time"
        self.locked.add((got.cluster, got.key))
        self.running.append((got, want))
        return True

    def done(self, at: int) -> None:
        got, want = self.running.pop(at % len(self.running))
        self.locked.discard((got.cluster, got.key))
        self.fast.done(got)
        self.model.done(want)

    def check(self) -> None:
        assert len(self.fast) == len(self.model)
        for stats in self.fast.stats():
            twin = self.model.clusters[stats.cluster]
            assert stats.depth == twin.ready() and stats.served == twin.served
            assert stats.processing == len(twin.runs)
            assert stats.delayed == sum(k.state == "delayed" for k in twin.keys.values()) + sum(
                r.due is not None and not r.dirty for r in twin.runs
            )


cluster_names, key_names = st.sampled_from(CLUSTERS), st.sampled_from(KEYS)


class Histories(RuleBasedStateMachine):
    @initialize(priority_first=st.booleans(), workers=st.sampled_from([1, 8, 64]))
    def start(self, priority_first: bool, workers: int) -> None:
        self.twins = Twins(priority_first=priority_first, workers=workers)
        for cluster in CLUSTERS[:2]:
            self.twins.both("engage", cluster)

    @rule(cluster=cluster_names, key=key_names, priority=st.sampled_from(PRIORITIES))
    def add(self, cluster: str, key: str, priority: int) -> None:
        self.twins.both("add", cluster, key, priority)

    @rule(cluster=cluster_names, keys=st.lists(key_names, max_size=8), priority=st.sampled_from(PRIORITIES))
    def add_some(self, cluster: str, keys: list[str], priority: int) -> None:
        for key in keys:
            self.twins.both("add", cluster, key, priority)

    @rule(
        cluster=cluster_names,
        key=key_names,
        delay=st.sampled_from(DELAYS),
        priority=st.sampled_from(PRIORITIES),
    )
    def add_after(self, cluster: str, key: str, delay: float, priority: int) -> None:
        self.twins.both("add_after", cluster, key, delay, priority)

    @rule(cluster=cluster_names, key=key_names, priority=st.sampled_from(PRIORITIES))
    def add_rate_limited(self, cluster: str, key: str, priority: int) -> None:
        self.twins.both("add_rate_limited", cluster, key, priority)

    @rule(cluster=cluster_names, key=key_names)
    def forget(self, cluster: str, key: str) -> None:
        self.twins.both("forget", cluster, key)
        self.twins.both("num_requeues", cluster, key)

    @rule(count=st.integers(1, 6))
    def get(self, count: int) -> None:
        for _ in range(count):
            if not self.twins.get():
                break

    @rule(at=st.integers(0, 1000))
    def done(self, at: int) -> None:
        if self.twins.running:
            self.twins.done(at)

    @rule(delay=st.sampled_from(DELAYS))
    def pass_time(self, delay: float) -> None:
        self.twins.now += delay

    @rule(cluster=cluster_names, weight=st.sampled_from(WEIGHTS), cap=st.sampled_from([None, 1, 2, 100]))
    def engage(self, cluster: str, weight: float, cap: int | None) -> None:
        self.twins.both("engage", cluster, weight, cap)

    @rule(cluster=cluster_names)
    def disengage(self, cluster: str) -> None:
        self.twins.both("disengage", cluster)

    @rule(cluster=cluster_names, cap=st.sampled_from([None, 1, 3]), weight=st.sampled_from(WEIGHTS))
    def change(self, cluster: str, cap: int | None, weight: float) -> None:
        if cluster in self.twins.model.clusters:
            self.twins.both("set_cap", cluster, cap)
            self.twins.both("set_weight", cluster, weight)

    @rule(cluster=cluster_names, pause=st.booleans())
    def pause(self, cluster: str, pause: bool) -> None:
        if cluster in self.twins.model.clusters:
            self.twins.both("pause" if pause else "resume", cluster)

    @rule(cluster=cluster_names, rate=st.sampled_from([None, 1.0, 4.0]), burst=st.sampled_from([1, 4]))
    def set_rate(self, cluster: str, rate: float | None, burst: int) -> None:
        if cluster in self.twins.model.clusters:
            self.twins.both("set_rate", cluster, rate, burst)

    @invariant()
    def same(self) -> None:
        if hasattr(self, "twins"):
            self.twins.check()

    def teardown(self) -> None:
        if not hasattr(self, "twins"):
            return
        for cluster in self.twins.model.clusters:
            self.twins.both("resume", cluster)
        self.twins.both("shut_down")
        while self.twins.get() or self.twins.running:
            if self.twins.running:
                self.twins.done(0)


Histories.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestHistories = Histories.TestCase


@pytest.mark.parametrize("seed", range(12))
def test_long_random_histories(seed: int) -> None:
    """More clusters and keys than hypothesis would use: tables grow, records move."""
    rng = random.Random(seed)
    twins = Twins(workers=rng.choice([4, 64]), priority_first=seed % 4 == 3)
    clusters = [f"c{i}" for i in range(rng.choice([3, 30]))]
    for cluster in clusters:
        twins.both("engage", cluster, rng.choice(WEIGHTS), rng.choice([None, 1, 50]))
    for _ in range(2500):
        cluster, key = rng.choice(clusters), f"ns{rng.randrange(9)}/{rng.randrange(60)}"
        kind = rng.randrange(100)
        if kind < 45:
            twins.both("add", cluster, key, rng.choice(PRIORITIES))
        elif kind < 50:
            twins.both("add_after", cluster, key, rng.choice(DELAYS), rng.choice(PRIORITIES))
        elif kind < 55:
            twins.both("add_rate_limited", cluster, key)
        elif kind < 75:
            twins.get()
        elif kind < 94:
            if twins.running:
                twins.done(rng.randrange(1000))
        elif kind < 97:
            twins.now += rng.choice(DELAYS)
        elif kind == 97:
            twins.both("forget", cluster, key)
        elif rng.random() < 0.3:
            twins.both("disengage", cluster)
            twins.both("engage", cluster, rng.choice(WEIGHTS), rng.choice([None, 1, 50]))
    twins.check()
    while twins.get() or twins.running:
        if twins.running:
            twins.done(0)


def test_records_that_move_keep_their_places() -> None:
    """A burst, then few left: the slabs are compacted in the middle of everything, order and all."""
    rng = random.Random(5)
    twins = Twins(workers=64)
    for cluster in ("a", "b"):
        twins.both("engage", cluster, 1.0, 10_000)
    for i in range(9000):
        cluster = rng.choice("ab")
        twins.fast.add(cluster, f"ns{i % 7000}/{i}", -1)
        if i % 100 == 0:
            twins.fast.add_after(cluster, f"later/{i}", 8.0)
            twins.fast.add_rate_limited(cluster, f"failing/{i}")
    before = twins.fast.__sizeof__()
    held = [twins.fast.get_nowait() for _ in range(8900)]
    for item in rng.sample(held, 8900):
        assert item is not None
        twins.fast.done(item)
    assert twins.fast.__sizeof__() < before / 3
    twins.now += 100
    rest = [item.key for item in iter(twins.fast.get_nowait, None)]
    assert len(rest) == len(set(rest)) == 100 + 90 + 90
    assert {k for k in rest if k.startswith("later")} == {f"later/{i}" for i in range(0, 9000, 100)}


def test_lanes_that_moved_go_on_in_order() -> None:
    """After the slabs were compacted, what is added to a namespace still comes after what waited there."""
    queue = fast.FairQueue(clock=lambda: 0.0)
    queue.engage("a", cap=10**6)
    for i in range(40_000):
        queue.add("a", f"ns{i % 20}/{i:06}" if i % 8 == 0 else f"ns{i}/{i:06}", 0 if i % 8 == 0 else 1)
    for _ in range(35_000):
        item = queue.get_nowait()
        assert item is not None
        queue.done(item)
    for i in range(40_000, 40_100):
        queue.add("a", f"ns{i % 20}/{i:06}")
    last: dict[str, str] = {}
    for item in iter(queue.get_nowait, None):
        assert last.get(item.namespace, "") < item.name
        last[item.namespace] = item.name
        queue.done(item)
    assert len(last) == 20 and min(last.values()) >= "040080" and len(queue) == 0


@pytest.mark.parametrize("seed", range(5))
def test_delays_taken_out_of_the_middle_leave_the_rest_in_order(seed: int) -> None:
    rng = random.Random(seed)
    now = 0.0
    queue = fast.FairQueue(clock=lambda: now)
    queue.engage("a", cap=10**6)
    due = {f"k{i}": rng.randrange(1, 10_000) / 8 for i in range(1000)}
    for key, at in due.items():
        queue.add_after("a", key, at)
    for key in rng.sample(sorted(due), 600):
        if rng.random() < 0.5:
            due[key] = min(due[key], rng.randrange(1, 10_000) / 8)
            queue.add_after("a", key, due[key])
        else:
            del due[key]
            queue.add("a", key)
    while (item := queue.get_nowait()) is not None:
        queue.done(item)
    now = 10_000.0
    order = [due[item.key] for item in iter(queue.get_nowait, None)]
    assert order == sorted(due.values())


def test_turns_of_keys_that_leave_take_no_memory() -> None:
    """Below a priority that is always busy keys come and go, and no round is ever over."""
    queue = fast.FairQueue(clock=lambda: 0.0)
    queue.engage("a", cap=10**6)
    queue.add("a", "stuck/0")
    sizes = []
    for i in range(20_000):
        queue.add("a", f"n/{i % 2}")
        queue.add("a", f"n/{(i + 1) % 2}", 1)
        item = queue.get_nowait()
        assert item is not None and item.priority == 1
        queue.done(item)
        sizes.append(queue.__sizeof__())
    assert max(sizes[100:]) <= sizes[100]


def test_of_many_old_keys_in_many_rounds_each_is_raised() -> None:
    """More than one look may move, and more rounds than it may see."""
    now = 1000.0
    queue = fast.FairQueue(clock=lambda: now)
    queue.engage("a", cap=10**6)
    for i in range(9000):
        queue.add("a", f"{'one' if i < 8000 else f'ns{i}'}/{i}", -100)
    now += 61
    queue.add("a", "fresh/0", -100)
    served = 0
    for i in range(12_000):
        queue.add("a", f"busy/{i}")
        item = queue.get_nowait()
        assert item is not None and item.key != "fresh/0"
        served += item.priority == -100
        queue.done(item)
    assert served >= 8000 * 5 // 12, "they share the highest priority by namespaces"
    assert [item.key for item in iter(queue.get_nowait, None)][-1] == "fresh/0"
