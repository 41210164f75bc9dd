"""Puts the aggregator together: host, fleet, aggregations, clock, owners, reads, writes, front."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import grpc

from reclock.aggregator.v1 import aggregator_pb2_grpc
from reclock.discovery.v1 import discovery_pb2_grpc
from reclock.scheduler.v1 import scheduler_pb2_grpc
from services.aggregator.aggregations import Aggregations
from services.aggregator.clock.clock import Clock
from services.aggregator.clock.clocks import Clocks
from services.aggregator.clock.member_metrics import MemberMetrics
from services.aggregator.config import AggregatorConfig
from services.aggregator.front.front import Front
from services.aggregator.front.identity import member_headers
from services.aggregator.owners import Owners
from services.aggregator.pages import Operations, Pages
from services.aggregator.reads import Reads
from services.aggregator.reads.versionmarkers import VersionMarkers
from services.aggregator.rpc.clock_service import ClockService
from services.aggregator.secret import token_secret
from services.aggregator.writes import Writes
from services.aggregator.writes.context import WriteContext
from services.common.errors import StatusError
from services.common.etcd import Etcd
from services.common.fleet import FleetWatcher
from services.common.grpc import channel
from services.common.kube.client import KubeClient
from services.common.kube.resource import NAMESPACES
from services.common.service import Service
from services.common.tasks import Backoff

log = logging.getLogger(__name__)

LOG_PATIENCE = 20.0
"""Seconds that the front waits for the log of fleet versions; without etcd the host is served all the same."""
FLEET_PATIENCE = 3.0
"""Seconds that it waits for discovery after that."""


class Aggregator(Service[AggregatorConfig]):
    """The clock and the Kubernetes front.

    What the fleet is called (the uid of the host's kube-system) is asked of the host before anything is served.
    """

    name = "aggregator"

    def __init__(self, config: AggregatorConfig) -> None:
        super().__init__(config)
        self.front: Front | None = None
        self._rpc = ClockService()
        self._missing: Callable[[], str | None] = lambda: "the host has not answered yet"
        self._closers: list[Callable[[], object]] = []
        self._owners: Owners | None = None
        self._reads: Reads | None = None
        self._metrics: MemberMetrics | None = None
        self._etcds: list[Etcd] = []
        self._host: KubeClient | None = None
        self._scheduler: grpc.aio.Channel | None = None
        self._discovery: grpc.aio.Channel | None = None

    async def start(self) -> None:
        """Serve gRPC at once; the front follows when the host has answered."""
        self.grpc.add(
            aggregator_pb2_grpc.add_ClockServiceServicer_to_server,
            self._rpc,
            "reclock.aggregator.v1.ClockService",
        )
        self._host = await KubeClient.connect(Path(self.config.host.kubeconfig), name="host", user_agent="reclock-aggregator")
        self.grpc.access.host = self._host
        self.checks["front"] = lambda: self._missing()
        self.tasks.spawn(self._serve(self._host), "serve")

    async def _serve(self, host: KubeClient) -> None:
        fleet_id = await self._fleet_id(host)
        config = self.config
        fleet = FleetWatcher(config.discovery_address, config.tls, user_agent="reclock-aggregator", state_file=config.state_file)
        self.checks["discovery"] = fleet.check
        aggregations = Aggregations(host, fleet)
        self.checks["aggregations"] = aggregations.ready
        etcd = self._connect(config.etcd.endpoints)
        clock = self._clocks(fleet_id, fleet, host)
        self.checks["clock"] = clock.ready
        self.checks["etcd"] = clock.alarm
        self._rpc.clock = clock
        self._metrics = MemberMetrics(lambda: clock.resources)
        self._metrics.register()
        self._owners = owners = Owners(fleet, aggregations, fleet_id)
        secret = await token_secret(etcd, config.etcd.prefix, self._waits_for_etcd)
        self._reads = reads = Reads(
            clock, owners, fleet_id=fleet_id, token_secret=secret, identity=member_headers
        )
        self._scheduler = channel(config.scheduler_address, config.tls)
        self._discovery = channel(config.discovery_address, config.tls)
        placement = scheduler_pb2_grpc.PlacementServiceStub(self._scheduler)
        discovery = discovery_pb2_grpc.DiscoveryServiceStub(self._discovery)
        context = WriteContext(
            host=host,
            fleet=fleet,
            fleet_id=fleet_id,
            clock=clock,
            aggregations=aggregations,
            owners=owners,
            reads=reads,
            placement=placement,
            identity=member_headers,
        )
        self.front = Front(
            config,
            host=host,
            fleet=fleet,
            aggregations=aggregations,
            clock=clock,
            reads=reads,
            writes=Writes(context),
            version_markers=VersionMarkers(
                clock, fleet_id=fleet_id, token_secret=secret, one_sequence=len(clock.each) == 1
            ),
            pages=Pages(host, placement, discovery, Operations(clock, fleet_id), clock),
            checks=self.checks,
            limits=config.limits,
        )
        aggregations.on_change(clock.apply)
        self.tasks.spawn(clock.run(), "clock", root=True)
        self.tasks.spawn(aggregations.run(), "aggregations", root=True)
        self.tasks.spawn(fleet.run(), "fleet", root=True)
        # Until it is known what is aggregated, a watch of pods would be the host's own; and a client that cannot
        # connect tries again, while one that is told 503 lists anew.
        self._missing = lambda: "it waits for the aggregations and the log of fleet versions"
        await aggregations.resolved.wait()
        await clock.wait_loaded(LOG_PATIENCE)
        # Then everything about members is answered 503: an empty list would look complete.
        with suppress(TimeoutError):
            async with asyncio.timeout(FLEET_PATIENCE):
                await fleet.synced.wait()
        await self.front.start(shared=self.shared)
        self._missing = lambda: None

    def _connect(self, endpoints: Sequence[str]) -> Etcd:
        etcd = Etcd.connect(endpoints, self.config.etcd.tls, self.config.etcd.login)
        self._etcds.append(etcd)
        return etcd

    def _clocks(self, fleet_id: str, fleet: FleetWatcher, host: KubeClient) -> Clocks:
        """One clock for each etcd: what `etcdOverrides` names, and the rest."""
        config = self.config

        def clock(etcd: Etcd) -> Clock:
            return Clock(
                etcd=etcd,
                prefix=config.etcd.prefix,
                fleet_id=fleet_id,
                window_seconds=config.window.seconds,
                window_revisions=config.window.revisions,
                fleet=fleet,
                host=host,
            )

        main = clock(self._etcds[0])
        known: dict[tuple[str, ...], Clock] = {tuple(config.etcd.endpoints): main}
        others: dict[str, Clock] = {}
        for key, endpoints in config.overrides().items():
            place = tuple(endpoints)
            if place not in known:
                known[place] = clock(self._connect(endpoints))
            others[key] = known[place]
        return Clocks(main, others)

    def _waits_for_etcd(self, reason: str) -> None:
        self._missing = lambda: f"etcd: {reason}"

    async def _fleet_id(self, host: KubeClient) -> str:
        backoff = Backoff(initial=0.2, maximum=5.0)
        while True:
            try:
                namespace = await host.get(NAMESPACES, None, "kube-system")
                return str(namespace["metadata"]["uid"])
            except StatusError as error:
                self._missing = partial(str, error.message)
            await backoff.wait()

    async def stop_intake(self) -> None:
        """Close the front: running requests get a moment, watches end so that they resume elsewhere."""
        if self.front is not None:
            await self.front.stop()

    async def close(self) -> None:
        """Close connections, after all tasks have ended."""
        if self._metrics is not None:
            self._metrics.unregister()
        if self._reads is not None:
            await self._reads.close()
        if self._owners is not None:
            await self._owners.close()
        for chan in (self._scheduler, self._discovery):
            if chan is not None:
                await chan.close()
        for etcd in self._etcds:
            await etcd.close()
        if self._host is not None:
            await self._host.close()
