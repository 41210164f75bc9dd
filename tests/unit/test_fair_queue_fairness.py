"""Rule 8: shares of worker time, in simulated time with simulated workers."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

import fair_queue_model
import pytest

from _fastpath import fair_queue as fast

G = 0.125


class Workers:
    """`count` workers that always take the next item; its call lasts what `cost` says."""

    def __init__(self, make: Callable[..., Any], count: int, cost: dict[str, Callable[[], float]]) -> None:
        self.now, self.cost, self.count = 0.0, cost, count
        self.queue = make(clock=lambda: self.now, expected_work=G, workers=count)
        self.running: list[tuple[float, int, Any, float]] = []
        self.spent = dict.fromkeys(cost, 0.0)
        self.served: list[str] = []
        self.most = dict.fromkeys(cost, 0)
        self.again = set(cost)

    def start(self) -> None:
        while len(self.running) < self.count and (item := self.queue.get_nowait()) is not None:
            self.served.append(item.cluster)
            ends = self.now + self.cost[item.cluster]()
            heapq.heappush(self.running, (ends, len(self.served), item, self.now))
            now = sum(r[2].cluster == item.cluster for r in self.running)
            self.most[item.cluster] = max(self.most[item.cluster], now)

    def run(self, until: float) -> None:
        """Every finished key of a backlogged cluster is added again, so that it stays backlogged."""
        self.start()
        while self.running and self.running[0][0] <= until:
            self.now, _, item, began = heapq.heappop(self.running)
            self.spent[item.cluster] += self.now - began
            if item.cluster in self.again:
                self.queue.add(item.cluster, item.key)
            self.queue.done(item)
            self.start()
        self.now = until

    def time_of(self, cluster: str) -> float:
        """Worker-seconds so far, running calls included."""
        return self.spent[cluster] + sum(self.now - r[3] for r in self.running if r[2].cluster == cluster)


@pytest.fixture(params=["compiled", "model"])
def make(request: pytest.FixtureRequest) -> Any:
    return fast.FairQueue if request.param == "compiled" else fair_queue_model.FairQueue


def test_a_quiet_clusters_item_behind_1_000_000_noisy_ones_is_served_within_one_round() -> None:
    queue = fast.FairQueue(clock=lambda: 0.0, workers=4)
    noisy = [f"noisy-{i}" for i in range(10)]
    for cluster in [*noisy, "quiet"]:
        queue.engage(cluster, cap=10**6)
    for i in range(1_000_000):
        queue.add(noisy[i % 10], f"ns-{i % 100}/{i}")
    for _ in range(5000):
        queue.get_nowait()
    queue.add("quiet", "ns/one")
    served = [item.cluster for item in (queue.get_nowait() for _ in range(11)) if item is not None]
    assert "quiet" in served


def test_a_cluster_whose_calls_take_2_s_beside_three_of_100_ms_gets_no_more_than_its_share(make: Any) -> None:
    cost = {"slow": lambda: 2.0, **{f"fast{i}": lambda: 0.1 for i in range(3)}}
    workers = Workers(make, 8, cost)
    for cluster in cost:
        workers.queue.engage(cluster, cap=8)
        for i in range(50):
            workers.queue.add(cluster, f"{i}")
    workers.run(400.0)
    total = sum(map(workers.time_of, cost))
    assert workers.time_of("slow") <= total / 4 + 8 * 2.0
    for cluster in ("fast0", "fast1", "fast2"):
        assert workers.time_of(cluster) >= total / 4 - 8 * 2.0


def test_a_hung_cluster_holds_no_more_than_its_cap(make: Any) -> None:
    workers = Workers(make, 8, {"hung": lambda: 10**9, "well": lambda: 0.1})
    for cluster in ("hung", "well"):
        workers.queue.engage(cluster)
        for i in range(100):
            workers.queue.add(cluster, f"{i}")
    workers.run(100.0)
    assert workers.most["hung"] == 2
    assert workers.served.count("hung") == 2
    assert workers.served.count("well") > 1900


def test_a_hung_call_pays_while_it_hangs(make: Any) -> None:
    """Of its two allowed calls one hangs: the other slot gets its share less what the hung one takes."""
    hangs = iter([10.0**9])
    workers = Workers(make, 2, {"half": lambda: next(hangs, 0.125), "well": lambda: 0.125})
    for cluster in ("half", "well"):
        workers.queue.engage(cluster, cap=2)
        for i in range(10):
            workers.queue.add(cluster, f"{i}")
    workers.run(200.0)
    assert workers.served.count("half") <= 3
    assert workers.time_of("well") >= 190


def test_equal_costs_one_worker_no_cap_differ_by_two_services_at_most(make: Any) -> None:
    workers = Workers(make, 1, {c: lambda: G for c in "abc"})
    for cluster in "abc":
        workers.queue.engage(cluster, cap=10**6)
        for i in range(5):
            workers.queue.add(cluster, f"{i}")
    workers.run(100.0)
    counts = dict.fromkeys("abc", 0)
    for cluster in workers.served:
        counts[cluster] += 1
        assert max(counts.values()) - min(counts.values()) <= 2


@pytest.mark.parametrize("seed", range(25))
def test_the_fairness_bound(seed: int) -> None:
    """Between clusters that stay eligible, worker-seconds per weight differ over any interval by no more
    than cap_i·max_i/w_i + cap_j·max_j/w_j (max: the longest call, at least the time that is charged at once)."""
    rng = random.Random(seed)
    names = [f"c{i}" for i in range(rng.randint(2, 5))]
    longest = {c: rng.choice([0.02, 0.1, 0.5, 2.0]) for c in names}
    cost = {c: (lambda c=c: longest[c] * rng.choice([1.0, rng.uniform(0.1, 1.0)])) for c in names}
    count = rng.choice([1, 3, 8])
    workers = Workers(fast.FairQueue, count, cost)
    weight = {c: rng.choice([0.5, 1.0, 2.0, 3.0]) for c in names}
    cap = dict.fromkeys(names, count)  # never reached by one alone for long: all stay eligible
    for c in names:
        workers.queue.engage(c, weight[c], count + 1)
        for i in range(60):
            workers.queue.add(c, f"{i % 7}/{i}")
    marks = []
    for step in range(1, 150):
        workers.run(step * 2.0)
        marks.append({c: workers.time_of(c) / weight[c] for c in names})
    slack = {c: cap[c] * max(longest[c], G) / weight[c] for c in names}
    for i in names:
        for j in names:
            gaps = [m[i] - m[j] for m in marks]
            assert max(gaps) - min(gaps) <= slack[i] + slack[j] + 1e-6, (i, j, longest, weight, count)


@pytest.mark.parametrize("seed", range(8))
def test_the_fairness_bound_while_others_join_leave_and_reach_their_caps(make: Any, seed: int) -> None:
    """Two clusters stay eligible; the rest come and go, with random weights, costs and caps, paused now and then."""
    rng = random.Random(seed)
    pair, others = ["a", "b"], [f"o{i}" for i in range(rng.randint(1, 4))]
    longest = {c: rng.choice([0.02, 0.1, 0.5, 2.0]) for c in pair + others}
    cost = {c: (lambda c=c: longest[c] * rng.uniform(0.1, 1.0)) for c in pair + others}
    count = rng.choice([1, 2, 5])
    workers = Workers(make, count, cost)
    weight = {c: rng.choice([0.5, 1.0, 2.0, 3.0]) for c in pair + others}

    here: set[str] = set()

    def join(cluster: str, cap: int) -> None:
        here.add(cluster)
        workers.queue.engage(cluster, weight[cluster], cap)
        for i in range(20):
            workers.queue.add(cluster, f"{i % 3}/{i}")

    for c in pair:
        join(c, count + 1)
    marks: list[dict[str, float]] = []
    for step in range(1, 120):
        other = rng.choice(others)
        match rng.choice(["join", "leave", "cap", "pause", "resume", "nothing"]):
            case "join":
                join(other, rng.randint(1, count + 1))
            case "leave":
                here.discard(other)
                workers.queue.disengage(other)
            case "cap" if other in here:
                workers.queue.set_cap(other, rng.randint(1, count + 1))
            case "pause" | "resume" as word if other in here:
                (workers.queue.pause if word == "pause" else workers.queue.resume)(other)
            case _:
                pass
        workers.run(step * 1.5)
        marks.append({c: workers.time_of(c) / weight[c] for c in pair})
    slack = sum(count * max(longest[c], G) / weight[c] for c in pair)
    gaps = [m["a"] - m["b"] for m in marks]
    assert max(gaps) - min(gaps) <= slack + 1e-6, (longest, weight, count)
    assert min(marks[-1].values()) > 0


@pytest.mark.parametrize("seed", range(5))
def test_namespaces_of_a_cluster_share_fairly_whatever_waits_and_whoever_joins(make: Any, seed: int) -> None:
    """While two namespaces both wait, over any interval one is served twice more than the other at most."""
    rng = random.Random(seed)
    queue = make(clock=lambda: 0.0, workers=4)
    queue.engage("c", cap=10**6)
    left = {f"ns{i}": rng.choice([3, 40, 2000]) for i in range(rng.randint(2, 6))} | {"": 50}
    late = {"late": 30}
    for namespace, number in left.items():
        for i in range(number):
            queue.add("c", f"{namespace}/{i}")
    served: dict[str, int] = dict.fromkeys([*left, *late], 0)
    base: dict[tuple[str, str], list[int]] = {}
    for turn in range(400):
        if turn == 100:
            left |= late
            for i in range(late["late"]):
                queue.add("c", f"late/{i}")
        item = queue.get_nowait()
        if item is None:
            break
        queue.done(item)
        namespace = item.key.rpartition("/")[0]
        served[namespace] += 1
        left[namespace] -= 1
        waiting = [each for each, number in left.items() if number]
        for one in waiting:
            for other in waiting:
                base.setdefault((one, other), []).append(served[one] - served[other])
    assert base and all(max(gaps) - min(gaps) <= 2 for gaps in base.values())


def test_idling_saves_up_nothing_and_debt_is_not_shed(make: Any) -> None:
    workers = Workers(make, 1, {"busy": lambda: G, "returns": lambda: G})
    for cluster in ("busy", "returns"):
        workers.queue.engage(cluster, cap=1)
    for i in range(4):
        workers.queue.add("busy", f"{i}")
    workers.run(50.0)
    for i in range(40):
        workers.queue.add("returns", f"{i}")
    before = len(workers.served)
    workers.run(52.0)
    share = workers.served[before:].count("returns")
    assert share <= (len(workers.served) - before) / 2 + 1


def test_a_slow_cluster_that_queues_one_key_at_a_time_pays_for_its_time(make: Any) -> None:
    """It goes idle after each call; its tag outlives that, so the long call is paid for."""
    workers = Workers(make, 1, {"slow": lambda: 2.0, "fast": lambda: 0.125})
    for cluster in ("slow", "fast"):
        workers.queue.engage(cluster, cap=1)
    workers.queue.add("slow", "only")
    for i in range(9):
        workers.queue.add("fast", f"{i}")
    workers.run(200.0)
    assert workers.time_of("slow") <= 100 + 4 and workers.time_of("fast") >= 100 - 4
