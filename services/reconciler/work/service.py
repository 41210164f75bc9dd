"""The reconcile protocol's part of the reconciler's life."""

from __future__ import annotations

import asyncio
import time

from _fastpath.fair_queue import ClusterStats
from reclock.reconciler.v1 import reconciler_pb2 as pb
from services.common.fleet import FleetWatcher
from services.common.kube.client import KubeClient
from services.common.tasks import FailureCallback
from services.reconciler.config import ReconcilerConfig
from services.reconciler.work.hub import Hub
from services.reconciler.work.identity import Access, User
from services.reconciler.work.ownership import Alone
from services.reconciler.work.peers import NoPeers
from services.reconciler.work.servicer import Parts


class WorkService:
    """Makes the parts when host and fleet are there, and ends them in order."""

    def __init__(self, config: ReconcilerConfig, replica: str, failed: FailureCallback) -> None:
        self._config = config
        self._replica = replica
        self._failed = failed
        self._started = time.monotonic()
        self.parts = Parts(float(config.lease_seconds))

    def begin(self, host: KubeClient, fleet: FleetWatcher) -> None:
        """The host is there; must come before the fleet runs."""
        local = self._config.local
        hub = Hub(fleet, host, self.parts.lease, self._replica, self._failed)
        hub.ownership = Alone(hub, self._started + self.parts.lease)
        fleet.subscribe(hub)
        self.parts.hub, self.parts.peers = hub, NoPeers()
        self.parts.access = Access(host, User(local.user, tuple(local.groups)))

    def fleet_known(self) -> None:
        """The fleet was read completely."""
        if self.parts.hub is not None:
            self.parts.hub.want()

    def stats(self) -> list[tuple[str, ClusterStats]]:
        """(controller, figures of one cluster)."""
        hub = self.parts.hub
        return [(each.name, row) for each in hub.controllers.values() for row in each.stats()] if hub is not None else []

    def stop_intake(self) -> None:
        """Hand out nothing more; workers are told to go elsewhere."""
        self.parts.stopping = True
        for session in self.parts.sessions:
            if session.worker.version >= 1:
                session.tell(pb.WorkResponse(drain=pb.Drain()))
        for controller in self.parts.hub.controllers.values() if self.parts.hub is not None else ():
            for cluster in controller.parts:
                controller.queue.pause(cluster)

    async def drain(self) -> None:
        """Wait until all that was handed out is answered; the caller has a limit."""
        if self.parts.hub is not None:
            await asyncio.gather(*(each.queue.drain() for each in self.parts.hub.controllers.values()))

    async def close(self) -> None:
        """End all controllers."""
        if self.parts.hub is not None:
            await self.parts.hub.close()
