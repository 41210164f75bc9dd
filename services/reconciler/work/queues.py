"""`QueueService`: the queues of all controllers, shown and steered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc

from _fastpath.fair_queue import ClusterStats
from reclock.reconciler.v1 import reconciler_pb2 as pb
from reclock.reconciler.v1 import reconciler_pb2_grpc as rpc
from services.common.errors import StatusError
from services.common.grpc import abort, abort_bad_request, abort_status
from services.reconciler.spreads import Spread, percentile, spreads
from services.reconciler.work.controller import PROBLEMS_MAX, Controller
from services.reconciler.work.handout import duration
from services.reconciler.work.mapping import HOST
from services.reconciler.work.servicer import Parts
from services.reconciler.work.spec import check_cap, check_weight, seconds

INTERVAL = (0.1, 60.0)


class QueueServicer(rpc.QueueServiceServicer):
    """On one replica, for all."""

    def __init__(self, parts: Parts, replica: str) -> None:
        self._parts = parts
        self._replica = replica

    async def ListQueues(self, request: pb.ListQueuesRequest, context: grpc.aio.ServicerContext) -> pb.ListQueuesResponse:
        """See the contract."""
        await self._ready(context)
        return await self._all(request)

    async def WatchQueues(
        self, request: pb.WatchQueuesRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.WatchQueuesResponse]:
        """See the contract."""
        await self._ready(context)
        interval = seconds(request.interval) if request.HasField("interval") else 1.0
        if not INTERVAL[0] <= interval <= INTERVAL[1]:
            text = f"{interval:g} s: allowed is {INTERVAL[0]:g} to {INTERVAL[1]:g} s"
            await abort_bad_request(context, grpc.StatusCode.INVALID_ARGUMENT, [("interval", text)])
        while True:
            now = await self._all(pb.ListQueuesRequest(controller=request.controller))
            yield pb.WatchQueuesResponse(
                queues=now.queues, controllers=now.controllers, missing_replicas=now.missing_replicas
            )
            await asyncio.sleep(interval)

    async def UpdateQueue(
        self, request: pb.UpdateQueueRequest, context: grpc.aio.ServicerContext
    ) -> pb.UpdateQueueResponse:
        """See the contract; all or nothing."""
        wrong = []
        if request.HasField("weight") and (text := check_weight(request.weight)):
            wrong.append(("weight", text))
        if request.HasField("cap") and (text := check_cap(request.cap)):
            wrong.append(("cap", text))
        if wrong:
            await abort_bad_request(context, grpc.StatusCode.INVALID_ARGUMENT, wrong)
        await self._ready(context)
        changed = self._update(request)
        if not request.this_replica and self._parts.peers is not None:
            try:
                changed += await self._parts.peers.update_queue(request)
            except StatusError as error:
                await abort_status(context, error)
        if not changed:
            names = sorted(self._parts.hub.controllers if self._parts.hub else ())
            text = f"cluster {request.cluster!r} is not engaged" if request.controller in ("", *names) else (
                f"there is no controller {request.controller!r}; there are: {', '.join(names)}"
            )  # fmt: skip
            await abort(context, grpc.StatusCode.NOT_FOUND, text, {"reason": "NotFound"})
        return pb.UpdateQueueResponse()

    async def _ready(self, context: grpc.aio.ServicerContext) -> None:
        if self._parts.peers is None:
            await abort(context, grpc.StatusCode.UNAVAILABLE, self._parts.missing(), {"reason": "NotReady"})

    async def _all(self, request: pb.ListQueuesRequest) -> pb.ListQueuesResponse:
        answer = self._here(request.controller)
        if not request.this_replica and self._parts.peers is not None:
            for other in await self._parts.peers.list_queues(request):
                if isinstance(other, str):
                    answer.missing_replicas.append(other)
                else:
                    answer.queues.extend(other.queues)
                    _merge(answer, other)
        rows = sorted(answer.queues, key=lambda row: (row.controller, row.cluster))
        return pb.ListQueuesResponse(
            queues=rows, controllers=sorted(answer.controllers, key=lambda each: each.name),
            missing_replicas=answer.missing_replicas,
        )  # fmt: skip

    def _here(self, wanted: str) -> pb.ListQueuesResponse:
        answer = pb.ListQueuesResponse()
        for controller in self._controllers(wanted):
            synced = {cluster: part.synced for cluster, part in controller.parts.items()}
            how_long = {each.cluster: each for each in spreads(controller.name, controller.queue)}
            answer.queues.extend(
                _row(controller.name, row, self._replica, synced[row.cluster], how_long.get(row.cluster))
                for row in controller.stats()
            )
            answer.controllers.append(_controller(controller))
        return answer

    def _controllers(self, wanted: str) -> list[Controller]:
        hub = self._parts.hub
        return [each for each in hub.controllers.values() if wanted in ("", each.name)] if hub is not None else []

    def _update(self, request: pb.UpdateQueueRequest) -> int:
        """How many queues of this replica were changed."""
        weight = request.weight if request.HasField("weight") else None
        cap = request.cap if request.HasField("cap") else None
        paused = request.paused if request.HasField("paused") else None
        changed = 0
        hub = self._parts.hub
        known = hub is not None and (request.cluster == HOST or request.cluster in hub.fleet.members)
        for controller in self._controllers(request.controller) if known else ():
            # Noted also where another replica has the cluster: it may come here.
            controller.steer(request.cluster, weight, cap, paused)
            changed += request.cluster in controller.parts
        return changed


def _row(controller: str, row: ClusterStats, replica: str, synced: bool, spread: Spread | None) -> pb.Queue:
    made = pb.Queue(
        controller=controller, cluster=row.cluster, depth=row.depth, delayed=row.delayed, processing=row.processing,
        weight=row.weight, cap=row.cap, paused=row.paused, share=row.share, retries=row.retries, adds=row.adds,
        served=row.served, wait=duration(row.queue_seconds), work=duration(row.work_seconds),
        unfinished=duration(row.unfinished_seconds), longest=duration(row.longest_running), replica=replica, synced=synced,
    )  # fmt: skip
    for counts, half, most in (
        ((spread.waits, made.wait_p50, made.wait_p99), (spread.works, made.work_p50, made.work_p99)) if spread is not None else ()
    ):
        for share, into in ((0.5, half), (0.99, most)):
            if (found := percentile(counts, share)) is not None:
                into.CopyFrom(duration(found))
    return made


def _controller(controller: Controller) -> pb.Controller:
    return pb.Controller(
        name=controller.name,
        workers=[
            pb.Worker(
                name=seat.worker, in_flight=len(seat.held), max_in_flight=seat.max_in_flight, replica=seat.replica,
                draining=seat.draining,
            )
            for seat in controller.seats
        ],
        problems=controller.problems()[:PROBLEMS_MAX],
    )  # fmt: skip


def _merge(answer: pb.ListQueuesResponse, other: pb.ListQueuesResponse) -> None:
    """A controller is on every replica; each knows of its workers what it gave them itself."""
    known = {each.name: each for each in answer.controllers}
    for each in other.controllers:
        mine = known.get(each.name)
        if mine is None:
            answer.controllers.append(each)
            continue
        workers = {worker.name: worker for worker in mine.workers}
        for worker in each.workers:
            if worker.name in workers:
                workers[worker.name].in_flight += worker.in_flight
            else:
                mine.workers.append(worker)
        mine.problems.extend(problem for problem in each.problems if problem not in mine.problems)
