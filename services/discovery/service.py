"""Puts discovery together."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Sequence
from pathlib import Path

from reclock.discovery.v1 import discovery_pb2_grpc
from services.common.kube import kubeconfig as kc
from services.common.kube.client import KubeClient
from services.common.service import Service
from services.discovery import succession
from services.discovery.config import DiscoveryConfig, Settings
from services.discovery.hub import Hub
from services.discovery.objects import ClusterObjects
from services.discovery.probe import Prober
from services.discovery.providers.base import Provider, Rereads
from services.discovery.providers.make import make
from services.discovery.record import Record, from_object, to_object
from services.discovery.registrations import ID as REGISTERED
from services.discovery.registrations import Registrations
from services.discovery.registry import Registry
from services.discovery.server import NAME, DiscoveryServicer
from services.discovery.state import State, StateFile, access

log = logging.getLogger(__name__)

HOST_WAIT = 10.0
"""Seconds that the host's `Cluster` objects are waited for before clusters are read from their sources."""

OVERDUE_PERIOD = 5.0


class Keep:
    """A keeper that marks the state file."""

    def __init__(self, file: StateFile) -> None:
        self._file = file

    def engaged(self, record: Record) -> None:
        """Written with the next change."""

    def changed(self, record: Record) -> None:
        """Write soon."""
        self._file.mark()

    def waits(self, record: Record) -> None:
        """Its source is read again after a restart."""

    def disengaged(self, record: Record) -> None:
        """Write soon."""
        self._file.mark()


class DiscoveryService(Service[DiscoveryConfig]):
    """The discovery service."""

    name = "discovery"

    async def start(self) -> None:
        """Restore what was known, then start providers, probes and the API."""
        configured = self.config.parsed_providers()
        self.registry = Registry(Hub(), [*(ident for ident, _ in configured), REGISTERED])
        identified = functools.partial(succession.identified, self.registry)
        self.prober = Prober(self.config.probe, self.registry.probed, identified)
        self.state_file = StateFile(self.config.state_file, self._collect)
        state = await asyncio.to_thread(self.state_file.load)
        self.host = self.grpc.access.host = await self._connect_host()
        self.registrations = Registrations(self.host, state, self.state_file.save)
        self.objects = ClusterObjects(self.host, self.registry) if self.host else None
        for keeper in (self.prober, Keep(self.state_file), self.objects):
            if keeper is not None:
                self.registry.add_keeper(keeper)
        for obj in state.clusters:
            if (record := from_object(obj)) is not None:
                record.kept = state.kept(record.name)
                self.registry.restore(record)
        self.grpc.add(
            discovery_pb2_grpc.add_DiscoveryServiceServicer_to_server,
            DiscoveryServicer(self.registry, self.registrations, self.config.access_for), NAME,
        )  # fmt: skip
        self._add_checks()
        self._spawn(configured)

    def _add_checks(self) -> None:
        complete = self.registry.hub.complete
        self.checks["providers"] = lambda: (
            None if complete.is_set()
            else f"the first reading is not complete of: {', '.join(self.registry.unread())}"
        )  # fmt: skip

    def _spawn(self, configured: Sequence[tuple[str, Settings]]) -> None:
        providers: list[Provider] = [self.registrations]
        for ident, settings in configured:
            providers.append(make(ident, settings, self.host, functools.partial(self.registry.holders, ident)))
        rereading = {provider.id: provider for provider in providers if isinstance(provider, Rereads)}

        def refused(provider: str, source: str) -> None:
            if provider in rereading:
                rereading[provider].refused(source)

        self.registry.refused = refused
        if self.objects is not None:
            self.tasks.spawn(self.objects.informer.run(), "cluster objects")
            self.tasks.spawn(self.objects.run_writer(), "cluster status", root=True)
        if self.state_file.on:
            self.tasks.spawn(self.state_file.run(), "state file", root=True)
        self.tasks.spawn(self._release_overdue(), "overdue", root=True)
        for provider in providers:
            self.tasks.spawn(self._provide(provider), f"provider {provider.id}", root=True)

    async def _provide(self, provider: Provider) -> None:
        """Run a provider, once what operators set on the host is known or the host has been waited for."""
        if self.objects is not None:
            await self._host_read(self.objects)
        await provider.run(functools.partial(self.registry.reading, provider.id))

    async def _host_read(self, objects: ClusterObjects) -> None:
        """Wait for the `Cluster` objects: a cordoned cluster must not look open for a moment."""
        end = asyncio.get_running_loop().time() + HOST_WAIT
        while not objects.informer.synced.is_set() and asyncio.get_running_loop().time() < end:
            if objects.informer.last_error and self.registry.records:
                return
            await asyncio.sleep(0.05)

    async def _release_overdue(self) -> None:
        while True:
            await asyncio.sleep(OVERDUE_PERIOD)
            self.registry.release_overdue(self.config.leave_timeout)

    async def _connect_host(self) -> KubeClient | None:
        try:
            return await KubeClient.connect(
                Path(self.config.host.kubeconfig), name="", user_agent="reclock-discovery"
            )
        except kc.KubeconfigError as error:
            if self.config.host.kubeconfig:
                raise
            log.info("runs without a host (%s): no Cluster objects are kept", error)
            return None

    def _collect(self) -> State:
        records = [record for _, record in sorted(self.registry.records.items())]
        return State(
            clusters=[to_object(record) for record in records],
            access={r.name: access(found) for r in records if r.held and (found := r.found or r.kept) is not None},
            registrations=self.registrations.known, unsaved=self.registrations.unsaved,
        )  # fmt: skip

    async def flush(self) -> None:
        """Write the state file."""
        await self.state_file.flush()

    async def close(self) -> None:
        """Stop probes, close the host's client."""
        if hasattr(self, "prober"):
            await self.prober.close()
        if getattr(self, "host", None) is not None:
            assert self.host is not None
            await self.host.close()
