"""The gRPC API of discovery."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from datetime import UTC
from typing import Any

import grpc

from reclock.discovery.v1 import discovery_pb2 as pb
from reclock.discovery.v1 import discovery_pb2_grpc
from services.common.access import may_have_access, names_of
from services.common.callers import said
from services.common.errors import StatusError
from services.common.grpc import abort, abort_status
from services.common.kube.kubeconfig import KubeconfigError
from services.common.yaml_json import yaml_to_json
from services.discovery import metrics
from services.discovery.config import ACCESS_FOR
from services.discovery.hub import Hub
from services.discovery.names import bad_label, bad_name
from services.discovery.providers.base import MAX_EMBEDDED, embedded
from services.discovery.record import REACHABLE, Record, to_proto
from services.discovery.registrations import ID, Registrations
from services.discovery.registry import Registry

NAME = "reclock.discovery.v1.DiscoveryService"
HEARTBEAT = 15.0
"""Seconds after which an idle stream repeats its SYNCED mark."""
Kind = pb.WatchClustersResponse.EventType


class DiscoveryServicer(discovery_pb2_grpc.DiscoveryServiceServicer):
    """Answers from the registry and its hub."""

    def __init__(
        self, registry: Registry, registrations: Registrations, access_for: Collection[str] = ACCESS_FOR
    ) -> None:
        self._access_for = access_for
        self._registry = registry
        self._hub: Hub = registry.hub
        self._registrations = registrations

    async def WatchClusters(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Snapshot or what changed since, the mark, then changes."""
        if request.with_access and not may_have_access(context, self._access_for):
            text = (
                f"credentials of clusters are for {', '.join(self._access_for)}, by a name of the client certificate"
                f" ({said(names_of(context))}): give it such a name, or add one of its names to discovery's accessFor"
            )
            await abort(context, grpc.StatusCode.PERMISSION_DENIED, text)
        with metrics.WATCHERS.track_inprogress():
            seen = request.resume_version
            resumed = bool(seen) and self._hub.complete.is_set() and self._hub.resumable(seen)
            seen = seen if resumed else 0
            sent: set[str] = set()
            for event in self._changes(seen, sent, request, everything=resumed):
                yield event
                seen = event.version
            # A cluster that is missing before all providers have read their sources may still come.
            while not self._hub.complete.is_set():
                for event in self._changes(seen, sent, request, everything=False):
                    yield event
                    seen = event.version
                await self._either(seen)
            for event in self._changes(seen, sent, request, everything=resumed):
                yield event
            seen = self._hub.version
            yield pb.WatchClustersResponse(type=Kind.EVENT_TYPE_SYNCED, version=seen, resumed=resumed)
            async for event in self._follow(seen, sent, request, resumed):
                yield event

    async def _either(self, seen: int) -> None:
        """Wait for a change or for completeness."""
        waits = [
            asyncio.ensure_future(self._hub.changed(seen)), asyncio.ensure_future(self._hub.complete.wait())
        ]  # fmt: skip
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _changes(self, seen: int, sent: set[str], request: Any, *, everything: bool) -> list[Any]:
        """Events after version `seen`. `sent` names the clusters the caller was told of on this stream;
        with `everything` it may know others, from before it resumed."""
        events = []
        changes = self._hub.since(seen, with_access=request.with_access, with_leaving=request.with_leaving)
        for version, name, cluster in changes:
            if cluster is None:
                if name not in sent and not everything:
                    continue
                sent.discard(name)
                kind, cluster = Kind.EVENT_TYPE_DISENGAGED, pb.Cluster(name=name)
            elif name in sent:
                kind = Kind.EVENT_TYPE_UPDATED
            else:
                kind = Kind.EVENT_TYPE_ENGAGED
                sent.add(name)
            if request.with_leaving and cluster.server:
                self._registry.hold(name)
            events.append(pb.WatchClustersResponse(type=kind, cluster=cluster, version=version))
        return events

    async def _follow(
        self, seen: int, sent: set[str], request: Any, everything: bool
    ) -> AsyncIterator[Any]:
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT):
                    await self._hub.changed(seen)
            except TimeoutError:
                yield pb.WatchClustersResponse(
                    type=Kind.EVENT_TYPE_SYNCED, version=self._hub.version, resumed=True
                )
            newest = self._hub.version
            for event in self._changes(seen, sent, request, everything=everything):
                yield event
            seen = newest

    async def ListClusters(self, request: Any, context: Any) -> Any:
        """All clusters by name, and the problems of sources."""
        answer = pb.ListClustersResponse(
            clusters=[self._show(record) for _, record in sorted(self._registry.records.items())]
        )
        for provider, source, message, since in self._registry.sources.problems():
            answer.problems.add(provider=provider, source=source, message=message).since.FromDatetime(since)
        return answer

    def _show(self, record: Record) -> Any:
        cluster = self._hub.get(record.name)
        return cluster if cluster is not None else to_proto(record)

    async def _record(self, name: str, context: Any) -> Record:
        record = self._registry.records.get(name)
        if record is None:
            await abort(context, grpc.StatusCode.NOT_FOUND, f"no provider has found a cluster {name!r}")
        return record

    async def GetCluster(self, request: Any, context: Any) -> Any:
        """One cluster."""
        return pb.GetClusterResponse(cluster=self._show(await self._record(request.name, context)))

    async def RegisterCluster(self, request: Any, context: Any) -> Any:
        """Add or replace a registered cluster; answers when it is kept, does not wait for the cluster."""
        name = request.name
        if problem := bad_name(name) or bad_label(request.labels):
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, problem)
        holder, source = self._registry.holder(name)
        if holder not in ("", ID):
            text = f"cluster {name!r} belongs to {holder} ({source})"
            await abort(context, grpc.StatusCode.ALREADY_EXISTS, text)
        try:
            if len(request.kubeconfig) > MAX_EMBEDDED:
                raise KubeconfigError("is larger than 1 MiB")
            kubeconfig = embedded(await yaml_to_json(request.kubeconfig))
            await self._registrations.put(name, kubeconfig, dict(request.labels))
        except KubeconfigError as error:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, f"kubeconfig: {error}")
        except StatusError as error:
            if error.code in (400, 413):
                # Its own words may quote what is in it.
                await abort(context, grpc.StatusCode.INVALID_ARGUMENT, "kubeconfig: is no YAML, or too much to read")
            await abort_status(context, error)
        record = await self._appeared(name)
        return pb.RegisterClusterResponse(
            cluster=self._show(record) if record is not None else pb.Cluster(name=name, provider=ID)
        )

    async def _appeared(self, name: str) -> Record | None:
        """Give the provider's task a moment to publish what was registered."""
        for _ in range(20):
            if (record := self._registry.records.get(name)) is not None and record.found is not None:
                return record
            await asyncio.sleep(0.02)
        return None

    async def DeregisterCluster(self, request: Any, context: Any) -> Any:
        """Remove a registered cluster."""
        try:
            if await self._registrations.remove(request.name):
                return pb.DeregisterClusterResponse()
        except StatusError as error:
            await abort_status(context, error)
        await abort(context, grpc.StatusCode.NOT_FOUND, f"no cluster {request.name!r} was registered")
        return None

    async def ForgetCluster(self, request: Any, context: Any) -> Any:
        """State that a lost cluster will not come back."""
        record = await self._record(request.name, context)
        if record.is_true(REACHABLE) and record.leaving_since is None:
            text = f"cluster {request.name!r} is reachable: cordon or drain it, or remove it from its source"
            await abort(context, grpc.StatusCode.FAILED_PRECONDITION, text)
        self._registry.forget(record)
        return pb.ForgetClusterResponse()

    async def ReleaseCluster(self, request: Any, context: Any) -> Any:
        """Drop a leaving cluster's credentials."""
        record = await self._record(request.name, context)
        meant = request.leaving_since.ToDatetime(tzinfo=UTC)
        if record.leaving_since is None or record.leaving_since != meant:
            text = f"cluster {request.name!r} is not leaving since {meant:%FT%TZ}: it has been back meanwhile"
            await abort(context, grpc.StatusCode.FAILED_PRECONDITION, text)
        left = ", ".join(request.left_behind)
        if request.left_behind_count > len(request.left_behind):
            left = f"{left} and {request.left_behind_count - len(request.left_behind)} more"
        self._registry.release(record, left)
        return pb.ReleaseClusterResponse()
