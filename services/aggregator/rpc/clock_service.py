"""`reclock.aggregator.v1.ClockService`: the clock's view for other services, tools and people."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc

from _fastpath.marker import Marker
from reclock.aggregator.v1 import aggregator_pb2 as pb
from reclock.aggregator.v1 import aggregator_pb2_grpc
from services.aggregator.clock.clock import ResourceClock
from services.aggregator.clock.clocks import Clocks
from services.aggregator.clock.rebuild import rebuild
from services.aggregator.clock.store import StartRefused
from services.aggregator.clock.verify import Compared, Finding, verify
from services.aggregator.rpc.stats import stats
from services.common.errors import StatusError
from services.common.etcd import EtcdError
from services.common.grpc import abort, abort_status

MOST_NAMED = 10_000
"""Differences that one answer names: a message has its limit, and so has memory."""


class ClockService(aggregator_pb2_grpc.ClockServiceServicer):
    """Serves the clock once it is there; UNAVAILABLE before."""

    def __init__(self) -> None:
        self.clock: Clocks | None = None

    async def ListMarkers(
        self, request: pb.ListMarkersRequest, context: grpc.aio.ServicerContext
    ) -> pb.ListMarkersResponse:
        """Answer the live markers of one resource at the log's head."""
        clock = await self._resource(request.resource, context)
        head = clock.head
        markers = [_marker(clock, marker) for marker in clock.iter_markers(request.namespace)]
        return pb.ListMarkersResponse(markers=markers, fleet_version=head)

    async def WatchMarkers(
        self, request: pb.WatchMarkersRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.WatchMarkersResponse]:
        """Stream the log after a version."""
        clock = await self._resource(request.resource, context)
        try:
            cursor = clock.cursor(request.fleet_version)
            while True:
                entries = cursor.take()
                for entry in entries:
                    yield pb.WatchMarkersResponse(marker=_marker(clock, entry.marker), type=entry.type)
                if not entries:
                    await cursor.wait()
        except StatusError as error:
            await abort_status(context, error)

    async def Stats(
        self, request: pb.StatsRequest, context: grpc.aio.ServicerContext
    ) -> pb.StatsResponse:
        """Answer the state of every resource and feed."""
        clock = await self._clock(context)
        return stats(clock)

    async def VerifyMarkers(
        self, request: pb.VerifyMarkersRequest, context: grpc.aio.ServicerContext
    ) -> pb.VerifyMarkersResponse:
        """Compare one resource, or all, with the members and with etcd; may take as long as whole lists take."""
        clock = await self._clock(context)
        if request.HasField("resource"):
            chosen = [await self._resource(request.resource, context)]
        else:
            chosen = [one for _, one in sorted(clock.resources.items())]
        answer = pb.VerifyMarkersResponse()
        more = 0
        try:
            for one in chosen:
                async for finding in verify(one):
                    if len(answer.differences) >= MOST_NAMED and not isinstance(finding, Compared):
                        more += 1
                    else:
                        _found(answer, finding)
        except EtcdError as error:
            await abort(context, grpc.StatusCode.UNAVAILABLE, str(error))
        if more:
            answer.differences.append(f"and {more} more")
        return answer

    async def RebuildMarkers(
        self, request: pb.RebuildMarkersRequest, context: grpc.aio.ServicerContext
    ) -> pb.RebuildMarkersResponse:
        """Make all markers anew; answers when every cluster that can be reached is listed."""
        clock = await self._clock(context)
        fleet = clock.each[0].context.fleet_id
        if request.fleet_id != fleet:
            await abort(context, grpc.StatusCode.FAILED_PRECONDITION, f"fleet_id: this is the fleet {fleet}")
        markers = 0
        try:
            async for progress in rebuild(clock):
                markers = progress.markers
        except EtcdError as error:
            await abort(context, grpc.StatusCode.UNAVAILABLE, str(error))
        except StartRefused as error:
            await abort(context, grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return pb.RebuildMarkersResponse(markers=markers)

    async def _clock(self, context: grpc.aio.ServicerContext) -> Clocks:
        if self.clock is None:
            await abort(context, grpc.StatusCode.UNAVAILABLE, "the clock is starting: the host has not answered yet")
        return self.clock

    async def _resource(self, ref: pb.ResourceRef, context: grpc.aio.ServicerContext) -> ResourceClock:
        clock = await self._clock(context)
        found = clock.get(ref.group, ref.resource)
        if found is None:
            known = ", ".join(sorted(clock.resources)) or "none yet"
            text = f"{ref.resource}.{ref.group or 'core'} is not aggregated; these are: {known}"
            await abort(context, grpc.StatusCode.NOT_FOUND, text)
        return found


def _found(answer: pb.VerifyMarkersResponse, finding: Finding) -> None:
    where = f"{finding.resource} of cluster {finding.cluster!r}"
    if isinstance(finding, Compared):
        answer.compared += finding.objects
        if finding.problem:
            answer.differences.append(f"{where}: not compared: {finding.problem}")
        return
    name = f"{finding.namespace}/{finding.name}" if finding.namespace else finding.name
    answer.differences.append(f"{where}: {name}: {finding.what}: {finding.message}")


def _marker(clock: ResourceClock, marker: Marker) -> pb.Marker:
    shown = clock.shown(marker.namespace, marker.name)
    return pb.Marker(
        cluster=marker.cluster,
        incarnation=marker.incarnation,
        namespace=marker.namespace,
        name=marker.name,
        uid=marker.uid,
        member_version=marker.version,
        fleet_version=marker.fleet,
        since=marker.since,
        deleted=marker.deleted,
        shown=shown is not None and shown.cluster == marker.cluster,
        labels=dict(marker.labels),
    )
