"""`PeerService`: seats for workers that are connected to other replicas."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import grpc

from reclock.reconciler.v1 import peer_pb2 as peer
from reclock.reconciler.v1 import peer_pb2_grpc as rpc
from reclock.reconciler.v1 import reconciler_pb2 as pb
from services.common.grpc import abort, abort_bad_request
from services.common.kube.reviews import User
from services.reconciler.work.controller import Controller
from services.reconciler.work.desk import take
from services.reconciler.work.hub import Hub
from services.reconciler.work.mapping import Target
from services.reconciler.work.register import decode
from services.reconciler.work.seat import Seat
from services.reconciler.work.servicer import BROKEN_SHOWS_WITHIN, Parts
from services.reconciler.work.spec import BadRegister

log = logging.getLogger(__name__)


class RelayPort:
    """Port of a relayed seat: everything goes into the stream."""

    def __init__(self) -> None:
        self.out: asyncio.Queue[peer.RelayResponse | None] = asyncio.Queue()
        self.failed = False

    def hungry(self, seat: Seat) -> None:
        """See Port."""
        self.out.put_nowait(peer.RelayResponse(hungry=peer.RelayHungry()))

    def unused(self, seat: Seat, credits: int) -> None:
        """See Port."""
        self.out.put_nowait(peer.RelayResponse(unused=peer.RelayUnused(credits=credits)))

    def deliver(self, seat: Seat, message: pb.WorkResponse) -> None:
        """See Port."""
        self.out.put_nowait(peer.RelayResponse(work=message))

    def replaced(self, seat: Seat) -> None:
        """See Port."""
        self.out.put_nowait(peer.RelayResponse(replaced=peer.RelayReplaced()))
        self.out.put_nowait(None)


class PeerServicer(rpc.PeerServiceServicer):
    """Only for replicas of this fleet."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def _hub(self, context: grpc.aio.ServicerContext) -> Hub:
        if missing := self._parts.missing():
            await abort(context, grpc.StatusCode.UNAVAILABLE, missing, {"reason": "NotReady"})
        assert self._parts.hub is not None and self._parts.peers is not None
        if not self._parts.peers.is_peer(context):
            await abort(context, grpc.StatusCode.UNAUTHENTICATED, "for replicas of this fleet only", {"reason": "NoPeer"})
        return self._parts.hub

    async def Relay(
        self, request_iterator: AsyncIterator[peer.RelayRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[peer.RelayResponse]:
        """See the contract."""
        hub = await self._hub(context)
        requests = aiter(request_iterator)
        first = await anext(requests, None)
        if first is None or first.WhichOneof("message") != "open":
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, "the first message must be RelayOpen")
        port = RelayPort()
        try:
            spec, worker = decode(first.open.register)
            seat = Seat(port, first.open.worker, User(first.open.user), worker.max_in_flight, worker.version, first.open.replica)
            seat.beat = first.open.heartbeat
            controller = hub.register(spec, seat, first.open.registered_us)
        except BadRegister as error:
            await abort_bad_request(context, grpc.StatusCode.FAILED_PRECONDITION, error.violations)
        orderly = False
        reader = asyncio.create_task(_read(controller, seat, port, requests), name=f"relay/serve {seat.worker}")
        try:
            while (message := await port.out.get()) is not None:
                yield message
            orderly = not context.cancelled() and not port.failed
        finally:
            reader.cancel()
            hub.leave(controller, seat, orderly=orderly)

    async def Add(self, request: peer.AddRequest, context: grpc.aio.ServicerContext) -> peer.AddResponse:
        """See the contract."""
        hub = await self._hub(context)
        refused = []
        for place, key in enumerate(request.keys):
            controller = hub.controllers.get(key.controller)
            if controller is None or key.cluster not in controller.parts:
                refused.append(place)
            else:
                controller.add(Target(key.cluster, key.namespace, key.name, key.source), key.priority)
        return peer.AddResponse(refused=refused)


async def _read(controller: Controller, seat: Seat, port: RelayPort, requests: AsyncIterator[peer.RelayRequest]) -> None:
    try:
        async for message in requests:
            kind = message.WhichOneof("message")
            if kind == "grant":
                controller.handout.grant(seat, message.grant.credits, message.grant.busy)
            elif kind == "work":
                take(controller, seat, message.work)
        await asyncio.sleep(BROKEN_SHOWS_WITHIN)
    except Exception:
        # The other replica connects anew, with what is known there.
        log.exception("controller %s: reading from replica %s failed", controller.name, seat.replica)
        port.failed = True
    port.out.put_nowait(None)
