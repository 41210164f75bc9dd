"""The manager's side of a worker in another process: calls with deadlines, and its state as it streams it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC
from typing import Any

import grpc

from reclock.scheduler.v1 import scheduler_pb2 as pb
from reclock.scheduler.v1 import scheduler_pb2_grpc
from services.common.config import TLS
from services.common.errors import from_rpc
from services.common.grpc import channel
from services.common.kube import quantity
from services.common.tasks import Backoff
from services.scheduler import verdict, wire
from services.scheduler.admission import Weigher, totals
from services.scheduler.ledger import OwnerKey
from services.scheduler.member import Answer, Ask, PodSets, Stuck
from services.scheduler.verdict import Verdict

log = logging.getLogger(__name__)

SILENCE = 30.0
"""Seconds without a message after which the stream is opened anew; the worker sends one each 10 s."""


class RemoteAdmission:
    """Admission by the worker beside `cluster`. `run` follows its state until cancelled.

    `on_state(cluster, freed)` is called when its totals changed, `on_connected(cluster)` is awaited after each
    (re)connection until it is True: a worker that has restarted must be told what is placed.
    """

    immediate = False

    def __init__(
        self, cluster: str, address: str, tls: TLS | None, *, ttl: float, deadline: float,
        on_state: Callable[[str, bool], None], on_connected: Callable[[str], Awaitable[bool]],
        fleet_id: Callable[[], str] = lambda: "",
    ) -> None:  # fmt: skip
        self.cluster, self.address = cluster, address
        self._tls, self._ttl, self._deadline = tls, ttl, deadline
        self._on_state, self._on_connected = on_state, on_connected
        self._fleet_id = fleet_id
        self._channel: grpc.aio.Channel | None = None
        self._weigher = Weigher()
        self._version = 0
        self._freed = -1
        self._stuck: dict[str, Stuck] = {}
        self._problem = f"its worker at {address} was not reached yet"

    @property
    def _stub(self) -> Any:
        if self._channel is None:
            self._channel = channel(self.address, self._tls)
        return scheduler_pb2_grpc.AdmissionServiceStub(self._channel)

    async def run(self) -> None:
        """Follow the worker."""
        backoff = Backoff(initial=0.2, maximum=5.0)
        while True:
            try:
                await self._follow(backoff)
                reason = "the stream ended"
            except grpc.aio.AioRpcError as error:
                reason = from_rpc(error, f"worker of {self.cluster}").message
            except TimeoutError:
                reason = "no sign of life"
            problem = f"its worker at {self.address}: {reason}"
            if problem != self._problem:
                log.warning("%s: %s", self.cluster, problem)
            self._problem = problem
            await backoff.wait()

    async def _follow(self, backoff: Backoff) -> None:
        call = self._stub.Watch(pb.AdmissionServiceWatchRequest(cluster=self.cluster))
        told = False
        try:
            while True:
                # Not wait_for: in Python 3.11 it loses a cancellation that comes together with the stream's end.
                async with asyncio.timeout(SILENCE):
                    state = await call.read()
                if state is grpc.aio.EOF:
                    return
                backoff.reset()
                if state.synced and not told:
                    told = await self._on_connected(self.cluster)
                self._take(state)
        finally:
            call.cancel()

    def _take(self, state: pb.AdmissionServiceWatchResponse) -> None:
        self._version += 1
        free, allocatable = quantity.parse_all(state.free), quantity.parse_all(state.allocatable)
        self._weigher.update(self._version, free, allocatable)
        problem = state.problem or ("" if state.synced else "its worker has not read it yet")
        freed = state.freed != self._freed or (bool(self._problem) and not problem)
        self._problem, self._freed = problem, state.freed
        self._stuck = {
            id_: Stuck(item.count, item.since.ToDatetime(tzinfo=UTC)) for id_, item in state.stuck.items()
        }
        self._on_state(self.cluster, freed)

    def problem(self) -> str:
        """See Admission."""
        return self._problem

    def silent(self) -> bool:
        """See Admission."""
        return self._version > 0 and bool(self._problem)

    def score(self, asked: tuple[int, int, int]) -> float:
        """See Admission."""
        return self._weigher.score(asked)

    def stuck(self) -> Mapping[str, Stuck]:
        """See Admission."""
        return self._stuck

    async def reserve(self, ask: Ask, ttl: float | None = None) -> Answer:
        """See Admission."""
        request = wire.ask_to_proto(ask, self.cluster, ttl or self._ttl, self._fleet_id())
        try:
            answer = await self._stub.Reserve(request, timeout=self._deadline)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error, f"worker of {self.cluster}") from error
        if answer.admitted and not ask.placed:
            self._weigher.take(totals(ask.pod_sets))
        return Answer(answer.admitted, verdict.from_proto(answer.verdict), answer.count)

    async def confirm(self, id_: str, attempt: int) -> bool:
        """See Admission."""
        request = pb.ConfirmRequest(id=id_, attempt=attempt, cluster=self.cluster)
        try:
            await self._stub.Confirm(request, timeout=self._deadline)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return False
            raise from_rpc(error, f"worker of {self.cluster}") from error
        return True

    async def release(self, id_: str, attempt: int) -> None:
        """See Admission."""
        request = pb.ReleaseRequest(id=id_, attempt=attempt, cluster=self.cluster)
        try:
            await self._stub.Release(request, timeout=self._deadline)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error, f"worker of {self.cluster}") from error

    async def evaluate(self, owner: OwnerKey | None, pod_sets: PodSets) -> Verdict:
        """See Admission."""
        request = pb.EvaluateRequest(
            cluster=self.cluster, pod_sets=wire.pod_sets_to_proto(pod_sets), fleet_id=self._fleet_id()
        )  # fmt: skip
        if owner is not None:
            request.owner.CopyFrom(wire.owner_to_proto(owner))
        try:
            answer = await self._stub.Evaluate(request, timeout=self._deadline)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error, f"worker of {self.cluster}") from error
        return verdict.from_proto(answer.verdict)

    async def heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        """Give a sign of life, and get one."""
        try:
            return await self._stub.Heartbeat(request, timeout=self._deadline)  # type: ignore[no-any-return]
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error, f"worker of {self.cluster}") from error

    async def resync(self, asks: Sequence[Ask]) -> None:
        """See Admission."""
        placed = [wire.ask_to_proto(ask, self.cluster, self._ttl) for ask in asks]
        request = pb.ResyncRequest(cluster=self.cluster, placed=placed)
        try:
            await self._stub.Resync(request, timeout=self._deadline)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error, f"worker of {self.cluster}") from error

    async def close(self) -> None:
        """Close the channel."""
        if self._channel is not None:
            await self._channel.close()
            self._channel = None
