"""Many simulated clusters on one clock, from one seed.

world = World(seed=7)                      # virtual time: moves by world.advance(seconds) only
east = world.add("east", nodes=2)
east.create({"apiVersion": "v1", "kind": "Pod", …}); world.settle()
"""

from __future__ import annotations

import random

from deploy.local.sim.cluster import Cluster
from deploy.local.sim.timers import Now, Timers, VirtualClock, advance


class World:
    """Clusters by name. The same seed and the same calls give the same uids, names, faults and order of events."""

    def __init__(self, seed: int = 0, now: Now | None = None) -> None:
        self.seed = seed
        self.clock: VirtualClock | None = None
        if now is None:
            self.clock = now = VirtualClock()
        self.timers = Timers(now)
        self.random = random.Random(f"world/{seed}")
        self.clusters: dict[str, Cluster] = {}
        self.authority = ""
        """The PEM of the authority that clusters tell their pods of, where they are not told another."""

    def add(
        self,
        name: str,
        *,
        authority: str = "",
        managed_fields: bool = True,
        history: int = 10_000,
        first_revision: int = 1,
        nodes: int = 0,
        role: str = "member",
    ) -> Cluster:
        """A new cluster. `role` says which controllers run: member, host, basic or none. ValueError: name taken."""
        if name in self.clusters:
            raise ValueError(f"there is a cluster {name} already")
        cluster = Cluster(
            name,
            self.timers,
            random.Random(f"{self.seed}/{name}"),
            authority=authority or self.authority,
            managed_fields=managed_fields,
            history=history,
            first_revision=first_revision,
            nodes=nodes,
            role=role,
        )
        self.clusters[name] = cluster
        return cluster

    def remove(self, name: str) -> None:
        """Gone for good; its watches end."""
        self.clusters.pop(name).drop_watches()

    def settle(self) -> int:
        """Runs what is due now; how many callbacks ran."""
        return self.timers.run_due()

    def advance(self, seconds: float) -> None:
        """Moves virtual time on, running what becomes due at its own time."""
        if self.clock is None:
            raise RuntimeError("this world runs on real time")
        advance(self.clock, self.timers, seconds)
