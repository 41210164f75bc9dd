"""`reclock.aggregator.v1.ClockService`: the clock's view for other services, tools and people."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc

from _fastpath.marker import Marker
from reclock.aggregator.v1 import aggregator_pb2 as pb
from reclock.aggregator.v1 import aggregator_pb2_grpc
from services.aggregator.clock.clock import Clock, ResourceClock
from services.common.errors import StatusError
from services.common.grpc import abort, abort_status


class ClockService(aggregator_pb2_grpc.ClockServiceServicer):
    """Serves the clock once it is there; UNAVAILABLE before."""

    def __init__(self) -> None:
        self.clock: Clock | None = None

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
        resources = [_stats(one) for _, one in sorted(clock.resources.items())]
        return pb.StatsResponse(resources=resources)

    async def VerifyMarkers(
        self, request: pb.VerifyMarkersRequest, context: grpc.aio.ServicerContext
    ) -> pb.VerifyMarkersResponse:
        """Not built yet."""
        await abort(
            context,
            grpc.StatusCode.UNIMPLEMENTED,
            "VerifyMarkers will compare all markers with the members; it is not built yet",
        )

    async def RebuildMarkers(
        self, request: pb.RebuildMarkersRequest, context: grpc.aio.ServicerContext
    ) -> pb.RebuildMarkersResponse:
        """Not built yet."""
        await abort(
            context,
            grpc.StatusCode.UNIMPLEMENTED,
            "RebuildMarkers will make all markers anew after the loss of the etcd; it is not built yet",
        )

    async def _clock(self, context: grpc.aio.ServicerContext) -> Clock:
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


def _stats(clock: ResourceClock) -> pb.ResourceStats:
    aggregated = clock.aggregated
    counts = clock.counts()
    return pb.ResourceStats(
        resource=pb.ResourceRef(group=aggregated.group, resource=aggregated.resource),
        head=clock.head,
        floor=clock.floor,
        markers=counts.markers,
        clashes=counts.clashes,
        log_entries=counts.log_entries,
        feeds=[
            pb.FeedStats(
                cluster=state.cluster,
                state=state.state,
                position=state.position.read if state.position else 0,
                gap=state.cluster in clock.state.gaps,
                message=state.message,
            )
            for _, state in sorted(clock.members.items())
        ],
    )
