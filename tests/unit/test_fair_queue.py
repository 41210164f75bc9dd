"""The fair queue's rules, on the compiled code and on its model."""

from __future__ import annotations

import math
from typing import Any

import fair_queue_model
import pytest

from _fastpath import fair_queue as fast


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["compiled", "model"])
def make(request: pytest.FixtureRequest, clock: Clock) -> Any:
    cls: Any = fast.FairQueue if request.param == "compiled" else fair_queue_model.FairQueue

    def build(*clusters: str, cap: int = 10**6, **options: Any) -> Any:
        queue = cls(clock=clock, expected_work=0.125, **options)
        for cluster in clusters:
            queue.engage(cluster, cap=cap)
        return queue

    return build


def drain(queue: Any, *, finish: bool = True) -> list[str]:
    """Everything that can be had now, as cluster:key."""
    out = []
    while (item := queue.get_nowait()) is not None:
        out.append(f"{item.cluster}:{item.key}")
        if finish:
            queue.done(item)
    return out


# --- rules 1 to 4: the work queue's contract ---
def test_a_waiting_key_is_queued_once(make: Any) -> None:
    queue = make("a")
    assert queue.add("a", "n/x") and queue.add("a", "n/x") and queue.add("a", "n/y")
    assert len(queue) == 2
    assert drain(queue) == ["a:n/x", "a:n/y"]
    assert queue.get_nowait() is None and len(queue) == 0


def test_equal_keys_of_two_clusters_are_two(make: Any) -> None:
    queue = make("a", "b")
    queue.add("a", "kube-root-ca.crt")
    queue.add("b", "kube-root-ca.crt")
    assert sorted(drain(queue, finish=False)) == ["a:kube-root-ca.crt", "b:kube-root-ca.crt"]


def test_added_while_processed_it_comes_again_once_after_done(make: Any) -> None:
    queue = make("a")
    queue.add("a", "x")
    item = queue.get_nowait()
    for _ in range(3):
        queue.add("a", "x")
    assert len(queue) == 0 and queue.get_nowait() is None
    queue.done(item)
    assert len(queue) == 1
    again = queue.get_nowait()
    queue.done(again)
    assert queue.get_nowait() is None


def test_done_twice_does_nothing(make: Any) -> None:
    queue = make("a")
    queue.add("a", "x")
    item = queue.get_nowait()
    queue.done(item)
    queue.add("a", "x")
    again = queue.get_nowait()
    queue.done(item)
    queue.add("a", "x")
    assert queue.get_nowait() is None, "the second processing holds the key still"
    queue.done(again)
    assert queue.get_nowait() is not None


def test_items_say_what_they_are(make: Any, clock: Clock) -> None:
    queue = make("a")
    queue.add("a", "n/x", 7)
    clock.now += 2.5
    item = queue.get_nowait()
    assert (item.cluster, item.key, item.priority, item.attempts, item.waited) == ("a", "n/x", 7, 0, 2.5)


# --- rules 5 and 6: delays and back-off ---
def test_delayed_keys_come_at_their_time_in_its_order(make: Any, clock: Clock) -> None:
    queue = make("a")
    queue.add_after("a", "late", 3)
    queue.add_after("a", "soon", 1)
    queue.add_after("a", "mid", 2)
    assert len(queue) == 0 and queue.get_nowait() is None
    clock.now += 1
    assert drain(queue) == ["a:soon"]
    clock.now += 5
    queue.add("a", "now")
    assert drain(queue) == ["a:mid", "a:late", "a:now"]


def test_the_earlier_time_wins(make: Any, clock: Clock) -> None:
    queue = make("a")
    queue.add_after("a", "x", 5)
    queue.add_after("a", "x", 9)
    queue.add_after("a", "x", 2)
    clock.now += 2
    assert drain(queue) == ["a:x"]
    clock.now += 20
    assert drain(queue) == []
    queue.add_after("a", "y", 5)
    queue.add("a", "y")
    assert drain(queue) == ["a:y"]
    clock.now += 20
    assert drain(queue) == []


@pytest.mark.parametrize("delay", [0, -1, -math.inf])
def test_no_delay_is_at_once(make: Any, delay: float) -> None:
    queue = make("a")
    queue.add_after("a", "x", delay)
    assert len(queue) == 1


def test_a_delay_for_a_running_key_counts_from_its_call(make: Any, clock: Clock) -> None:
    queue = make("a")
    queue.add("a", "x")
    item = queue.get_nowait()
    queue.add_after("a", "x", 5)
    queue.add_after("a", "x", 3)
    clock.now += 1
    queue.done(item)
    assert drain(queue) == []
    clock.now += 2
    assert drain(queue) == ["a:x"]
    queue.add("a", "x")
    item = queue.get_nowait()
    queue.add_after("a", "x", 5)
    queue.add("a", "x")
    queue.done(item)
    assert drain(queue) == ["a:x"]


def test_back_off_doubles_to_its_maximum(make: Any) -> None:
    queue = make("a", base_delay=0.005, max_delay=1000.0)
    delays = [queue.add_rate_limited("a", "x") for _ in range(25)]
    assert delays == [min(0.005 * 2**n, 1000.0) for n in range(25)]
    assert queue.num_requeues("a", "x") == 25
    queue.forget("a", "x")
    assert queue.num_requeues("a", "x") == 0
    assert queue.add_rate_limited("a", "x") == 0.005
    assert queue.num_requeues("a", "y") == 0 and queue.num_requeues("none", "x") == 0


def test_attempts_outlive_done_until_forget(make: Any, clock: Clock) -> None:
    queue = make("a")
    queue.add("a", "x")
    for attempt in range(3):
        item = queue.get_nowait()
        assert item.attempts == attempt
        queue.add_rate_limited("a", "x")
        queue.done(item)
        clock.now += 10
    item = queue.get_nowait()
    queue.forget("a", "x")
    queue.done(item)
    assert queue.num_requeues("a", "x") == 0


def test_the_larger_of_back_off_and_token_bucket_wins(make: Any, clock: Clock) -> None:
    queue = make("a", base_delay=0.5)
    queue.set_rate("a", 1.0, 2)
    delays = [queue.add_rate_limited("a", f"k{i}") for i in range(5)]
    assert delays == [0.5, 0.5, 1.0, 2.0, 3.0]
    clock.now += 100
    assert queue.add_rate_limited("a", "k9") == 0.5
    queue.set_rate("a", None)
    assert queue.add_rate_limited("a", "k10") == 0.5


# --- rule 7: order inside a cluster ---
def test_priority_goes_before_namespace_and_age(make: Any) -> None:
    queue = make("a")
    queue.add("a", "n/low", -100)
    queue.add("a", "n/one")
    queue.add("a", "n/two")
    queue.add("a", "m/high", 5)
    assert drain(queue) == ["a:m/high", "a:n/one", "a:n/two", "a:n/low"]


def test_a_raised_priority_goes_to_its_tail(make: Any) -> None:
    queue = make("a")
    for key in ("n/1", "n/2", "n/3"):
        queue.add("a", key, 1)
    queue.add("a", "n/x", 0)
    queue.add("a", "n/y", 0)
    queue.add("a", "n/y", 1)
    queue.add("a", "n/y", -5)
    assert len(queue) == 5
    assert drain(queue) == ["a:n/1", "a:n/2", "a:n/3", "a:n/y", "a:n/x"]


@pytest.mark.parametrize("length", [*range(20), 63])
@pytest.mark.parametrize("letter", ["a", "é", "日"])
def test_a_namespace_is_what_stands_before_the_first_slash(make: Any, length: int, letter: str) -> None:
    queue = make("c")
    one = letter * length
    other = one[:-1] + ("b" if length else "node")
    for namespace in (f"{one}/", f"{other}/" if length else ""):
        for i in range(3):
            queue.add("c", f"{namespace}{i}{'/x' if i and namespace else ''}")
    order = [key.partition(":")[2].partition("/")[0] for key in drain(queue)]
    assert order == [one, other] * 3 if length else len(order) == 6
    # A key without a slash has the namespace "", as one whose slash comes first has.
    if not length:
        assert order == ["", "", "", "0", "1", "2"]


def test_who_comes_to_a_backlog_is_served_in_the_round_that_runs(make: Any) -> None:
    queue = make("a")
    for i in range(5):
        queue.add("a", f"busy/{i}")
    queue.done(queue.get_nowait())
    queue.done(queue.get_nowait())
    queue.add("a", "quiet/0")
    queue.add("a", "quiet/1")
    queue.add("a", "other/0")
    assert drain(queue) == ["a:quiet/0", "a:other/0", "a:busy/2", "a:quiet/1", "a:busy/3", "a:busy/4"]


def test_a_key_that_leaves_its_priority_leaves_its_turn_to_its_namespace(make: Any) -> None:
    queue = make("a")
    queue.add("a", "n/waits")
    for _ in range(50):
        queue.add("a", "m/x")
        queue.add("a", "m/x", 1)
        item = queue.get_nowait()
        assert item.key == "m/x"
        queue.done(item)
    queue.add("a", "m/y")
    queue.add("a", "n/behind")
    assert drain(queue) == ["a:n/waits", "a:m/y", "a:n/behind"]


def test_namespaces_take_turns(make: Any) -> None:
    queue = make("a")
    for i in range(3):
        queue.add("a", f"noisy/{i}")
    queue.add("a", "quiet/1")
    queue.add("a", "node-1")
    assert drain(queue) == ["a:noisy/0", "a:quiet/1", "a:node-1", "a:noisy/1", "a:noisy/2"]


def test_who_waits_too_long_counts_as_the_highest(make: Any, clock: Clock) -> None:
    queue = make("a", max_wait=60.0)
    queue.add("a", "n/old", -100)
    queue.add("a", "m/old", -50)
    served: list[str] = []
    for i in range(200):
        queue.add("a", f"n/busy{i}", 3)
        queue.add("a", f"n/more{i}", 3)
        served += drain_one(queue)
        clock.now += 1
    assert served.index("a:n/old") < 130 and served.index("a:m/old") < 130
    assert "a:n/old" not in served[:60] and "a:m/old" not in served[:60]


def drain_one(queue: Any) -> list[str]:
    item = queue.get_nowait()
    if item is None:
        return []
    queue.done(item)
    return [f"{item.cluster}:{item.key}"]


def test_one_that_waited_too_long_keeps_its_own_priority(make: Any, clock: Clock) -> None:
    queue = make("a")
    queue.add("a", "old", -100)
    clock.now += 61
    queue.add("a", "new", 5)
    assert [i.priority for i in iter(queue.get_nowait, None)] == [5, -100]


def test_priority_first_puts_it_before_the_cluster(make: Any) -> None:
    queue = make("a", "b", priority_first=True)
    for i in range(3):
        queue.add("a", f"{i}", 5)
        queue.add("b", f"{i}", 0)
    queue.add("b", "2", 9)
    assert drain(queue, finish=False) == ["b:2", "a:0", "a:1", "a:2", "b:0", "b:1"]


# --- rule 8: fairness, the rest of it in test_fair_queue_fairness.py ---
def test_clusters_take_turns_whatever_waits(make: Any) -> None:
    queue = make("noisy", "quiet")
    for i in range(100):
        queue.add("noisy", f"n/{i}")
    queue.add("quiet", "n/1")
    assert "quiet:n/1" in drain(queue, finish=False)[:2]


def test_weights_share_services(make: Any) -> None:
    queue = make("a", "b")
    queue.set_weight("a", 3.0)
    for i in range(400):
        queue.add("a", f"{i}")
        queue.add("b", f"{i}")
    served = [queue.get_nowait().cluster for _ in range(400)]
    assert abs(served.count("a") - 300) <= 2


def test_the_cap_holds_and_changes_at_once(make: Any) -> None:
    queue = make()
    queue.engage("a", 1.0, 2)
    for i in range(9):
        queue.add("a", f"{i}")
    first = [queue.get_nowait() for _ in range(2)]
    assert queue.get_nowait() is None and len(queue) == 7
    queue.set_cap("a", 3)
    assert queue.get_nowait() is not None and queue.get_nowait() is None
    queue.done(first[0])
    assert queue.get_nowait() is not None and queue.get_nowait() is None
    queue.set_cap("a", 1)
    queue.done(first[1])
    assert queue.get_nowait() is None


@pytest.mark.parametrize(("workers", "cap"), [(1, 1), (4, 1), (16, 4), (50, 12)])
def test_the_default_cap_is_a_quarter_of_the_workers(make: Any, workers: int, cap: int) -> None:
    queue = make(workers=workers)
    queue.engage("a")
    for i in range(99):
        queue.add("a", f"{i}")
    assert len(drain(queue, finish=False)) == cap


# --- rule 9: pause, disengage, generations ---
def test_a_paused_cluster_keeps_what_it_has(make: Any) -> None:
    queue = make("a", "b")
    queue.pause("a")
    queue.add("a", "x")
    queue.add("b", "y")
    assert drain(queue) == ["b:y"] and len(queue) == 1
    queue.resume("a")
    assert drain(queue) == ["a:x"]


def test_disengage_drops_everything_and_ignores_late_adds(make: Any, clock: Clock) -> None:
    queue = make("a", "b")
    queue.add("a", "ready", 3)
    queue.add("a", "n/ready")
    queue.add_after("a", "later", 5)
    queue.add_after("b", "later", 5)
    queue.add("a", "failing")
    queue.add("b", "ready")
    failing = [i for i in iter(queue.get_nowait, None) if i.key == "failing"]
    queue.disengage("b")
    queue = make("a", "b")
    queue.add("a", "ready", 3)
    queue.add("a", "n/ready")
    queue.add_after("a", "later", 5)
    queue.add_after("b", "later", 5)
    queue.add_rate_limited("a", "failing")
    queue.add("b", "ready")
    assert failing
    assert queue.disengage("a") == 4
    assert queue.disengage("a") == 0 and queue.disengage("never") == 0
    assert queue.add("a", "x") is False and queue.add_after("a", "x", 1) is False
    assert queue.add_rate_limited("a", "x") == -1.0
    clock.now += 100
    assert sorted(drain(queue)) == ["b:later", "b:ready"]
    queue.engage("a", cap=9)
    assert queue.num_requeues("a", "failing") == 0
    assert drain(queue) == []


def test_the_lock_of_a_running_key_outlives_its_generation(make: Any) -> None:
    queue = make("a")
    queue.add("a", "x")
    item = queue.get_nowait()
    queue.add("a", "x")
    queue.disengage("a")
    queue.engage("a", cap=1)
    queue.done(item)
    assert drain(queue) == [], "an add of the gone generation"
    queue.add("a", "x")
    item = queue.get_nowait()
    queue.disengage("a")
    queue.engage("a", cap=1)
    queue.add("a", "x")
    assert queue.get_nowait() is None, "never twice at a time"
    queue.add("a", "y")
    other = queue.get_nowait()
    assert other.key == "y", "a gone generation's call takes nothing of the cap"
    queue.done(item)
    queue.done(other)
    assert drain(queue) == ["a:x"]


def test_engaging_again_keeps_the_generation(make: Any) -> None:
    queue = make("a")
    queue.add("a", "x")
    queue.engage("a", 2.0, 1)
    queue.add("a", "y")
    assert drain(queue, finish=False) == ["a:x"]


# --- bad values ---
@pytest.mark.parametrize("weight", [0, -1, math.nan, math.inf, 1e-9, 1e9])
def test_bad_weights_are_refused_with_the_range(make: Any, weight: float) -> None:
    queue = make("a")
    with pytest.raises(ValueError, match=r"between 1e-06 and 1e\+06"):
        queue.engage("b", weight)
    with pytest.raises(ValueError, match=r"between 1e-06 and 1e\+06"):
        queue.set_weight("a", weight)
    assert queue.add("b", "x") is False


def test_bad_caps_are_refused(make: Any) -> None:
    queue = make("a")
    for cap in (0, -1):
        with pytest.raises(ValueError, match="cap"):
            queue.set_cap("a", cap)


def test_other_bad_values_are_named() -> None:
    queue = fast.FairQueue()
    queue.engage("a")
    for call in (queue.pause, queue.resume, lambda c: queue.set_weight(c, 1), lambda c: queue.set_cap(c, 1)):
        with pytest.raises(KeyError, match="not engaged"):
            call("b")
    with pytest.raises(ValueError, match="priority"):
        queue.add("a", "x", 40000)
    with pytest.raises(ValueError, match="delay"):
        queue.add_after("a", "x", math.nan)
    with pytest.raises(ValueError, match="delay"):
        queue.add_after("a", "x", math.inf)
    with pytest.raises(ValueError, match="burst"):
        queue.set_rate("a", 1.0, 0)
    for options in ({"expected_work": 0}, {"base_delay": -1}, {"max_wait": math.inf}, {"workers": 0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            fast.FairQueue(**options)  # type: ignore[arg-type]
    for bad in (5, None, b"x"):
        with pytest.raises(TypeError):
            queue.add("a", bad)  # type: ignore[arg-type]
    other = fast.FairQueue()
    other.engage("a")
    other.add("a", "x")
    item = other.get_nowait()
    assert item is not None
    with pytest.raises(ValueError, match="another queue"):
        queue.done(item)


# --- rules 11 and 12, on the compiled code ---
def test_shut_down_takes_nothing_more_and_hands_out_the_rest(make: Any, clock: Clock) -> None:
    queue = make("a")
    queue.add("a", "x")
    item = queue.get_nowait()
    queue.add("a", "x")
    queue.add("a", "y")
    queue.add_after("a", "z", 1)
    queue.shut_down()
    queue.shut_down()
    assert queue.add("a", "w") is False
    clock.now += 5
    queue.done(item)
    assert drain(queue) == ["a:y", "a:x"]


def test_memory_shrinks_after_a_burst() -> None:
    queue = fast.FairQueue()
    queue.engage("a", cap=10**6)
    for i in range(100_000):
        queue.add("a", f"ns-{i % 5000}/{i}")
    full = queue.__sizeof__()
    assert full / 100_000 < 100
    kept = [f"a:ns-{i % 5000}/{i}" for i in range(99_990, 100_000)]
    rest: list[str] = []
    for _ in range(100_000 - 10):
        item = queue.get_nowait()
        assert item is not None
        queue.done(item)
    assert queue.__sizeof__() < full / 20
    rest = drain(queue)
    assert len(rest) == 10 and set(rest) <= {f"a:ns-{i % 5000}/{i}" for i in range(100_000)}
    assert kept


def test_stats_count_by_cluster(clock: Clock) -> None:
    queue = fast.FairQueue(clock=clock, expected_work=0.125)
    queue.engage("a", 2.0, 5)
    queue.engage("b")
    queue.pause("b")
    queue.add("a", "x")
    queue.add("a", "y")
    queue.add("a", "y")
    queue.add("b", "z")
    queue.add_after("b", "later", 50)
    clock.now += 1
    x, y = queue.get_nowait(), queue.get_nowait()
    assert x is not None and y is not None
    clock.now += 2
    queue.done(x)
    queue.add_rate_limited("a", "y")
    clock.now += 1
    a, b = queue.stats()
    assert (a.cluster, a.weight, a.cap, a.paused) == ("a", 2.0, 5, False)
    assert (a.depth, a.delayed, a.processing, a.adds, a.served, a.retries) == (0, 1, 1, 3, 2, 1)
    assert (a.queue_seconds, a.work_seconds, a.unfinished_seconds, a.longest_running) == (2.0, 2.0, 3.0, 3.0)
    assert (b.depth, b.delayed, b.paused, b.cap, b.served, b.share) == (1, 1, True, 4, 0, 0.0)
    assert a.share == 1.0


def test_nothing_is_left_of_clusters_that_come_and_go() -> None:
    queue = fast.FairQueue()
    for i in range(10_000):
        queue.engage(f"c{i}")
        queue.add(f"c{i}", "n/x")
        queue.add_rate_limited(f"c{i}", "n/y")
        item = queue.get_nowait()
        assert item is not None and item.cluster == f"c{i}"
        assert queue.disengage(f"c{i}") == 1
        queue.done(item)
    assert queue.__sizeof__() < 10_000 and len(queue) == 0 and queue.stats() == []
