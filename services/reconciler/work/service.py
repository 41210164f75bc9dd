"""The reconcile protocol's part of the reconciler's life."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from _fastpath.fair_queue import ClusterStats
from reclock.reconciler.v1 import reconciler_pb2 as pb
from services.common.access import MASTERS
from services.common.etcd import Etcd, EtcdUnavailable
from services.common.fleet import FleetWatcher
from services.common.grpc import GrpcServer
from services.common.kube.client import KubeClient
from services.common.kube.reviews import User
from services.common.tasks import FailureCallback, Tasks
from services.reconciler.config import ReconcilerConfig
from services.reconciler.spreads import Spread, spreads
from services.reconciler.work.fellows import Fellows
from services.reconciler.work.hub import Hub
from services.reconciler.work.ownership import Alone
from services.reconciler.work.peers import NoPeers
from services.reconciler.work.replicas import Record, Replicas, new_secret
from services.reconciler.work.servicer import Parts

OWN = User("reclock:built-in", (MASTERS,))
"""The built-in controllers: what they may do on host and members is not the queue's to say."""


class WorkService:
    """Makes the parts when host and fleet are there, and ends them in order."""

    def __init__(self, config: ReconcilerConfig, replica: str, failed: FailureCallback, grpc: GrpcServer) -> None:
        self._config = config
        self._replica = replica
        self._failed = failed
        self._started = time.monotonic()
        self.token = grpc.access.own_token(OWN)
        """By it this process's own worker is known."""
        self._tasks = Tasks("work", failed)
        self._etcd: Etcd | None = None
        self._replicas: Replicas | None = None
        self._fellows: Fellows | None = None
        self.parts = Parts(float(config.lease_seconds), grpc.access, grpc.recheck)
        grpc.guard.fellow = lambda context: self.parts.peers is not None and self.parts.peers.is_peer(context)

    def begin(self, host: KubeClient, fleet: FleetWatcher, bound: Callable[[], str] = str) -> Hub:
        """The host is there; must come before the fleet runs. `bound`: the address at which gRPC is served."""
        hub = Hub(fleet, host, self.parts.lease, self._replica, self._failed)
        fleet.subscribe(hub)
        self.parts.access.host = host
        if self._config.etcd.endpoints:
            self.parts.peers = self._join(hub, bound)
        else:
            hub.ownership = Alone(hub, self._started + self.parts.lease)
            self.parts.peers = NoPeers()
        self.parts.hub = hub
        return hub

    def _join(self, hub: Hub, bound: Callable[[], str]) -> Fellows:
        """Split the clusters with the other replicas from now on."""
        config, secret = self._config, new_secret()
        self._etcd = Etcd.connect(config.etcd.endpoints, config.etcd.tls, config.etcd.login)

        def record() -> Record:
            address = config.replica_address or bound()
            if address.endswith(":0"):
                raise EtcdUnavailable("gRPC does not listen yet")
            return Record(address, config.replica_weight, secret)

        replicas = self._replicas = Replicas(
            self._etcd, config.etcd.prefix, self._replica, record, hub,
            ttl=config.replica_lease_seconds, lease=self.parts.lease,
        )  # fmt: skip
        hub.ownership, hub.valid = replicas, replicas.valid
        self._fellows = Fellows(hub, replicas, secret, config.tls, self._tasks)
        self._tasks.spawn(replicas.run(), "replicas", root=True)
        return self._fellows

    def fleet_known(self) -> None:
        """The fleet was read completely."""
        if self.parts.hub is not None:
            self.parts.hub.want()

    def stats(self) -> list[tuple[str, ClusterStats]]:
        """(controller, figures of one cluster)."""
        hub = self.parts.hub
        return [(each.name, row) for each in hub.controllers.values() for row in each.stats()] if hub is not None else []

    def spreads(self) -> list[Spread]:
        """How long waits and works were."""
        hub = self.parts.hub
        return [row for each in hub.controllers.values() for row in spreads(each.name, each.queue)] if hub is not None else []

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
        """Leave the clusters to others, then end all controllers."""
        if self._replicas is not None:
            await self._replicas.stop()
        if self._fellows is not None:
            await self._fellows.close()
        await self._tasks.close()
        if self.parts.hub is not None:
            await self.parts.hub.close()
        if self._etcd is not None:
            await self._etcd.close()
