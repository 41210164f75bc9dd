"""The reconciler as a service: host, fleet, the reconcile protocol, and the built-in controllers as a worker of it."""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import socket
import tempfile
from datetime import datetime
from pathlib import Path

import grpc

from reclock import Fleet, Worker
from reclock.discovery.v1 import discovery_pb2, discovery_pb2_grpc
from reclock.reconciler.v1 import peer_pb2_grpc, reconciler_pb2_grpc
from services.common.access import Access
from services.common.errors import StatusError, from_rpc
from services.common.fleet import FleetWatcher
from services.common.grpc import channel
from services.common.kube.client import KubeClient
from services.common.kube.resource import NAMESPACES
from services.common.kube.reviews import User
from services.common.service import Service
from services.common.tasks import Backoff
from services.reconciler.aggregations import Aggregations
from services.reconciler.applier import Applier
from services.reconciler.channels import Channels
from services.reconciler.config import ReconcilerConfig
from services.reconciler.controllers.context import Context
from services.reconciler.dispatch import Dispatcher
from services.reconciler.events import Recorder
from services.reconciler.host_cache import HostCache
from services.reconciler.host_owners import HostOwners
from services.reconciler.lead import Lead
from services.reconciler.members import Members
from services.reconciler.metrics import QueueMetrics
from services.reconciler.names import HOST, Obj
from services.reconciler.router import Router
from services.reconciler.sinks import Sinks
from services.reconciler.work.hub import Hub
from services.reconciler.work.peer_servicer import PeerServicer
from services.reconciler.work.queues import QueueServicer
from services.reconciler.work.service import WorkService
from services.reconciler.work.servicer import WorkServicer
from services.reconciler.world import World

log = logging.getLogger(__name__)

USER_AGENT = "reclock-reconciler"
RELEASE_TIMEOUT = 10.0
DRAIN_SECONDS = 8.0
"""How long reconciles may take to end when the process stops."""


class ReconcilerService(Service[ReconcilerConfig]):
    """Reads everything first, then works; so a restart at any point only repeats what is already so."""

    name = "reconciler"

    def __init__(self, config: ReconcilerConfig) -> None:
        super().__init__(config)
        self.channels = Channels()
        self.fleet = FleetWatcher(
            config.discovery_address, config.tls, user_agent=USER_AGENT, with_leaving=True,
            state_file=config.state_file,
        )  # fmt: skip
        self.replica = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self.work = WorkService(config, self.replica, self._task_failed, self.grpc)
        self._client: KubeClient | None = None
        self._discovery: grpc.aio.Channel | None = None
        self._members: Members | None = None
        self._context: Context | None = None
        self._hub: Hub | None = None
        self._sockets = ""
        """Directory of the socket on which our own worker connects where the port has TLS."""
        self._waiting = "the host has not been reached yet"
        self.checks["host"] = lambda: self._waiting or None
        self.checks["fleet"] = self.fleet.check
        self.checks["controllers"] = self._connected
        self.metrics = QueueMetrics(self.work.stats, self.work.spreads)

    def access(self) -> Access:
        """See Service."""
        local = self.config.local
        return Access(local=User(local.user, tuple(local.groups)))

    async def start(self) -> None:
        """Serve gRPC at once; everything else when the host is there."""
        name = "reclock.reconciler.v1."
        self.grpc.add(
            reconciler_pb2_grpc.add_QueueServiceServicer_to_server,
            QueueServicer(self.work.parts, self.replica), f"{name}QueueService",
        )  # fmt: skip
        self.grpc.add(
            reconciler_pb2_grpc.add_ReconcilerServiceServicer_to_server,
            WorkServicer(self.work.parts), f"{name}ReconcilerService",
        )  # fmt: skip
        self.grpc.add(
            peer_pb2_grpc.add_PeerServiceServicer_to_server, PeerServicer(self.work.parts), f"{name}PeerService"
        )
        if self.config.tls:
            self._sockets = tempfile.mkdtemp(prefix="reclock-")
            self.grpc.also.append(f"unix:{self._sockets}/work")
        self._client = await KubeClient.connect(
            Path(self.config.host.kubeconfig), name=HOST, user_agent=USER_AGENT
        )
        self.grpc.access.host = self._client
        self.metrics.register()
        self.tasks.spawn(self._begin(self._client), "begin")

    async def _begin(self, client: KubeClient) -> None:
        fleet_id = await self._fleet_id(client)
        router: Router
        lead: Lead

        def host_event(kind: str, event: str, obj: Obj, old: Obj | None) -> None:
            router.host_event(kind, event, obj, old)

        host = HostCache(client, host_event)
        sinks = Sinks(client)
        context = Context(
            World(fleet_id, host), self.channels, Applier(lambda: lead.holds()), Recorder(client),
            worker_lost_timeout=self.config.worker_lost_timeout, surge_timeout=self.config.surge_timeout,
            release=self._release, sinks=sinks.resources,
            unread=lambda: not (aggregations.informer.synced.is_set() and sinks.informer.synced.is_set()),
        )  # fmt: skip
        router = Router(context)
        owners = HostOwners(client, self.tasks, router.owner_changed)
        members = Members(context, router, self.config.sweep_seconds, self._task_failed)
        self._members, self._context = members, context
        aggregations = Aggregations(client, members.follow)
        members.follow(aggregations.resources())
        for kind, informer in host.informers.items():
            self.tasks.spawn(informer.run(), f"host {kind}", root=True)
        self.tasks.spawn(aggregations.informer.run(), "host apiaggregations", root=True)
        self.tasks.spawn(sinks.informer.run(), "host sinks", root=True)
        self.tasks.spawn(context.events.run(), "events", root=True)
        await self._read(host)
        self.fleet.subscribe(members)
        hub = self._hub = self.work.begin(client, self.fleet, lambda: self.grpc.bound)
        self.tasks.spawn(self.fleet.run(), "fleet", root=True)
        # Without the fleet nothing would seem to have copies, and everything could go.
        await self.fleet.synced.wait()
        self.work.fleet_known()
        dispatcher = Dispatcher(context, owners, router.due, self.config.workers)
        self.channels.controllers = dispatcher.by_source
        lead = Lead(hub, self.tasks, lambda: self._worker(dispatcher, fleet_id))
        # Our own worker connects like any other.
        await self.grpc.listening.wait()
        self.tasks.spawn(lead.run(), "lead", root=True)

    def _worker(self, dispatcher: Dispatcher, fleet_id: str) -> Worker:
        """The built-in controllers' worker, for one time that this replica has the host."""
        log.info("working for fleet %s", fleet_id)
        worker = self.channels.worker = Worker(
            *dispatcher.controllers, fleet=Fleet.without_front(self.work.token), name=self.replica, drain=DRAIN_SECONDS,
            reconciler=self.grpc.also[0] if self.grpc.also else self.grpc.bound, tls_ca="", tls_cert="",
        )  # fmt: skip
        return worker

    def _connected(self) -> str | None:
        """What /readyz says of the built-in controllers: they work here, or on another replica."""
        if self._hub is None or not self._hub.leading.is_set():
            return None
        worker = self.channels.worker
        return None if worker is not None and worker.connected else "the built-in controllers are not connected yet"

    async def _release(self, name: str, since: datetime, left: list[str], count: int) -> None:
        """Tell discovery that a member may go; that it is back, or gone, by now is said by the fleet's stream."""
        request = discovery_pb2.ReleaseClusterRequest(name=name, left_behind=left, left_behind_count=count)
        request.leaving_since.FromDatetime(since)
        self._discovery = self._discovery or channel(self.config.discovery_address, self.config.tls)
        stub = discovery_pb2_grpc.DiscoveryServiceStub(self._discovery)
        try:
            await stub.ReleaseCluster(request, timeout=RELEASE_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            if error.code() not in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION):
                raise from_rpc(error, f"releasing cluster {name}") from error

    async def _fleet_id(self, client: KubeClient) -> str:
        """Uid of the host's kube-system; waits for the host."""
        backoff = Backoff(initial=0.2, maximum=5.0)
        while True:
            try:
                system = await client.get(NAMESPACES, None, "kube-system")
            except StatusError as error:
                self._waiting = error.message
                await backoff.wait()
                continue
            return str(system["metadata"]["uid"])

    async def _read(self, host: HostCache) -> None:
        """Wait for the first complete read: on half of the host everything would look like garbage."""
        while reason := host.missing():
            self._waiting = reason
            await asyncio.sleep(0.05)
        self._waiting = ""

    async def stop_intake(self) -> None:
        """Hand out nothing new."""
        self.work.stop_intake()

    async def drain(self) -> None:
        """Let running reconciles end."""
        own = [self.channels.worker.stop()] if self.channels.worker is not None else []
        await asyncio.gather(*own, self.work.drain())

    async def close(self) -> None:
        """Leave members and host."""
        self.metrics.unregister()
        await self.work.close()
        if self._sockets:
            shutil.rmtree(self._sockets, ignore_errors=True)
        if self._members is not None:
            await self._members.close()
        if self._discovery is not None:
            await self._discovery.close()
        if self._client is not None:
            await self._client.close()
