"""Manager and worker over gRPC: reservations, restarts of the worker, its state as it streams it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from reclock.scheduler.v1 import scheduler_pb2 as pb
from reclock.scheduler.v1 import scheduler_pb2_grpc
from services.common.errors import StatusError
from services.common.grpc import GrpcServer
from services.scheduler.admission import LocalAdmission
from services.scheduler.admission_api import AdmissionServicer, Signal
from services.scheduler.clock import SystemClock
from services.scheduler.ledger import OwnerKey
from services.scheduler.member import Ask, MemberState
from services.scheduler.remote import RemoteAdmission
from services.scheduler.shape import make_shape
from tests.unit.scheduler_fakes import node, pod

SHAPE = make_shape({"cpu": 1000}, {"tolerations": [{"key": "gpu", "operator": "Exists"}]})


class Beside:
    """A worker's parts in this process, served over gRPC."""

    def __init__(self, port: int = 0, settle: float = 0.0) -> None:
        self.signal = Signal()
        self.state = MemberState("east", on_change=self.signal.changed)
        self.state.upsert_node(node("east-n0"))
        self.problem = ""
        self.clash = self.asked_for = ""

        async def clash(owner: OwnerKey, fleet_id: str) -> str:
            self.asked_for = fleet_id
            return self.clash

        self.admission = LocalAdmission(
            self.state, SystemClock(), ttl=30, clash=clash, problem=lambda: self.problem, settle=settle
        )
        self.server = GrpcServer(f"127.0.0.1:{port}")
        servicer = AdmissionServicer({"east": self.admission}, {"east": self.signal})
        self.server.add(
            scheduler_pb2_grpc.add_AdmissionServiceServicer_to_server,
            servicer,
            "reclock.scheduler.v1.AdmissionService",
        )


@asynccontextmanager
async def worker(port: int = 0, settle: float = 0.0) -> AsyncIterator[Beside]:
    beside = Beside(port, settle)
    await beside.server.start()
    try:
        yield beside
    finally:
        await beside.server.stop(0)


class Far:
    """The manager's side."""

    def __init__(self, port: int) -> None:
        self.freed: list[bool] = []
        self.connected = 0
        self.remote = RemoteAdmission(
            "east", f"127.0.0.1:{port}", None, ttl=30, deadline=5,
            on_state=lambda cluster, freed: self.freed.append(freed), on_connected=self._connected,
            fleet_id=lambda: "this-fleet",
        )  # fmt: skip
        self.placed: list[Ask] = []

    async def _connected(self, cluster: str) -> bool:
        self.connected += 1
        await self.remote.resync(self.placed)
        return True


@asynccontextmanager
async def manager(port: int) -> AsyncIterator[Far]:
    far = Far(port)
    task = asyncio.create_task(far.remote.run())
    try:
        await until(lambda: not far.remote.problem())
        yield far
    finally:
        task.cancel()
        await asyncio.wait({task})
        await far.remote.close()


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 (state that has no event)
            await asyncio.sleep(0.01)


def ask(id_: str = "w", count: int = 2, attempt: int = 0, **fields: Any) -> Ask:
    return Ask(id_, attempt, OwnerKey("default", "Job", id_), [(SHAPE, count)], **fields)


async def test_what_is_asked_arrives_as_it_was_meant() -> None:
    async with worker() as beside, manager(beside.server.port) as far:
        answer = await far.remote.reserve(ask(count=3))
        assert (answer.admitted, answer.count) == (True, 3)
        held = beside.state.ledger.get("w")
        assert held is not None
        assert held.shares[0].shape is SHAPE, "requests and rules survive the wire"
        assert held.owner == OwnerKey("default", "Job", "w")
        assert await far.remote.confirm("w", 0)
        assert held.confirmed
        refused = await far.remote.reserve(ask("x", count=2))
        assert (refused.admitted, refused.verdict.filter) == (False, "Capacity")
        verdict = await far.remote.evaluate(None, [(make_shape({"cpu": 9000}), 1)])
        assert (verdict.filter, verdict.asked["cpu"], verdict.free["cpu"]) == ("Capacity", 9000, 1000)
        partial = await far.remote.reserve(ask("x", count=2, partial=True))
        assert (partial.admitted, partial.count) == (True, 1)
        await far.remote.release("w", 0)
        await far.remote.release("never", 0)
        assert beside.state.ledger.get("w") is None
        assert not await far.remote.confirm("w", 0)


async def test_a_clash_and_a_problem_are_refusals() -> None:
    async with worker() as beside, manager(beside.server.port) as far:
        beside.clash = "Job default/w exists there and is not from this fleet"
        assert (await far.remote.reserve(ask())).verdict.filter == "NameClash"
        assert beside.asked_for == "this-fleet", "the worker serves whoever asks: it has no fleet of its own"
        beside.asked_for = ""
        assert (
            await far.remote.evaluate(OwnerKey("default", "Job", "w"), [(SHAPE, 1)])
        ).filter == "NameClash"
        assert beside.asked_for == "this-fleet"
        beside.clash, beside.problem = "", "its nodes and pods are not read yet"
        assert (await far.remote.reserve(ask())).verdict.message == beside.problem
        beside.signal.changed(False)
        await until(far.remote.problem)
        assert far.remote.problem() == beside.problem


async def test_the_state_streams_scores_and_freed_room() -> None:
    async with worker() as beside, manager(beside.server.port) as far:
        empty = far.remote.score((0, 0, 0))
        beside.state.upsert_pod(pod("x", "3", "east-n0"))
        await until(lambda: far.remote.score((0, 0, 0)) < empty)
        far.freed.clear()
        beside.state.remove_pod("pod-x")
        await until(lambda: far.remote.score((0, 0, 0)) == empty)
        assert far.freed[-1]


async def test_pods_without_a_node_are_told() -> None:
    async with worker() as beside, manager(beside.server.port) as far:
        await far.remote.reserve(ask())
        await far.remote.confirm("w", 0)
        beside.state.upsert_pod(pod("w-1", owner=("Job", "w")))
        await until(far.remote.stuck)
        assert far.remote.stuck()["w"].count == 1
        beside.state.upsert_pod(pod("w-1", node_name="east-n0", owner=("Job", "w")))
        await until(lambda: not far.remote.stuck())


async def test_a_restarted_worker_waits_until_it_is_told_what_is_placed() -> None:
    async with worker() as beside:
        port = beside.server.port
        async with manager(port) as far:
            far.placed = [ask("placed", 3)]
            await beside.server.stop(0)
            await until(far.remote.problem)
            with pytest.raises(StatusError):
                await far.remote.reserve(ask("late"))
            fresh = Beside(port, settle=3600)
            refused = await fresh.admission.reserve(ask("early", 1))
            assert "just started" in refused.verdict.message
            await fresh.server.start()
            await until(lambda: far.connected == 2 and not far.remote.problem())
            held = fresh.state.ledger.get("placed")
            assert held is not None
            assert held.confirmed
            assert not (await far.remote.reserve(ask("late", 2))).admitted, "what is placed counts again"
            assert (await far.remote.reserve(ask("late", 1))).admitted
            await fresh.server.stop(0)


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (pb.ReserveRequest(cluster="north", id="w"), grpc.StatusCode.NOT_FOUND, "it does for: east"),
        (pb.ReserveRequest(cluster="east"), grpc.StatusCode.INVALID_ARGUMENT, "id is missing"),
        (
            pb.ReserveRequest(cluster="east", id="w", pod_sets=[pb.PodSet(name="p", count=1, requests={"cpu": "x"})]),
            grpc.StatusCode.INVALID_ARGUMENT, "'x' is no Kubernetes quantity",
        ),
        (
            pb.ReserveRequest(cluster="east", id="w", pod_sets=[pb.PodSet(name="p", constraints=b"[")]),
            grpc.StatusCode.INVALID_ARGUMENT, "constraints are no JSON",
        ),
    ],
)  # fmt: skip
async def test_bad_requests_are_refused(
    request_: pb.ReserveRequest, code: grpc.StatusCode, text: str
) -> None:
    async with worker() as beside, grpc.aio.insecure_channel(beside.server.bound) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await scheduler_pb2_grpc.AdmissionServiceStub(channel).Reserve(request_, timeout=5)
        assert failure.value.code() is code
        assert text in str(failure.value.details())
