"""gRPC of the reconciler: the queue, shown and steered; the worker protocol is to come."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc

from _fastpath.fair_queue import FairQueue
from reclock.reconciler.v1 import reconciler_pb2, reconciler_pb2_grpc
from services.common.grpc import abort

CONTROLLER = "built-in"
"""The built-in controllers share one queue under this name."""
CAP_MAX = 1_000_000


class QueueServicer(reconciler_pb2_grpc.QueueServiceServicer):
    """The fair queue of the built-in controllers."""

    def __init__(self, queue: FairQueue) -> None:
        self._queue = queue

    async def ListQueues(
        self, request: reconciler_pb2.ListQueuesRequest, context: grpc.aio.ServicerContext
    ) -> reconciler_pb2.ListQueuesResponse:
        """One row per engaged cluster."""
        rows = sorted(self._queue.stats(), key=lambda row: row.cluster)
        return reconciler_pb2.ListQueuesResponse(
            queues=[
                reconciler_pb2.Queue(
                    controller=CONTROLLER, cluster=row.cluster, depth=row.depth, delayed=row.delayed,
                    processing=row.processing, weight=row.weight, cap=row.cap, paused=row.paused,
                    share=row.share, retries=row.retries,
                )
                for row in rows
            ]
        )  # fmt: skip

    async def UpdateQueue(
        self, request: reconciler_pb2.UpdateQueueRequest, context: grpc.aio.ServicerContext
    ) -> reconciler_pb2.UpdateQueueResponse:
        """Change weight, cap and pause of one cluster; all or nothing."""
        if request.controller not in ("", CONTROLLER):
            await abort(context, grpc.StatusCode.NOT_FOUND, f"there is no controller {request.controller!r}; there is {CONTROLLER!r}")
        if request.cluster not in {row.cluster for row in self._queue.stats()}:
            await abort(context, grpc.StatusCode.NOT_FOUND, f"cluster {request.cluster!r} is not engaged")
        if request.HasField("cap") and not 1 <= request.cap <= CAP_MAX:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, f"cap {request.cap}: allowed is 1 to {CAP_MAX}")
        if request.HasField("weight"):
            try:
                self._queue.set_weight(request.cluster, request.weight)
            except ValueError as error:
                await abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if request.HasField("cap"):
            self._queue.set_cap(request.cluster, request.cap)
        if request.HasField("paused"):
            (self._queue.pause if request.paused else self._queue.resume)(request.cluster)
        return reconciler_pb2.UpdateQueueResponse()

    async def WatchQueues(
        self, request: reconciler_pb2.WatchQueuesRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[reconciler_pb2.WatchQueuesResponse]:
        """Answer UNIMPLEMENTED."""
        await abort(context, grpc.StatusCode.UNIMPLEMENTED, "WatchQueues is not built yet: ask ListQueues again and again")
        yield reconciler_pb2.WatchQueuesResponse()


class ReconcilerServicer(reconciler_pb2_grpc.ReconcilerServiceServicer):
    """The worker protocol: agreed, not built yet."""

    async def Work(
        self, request_iterator: AsyncIterator[reconciler_pb2.WorkRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[reconciler_pb2.WorkResponse]:
        """Answer UNIMPLEMENTED with what it will do."""
        await abort(
            context, grpc.StatusCode.UNIMPLEMENTED,
            "Work is not built yet: it will register a worker's controller, lease it one request per changed "
            "object of every cluster, fairly over clusters, and take Done for each",
        )  # fmt: skip
        yield reconciler_pb2.WorkResponse()

    async def QueryIndex(
        self, request: reconciler_pb2.QueryIndexRequest, context: grpc.aio.ServicerContext
    ) -> reconciler_pb2.QueryIndexResponse:
        """Answer UNIMPLEMENTED."""
        await abort(context, grpc.StatusCode.UNIMPLEMENTED, "QueryIndex is not built yet")
