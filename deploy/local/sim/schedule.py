"""A random but repeatable course of faults for one cluster: the same seed gives the same faults at the same times."""

from __future__ import annotations

import random
from collections.abc import Callable

from deploy.local.sim.cluster import Cluster
from deploy.local.sim.faults import Rule
from deploy.local.sim.timers import Timer


class Schedule:
    """Every `seconds` on average something happens, for a while; `history` says what, as (time, what).

    `gentle` leaves out what costs clients their versions: new incarnations and restored backups.
    """

    def __init__(
        self, cluster: Cluster, *, seed: int = 0, seconds: float = 5.0, gentle: bool = False
    ) -> None:
        self.cluster = cluster
        self.seed = seed
        self.history: list[tuple[float, str]] = []
        self._seconds = seconds
        self._random = random.Random(f"faults/{seed}/{cluster.name}")
        self._timer: Timer | None = None
        self._events: list[tuple[str, Callable[[], None]]] = [
            ("drop watches", lambda: self._drop()),
            ("compact", cluster.compact),
            ("restart", cluster.restart),
            ("bookmark", cluster.bookmark),
            ("slow", lambda: self._rule(Rule("delay", seconds=self._random.uniform(0.05, 2)))),
            (
                "errors",
                lambda: self._rule(Rule("error", status=self._random.choice((429, 500, 503)), chance=0.5)),
            ),
            ("refuse", lambda: self._rule(Rule("refuse", chance=0.5))),
            ("network", self._lose),
            ("garbage", lambda: self._rule(Rule("garbage", garbage=self._garbage(), chance=0.3))),
        ]
        if not gentle:
            self._events += [("restore", self._restore), ("reincarnate", cluster.reincarnate)]
        self._backup = cluster.backup()

    def start(self) -> None:
        """Plans the next event on the cluster's timers."""
        pause = self._random.expovariate(1 / self._seconds)
        self._timer = self.cluster.core.timers.after(pause, self._happen)

    def stop(self) -> None:
        """Nothing more happens; rules in force stay until lifted."""
        if self._timer is not None:
            self._timer.cancel()

    def _happen(self) -> None:
        name, event = self._random.choice(self._events)
        self.history.append((self.cluster.core.timers.now(), name))
        event()
        self.start()

    def _drop(self) -> None:
        self.cluster.drop_watches()

    def _garbage(self) -> str:
        return self._random.choice(("html", "half", "version"))

    def _rule(self, rule: Rule) -> None:
        self.cluster.faults.add(rule)
        self.cluster.core.timers.after(
            self._random.uniform(0.2, self._seconds), lambda: self.cluster.faults.lift(rule)
        )

    def _lose(self) -> None:
        self.cluster.lose_network()
        self.cluster.core.timers.after(self._random.uniform(0.2, self._seconds), self.cluster.find_network)

    def _restore(self) -> None:
        self.cluster.restore(self._backup)
        self._backup = self.cluster.backup()
