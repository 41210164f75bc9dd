"""A drain in the middle of a rollout, at any interleaving: the deployment controller's bounds hold over all clusters.

The controller is a model of Kubernetes' own (k8s.io/kubernetes 1.34 pkg/controller/deployment/rolling.go), which reads
nothing but specs and the statuses that the reconciler sums.
"""

from __future__ import annotations

import random

import pytest

from services.reconciler import status_sums
from services.reconciler.division import Limits, Part, divide
from services.reconciler.status_sums import Copy

CLUSTERS = ("east", "west", "north")


class Fleet:
    """One Deployment with two ReplicaSets, and what its members run."""

    def __init__(self, replicas: int, surge: int, unavailable: int, rng: random.Random) -> None:
        self.replicas, self.surge, self.unavailable, self.rng = replicas, surge, unavailable, rng
        self.desired = {"new": 0, "old": replicas}
        self.shares = dict.fromkeys(CLUSTERS, 0)
        for number in range(replicas):
            self.shares[CLUSTERS[number % 3]] += 1
        self.home = dict(self.shares)
        self.grants = {"new": {}, "old": {c: n for c, n in self.shares.items() if n}}
        self.running = {("old", c): n for c, n in self.shares.items()} | {("new", c): 0 for c in CLUSTERS}
        self.ready = dict(self.running)

    # What the reconciler does.

    def divide(self) -> None:
        parts = [
            Part(name, self.desired[name], self.grants[name], self._seen(self.running, name), self._seen(self.ready, name))
            for name in ("new", "old")
        ]
        rollout = max(0, sum(self.desired.values()) - self.replicas)
        shares = {c: n for c, n in self.shares.items() if n}
        self.grants = divide(parts, shares, Limits(total=self.replicas + rollout, budget=self.unavailable))

    @staticmethod
    def _seen(counts: dict[tuple[str, str], int], name: str) -> dict[str, int]:
        return {c: counts[name, c] for c in CLUSTERS}

    def available(self, name: str) -> int:
        """`status.availableReplicas` as the host shows it."""
        copies = [
            Copy(c, {"replicas": self.running[name, c], "availableReplicas": self.ready[name, c]}, self.grants[name].get(c, 0))
            for c in CLUSTERS
        ]
        status = status_sums.replicaset({"metadata": {}, "spec": {"replicas": self.desired[name]}}, copies)
        return int(status.get("availableReplicas", 0))

    # What Kubernetes does.

    def roll(self) -> None:
        """One sync of the deployment controller."""
        if self.desired["new"] < self.replicas:
            room = self.replicas + self.surge - sum(self.desired.values())
            if room > 0:
                self.desired["new"] += min(room, self.replicas - self.desired["new"])
                return
        least = self.replicas - self.unavailable
        have = {name: self.available(name) for name in self.desired}
        assert all(have[name] <= self.desired[name] for name in have), "the controller refuses its own arithmetic"
        most = sum(self.desired.values()) - least - (self.desired["new"] - have["new"])
        if most <= 0 or not self.desired["old"]:
            return
        self.desired["old"] -= min(most, self.desired["old"] - have["old"])
        surplus = self.available("new") + self.available("old") - least
        self.desired["old"] -= min(self.desired["old"], max(0, surplus))

    def obey(self, name: str, cluster: str) -> None:
        """A member's own controller: what is not ready goes first."""
        wanted = self.grants[name].get(cluster, 0)
        self.running[name, cluster] = wanted
        self.ready[name, cluster] = min(self.ready[name, cluster], wanted)

    def start(self, name: str, cluster: str) -> None:
        if self.ready[name, cluster] < self.running[name, cluster]:
            self.ready[name, cluster] += 1

    # What the operator does.

    def drain(self, cluster: str) -> None:
        others = [c for c in CLUSTERS if c != cluster and self.shares[c]]
        for number in range(self.shares[cluster] if others else 0):
            self.shares[others[number % len(others)]] += 1
            self.shares[cluster] -= 1

    # What must hold.

    def check(self) -> None:
        assert sum(self.ready.values()) >= self.replicas - self.unavailable, "fewer are available than may be"
        placed = sum(n for (_, c), n in self.running.items() if self.shares[c])
        before = sum(n for c, n in self.home.items() if self.shares[c])
        assert placed <= max(self.replicas + self.surge, before), "more run where it is placed than a rollout may add"


@pytest.mark.parametrize("seed", range(40))
def test_available_and_surge_stay_within_bounds(seed: int) -> None:
    rng = random.Random(seed)
    surge = rng.randint(0, 2)
    fleet = Fleet(rng.randint(2, 7), surge, rng.randint(0 if surge else 1, 2), rng)
    rolls = rng.random() < 0.8
    drained = rng.sample(CLUSTERS, rng.randint(1, 2))
    moments = sorted(rng.randint(0, 120) for _ in drained)
    for step in range(2500):
        for moment, cluster in zip(moments, drained, strict=True):
            if step == moment:
                fleet.drain(cluster)
        name, cluster = rng.choice(["new", "old"]), rng.choice(CLUSTERS)
        action = rng.choice([fleet.divide, lambda: fleet.obey(name, cluster), lambda: fleet.start(name, cluster),  # noqa: B023
                             fleet.roll if rolls else fleet.divide])  # fmt: skip
        action()
        fleet.check()
    alive = "new" if rolls else "old"
    assert fleet.desired[alive] == fleet.replicas
    off = {c: fleet.grants[alive].get(c, 0) - n for c, n in fleet.shares.items()}
    # Without a budget what is available is not moved just to even out.
    assert all(abs(n) <= (0 if fleet.unavailable else 1) for n in off.values()), "it ends"
    assert all(n == 0 for c, n in off.items() if not fleet.shares[c]), "and what was drained is empty"
    assert sum(fleet.ready.values()) == sum(fleet.running.values()) == fleet.replicas
