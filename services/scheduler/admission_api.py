"""`AdmissionService`: what a worker answers, for one member or for several."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import grpc

from reclock.scheduler.v1 import scheduler_pb2 as pb
from reclock.scheduler.v1 import scheduler_pb2_grpc
from services.common.errors import StatusError
from services.common.grpc import abort, abort_status
from services.common.kube import quantity
from services.scheduler import verdict, wire
from services.scheduler.admission import LocalAdmission
from services.scheduler.fence import Fence
from services.scheduler.member import Ask

REPEAT = 10.0
"""A watch says something at least this often, so that its end is noticed."""
QUIET = 0.05
"""Changes within this time go out as one message."""
LONGEST_TTL = 3600.0


class Signal:
    """Tells any number of watchers that a member's state changed."""

    def __init__(self) -> None:
        self.freed = 0
        self._waiting: set[asyncio.Event] = set()

    def changed(self, freed: bool) -> None:
        """Wake all watchers."""
        self.freed += int(freed)
        for event in self._waiting:
            event.set()

    def subscribe(self) -> asyncio.Event:
        """Return an event that is set at every change; give it back by `unsubscribe`."""
        event = asyncio.Event()
        self._waiting.add(event)
        return event

    def unsubscribe(self, event: asyncio.Event) -> None:
        """Set it no more."""
        self._waiting.discard(event)


class AdmissionServicer(scheduler_pb2_grpc.AdmissionServiceServicer):
    """Serves the admissions of `members`, which may change; `signals` tell of changes."""

    def __init__(
        self, members: Mapping[str, LocalAdmission], signals: Mapping[str, Signal], fence: Fence | None = None
    ) -> None:
        self._members, self._signals, self._fence = members, signals, fence

    async def _member(self, cluster: str, context: grpc.aio.ServicerContext) -> LocalAdmission:
        found = self._members.get(cluster)
        if found is None:
            served = ", ".join(sorted(self._members)) or "none"
            text = f"this worker does not admit for {cluster!r}; it does for: {served}"
            await abort(context, grpc.StatusCode.NOT_FOUND, text)
        return found

    async def Reserve(self, request: pb.ReserveRequest, context: grpc.aio.ServicerContext) -> pb.ReserveResponse:
        """See the proto."""
        member = await self._member(request.cluster, context)
        ask = await self._ask(request, context)
        ttl = request.ttl.ToNanoseconds() / 1e9
        try:
            answer = await member.reserve(ask, min(ttl, LONGEST_TTL) if ttl > 0 else None)
        except StatusError as error:
            await abort_status(context, error)
        return pb.ReserveResponse(
            admitted=answer.admitted, verdict=verdict.to_proto(answer.verdict), count=answer.count
        )

    async def _ask(self, request: pb.ReserveRequest, context: grpc.aio.ServicerContext) -> Ask:
        try:
            return wire.ask_from_proto(request)
        except ValueError as error:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))

    async def Confirm(self, request: pb.ConfirmRequest, context: grpc.aio.ServicerContext) -> pb.ConfirmResponse:
        """See the proto."""
        member = await self._member(request.cluster, context)
        if not await member.confirm(request.id, request.attempt):
            text = f"no reservation {request.id} of attempt {request.attempt} is held"
            await abort(context, grpc.StatusCode.NOT_FOUND, text)
        return pb.ConfirmResponse()

    async def Release(self, request: pb.ReleaseRequest, context: grpc.aio.ServicerContext) -> pb.ReleaseResponse:
        """See the proto."""
        member = await self._member(request.cluster, context)
        await member.release(request.id, request.attempt)
        return pb.ReleaseResponse()

    async def Evaluate(self, request: pb.EvaluateRequest, context: grpc.aio.ServicerContext) -> pb.EvaluateResponse:
        """See the proto."""
        member = await self._member(request.cluster, context)
        try:
            pod_sets = wire.pod_sets_from_proto(request.pod_sets)
        except ValueError as error:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        owner = wire.owner_from_proto(request.owner) if request.owner.name else None
        found = await member.evaluate(owner, pod_sets, request.fleet_id)
        return pb.EvaluateResponse(verdict=verdict.to_proto(found))

    async def Resync(self, request: pb.ResyncRequest, context: grpc.aio.ServicerContext) -> pb.ResyncResponse:
        """See the proto."""
        member = await self._member(request.cluster, context)
        await member.resync([await self._ask(item, context) for item in request.placed])
        return pb.ResyncResponse()

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: grpc.aio.ServicerContext) -> pb.HeartbeatResponse:
        """See the proto."""
        await self._member(request.cluster, context)
        if self._fence is None:
            return pb.HeartbeatResponse(problem="this worker does not fence")
        return await self._fence.heartbeat(request)

    async def Watch(
        self, request: pb.AdmissionServiceWatchRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.AdmissionServiceWatchResponse]:
        """See the proto."""
        member = await self._member(request.cluster, context)
        signal = self._signals[request.cluster]
        event = signal.subscribe()
        try:
            while request.cluster in self._members:
                event.clear()
                yield describe(member, signal)
                try:
                    async with asyncio.timeout(REPEAT):
                        await event.wait()
                except TimeoutError:
                    continue
                await asyncio.sleep(QUIET)
        finally:
            signal.unsubscribe(event)


def describe(member: LocalAdmission, signal: Signal) -> pb.AdmissionServiceWatchResponse:
    """The member's state as the stream tells it."""
    state, problem = member.state, member.problem()
    free = {name: max(amount, 0) for name, amount in state.capacity.free.items()}
    message = pb.AdmissionServiceWatchResponse(
        reservations={reservation.id: reservation.count for reservation in state.ledger},
        free=quantity.render_all(free),
        allocatable=quantity.render_all(state.capacity.allocatable),
        synced=not problem,
        problem=problem,
        freed=signal.freed,
    )
    for id_, stuck in state.stuck().items():
        entry = message.stuck[id_]
        entry.count = stuck.count
        entry.since.FromDatetime(stuck.since)
    return message
