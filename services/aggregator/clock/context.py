"""What the clocks of all resources on one etcd share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from services.aggregator.clock.barrier import Shared
from services.aggregator.clock.election import LeaseKeeper, identity
from services.aggregator.clock.follower import Followed, Follower
from services.aggregator.clock.store import Store
from services.aggregator.clock.upkeep import Upkeep
from services.common.fleet import FleetWatcher
from services.common.kube.client import KubeClient

log = logging.getLogger(__name__)

Leaders = tuple[int, dict[tuple[str, str], int]]


@dataclass
class Context:
    """Made by the Clock."""

    store: Store
    fleet: FleetWatcher
    host: KubeClient
    fleet_id: str
    window_seconds: float
    window_revisions: int
    me: str = field(default_factory=identity)
    max_ops: int = 128
    leases: LeaseKeeper = field(init=False)
    leaders: Shared[Leaders] = field(init=False)
    follower: Follower = field(init=False)
    upkeep: Upkeep = field(init=False)
    resources: Callable[[], Collection[Followed]] = lambda: ()
    _reopening: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    def __post_init__(self) -> None:
        self.upkeep = Upkeep(self.store.etcd)
        self.leases = LeaseKeeper(self.store)
        self.leaders = Shared(self.store.leaders)
        self.follower = Follower(self.store, self.resources, self.reopen)

    async def reopen(self, base: int, *, rewound: bool) -> None:
        """Read the base again after `base` turned out to be wrong; once for all who find out. All is read anew."""
        async with self._reopening:
            if self.store.base == base:
                await self.store.open(rewound=rewound)
                self.follower.reset()
                log.error(
                    "etcd was %s: all markers are read anew, older versions are expired",
                    "set back to an older state" if rewound else "emptied or rebuilt",
                )
