"""gRPC of the reconciler, on a real in-process server; its configuration; its metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest

from _fastpath.fair_queue import FairQueue
from reclock.reconciler.v1 import reconciler_pb2 as pb
from reclock.reconciler.v1 import reconciler_pb2_grpc as rpc
from services.common.config import ConfigError, convert
from services.common.grpc import GrpcServer, channel
from services.reconciler.config import ReconcilerConfig
from services.reconciler.metrics import QueueMetrics
from services.reconciler.rpc import QueueServicer, ReconcilerServicer


@pytest.fixture
def queue() -> FairQueue:
    made = FairQueue(workers=8)
    made.engage("", cap=8)
    made.engage("east")
    return made


@pytest.fixture
async def chan(queue: FairQueue) -> AsyncIterator[grpc.aio.Channel]:
    server = GrpcServer("127.0.0.1:0")
    server.add(rpc.add_QueueServiceServicer_to_server, QueueServicer(queue), "reclock.reconciler.v1.QueueService")
    server.add(
        rpc.add_ReconcilerServiceServicer_to_server, ReconcilerServicer(), "reclock.reconciler.v1.ReconcilerService"
    )
    await server.start()
    made = channel(server.bound)
    yield made
    await made.close()
    await server.stop(0)


async def test_queues_are_shown_and_steered(queue: FairQueue, chan: grpc.aio.Channel) -> None:
    stub = rpc.QueueServiceStub(chan)
    queue.add("east", "ns/job/a")
    rows = (await stub.ListQueues(pb.ListQueuesRequest())).queues
    assert [(row.cluster, row.depth, row.cap, row.paused) for row in rows] == [("", 0, 8, False), ("east", 1, 2, False)]

    await stub.UpdateQueue(pb.UpdateQueueRequest(cluster="east", weight=2.5, cap=3, paused=True))
    assert queue.get_nowait() is None
    row = (await stub.ListQueues(pb.ListQueuesRequest())).queues[1]
    assert (row.weight, row.cap, row.paused) == (2.5, 3, True)
    await stub.UpdateQueue(pb.UpdateQueueRequest(cluster="east", paused=False))
    item = queue.get_nowait()
    assert item is not None and item.key == "ns/job/a"


@pytest.mark.parametrize(("request_", "code"), [
    (pb.UpdateQueueRequest(cluster="nowhere", cap=1), grpc.StatusCode.NOT_FOUND),
    (pb.UpdateQueueRequest(controller="other", cluster="east"), grpc.StatusCode.NOT_FOUND),
    (pb.UpdateQueueRequest(cluster="east", cap=0), grpc.StatusCode.INVALID_ARGUMENT),
    (pb.UpdateQueueRequest(cluster="east", weight=0), grpc.StatusCode.INVALID_ARGUMENT),
    (pb.UpdateQueueRequest(cluster="east", weight=float("nan"), cap=5), grpc.StatusCode.INVALID_ARGUMENT),
])  # fmt: skip
async def test_bad_updates_change_nothing(
    queue: FairQueue, chan: grpc.aio.Channel, request_: pb.UpdateQueueRequest, code: grpc.StatusCode
) -> None:
    before = [row[:4] for row in queue.stats()]
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await rpc.QueueServiceStub(chan).UpdateQueue(request_)
    assert raised.value.code() == code and raised.value.details()
    assert [row[:4] for row in queue.stats()] == before


async def test_work_says_what_it_will_do(chan: grpc.aio.Channel) -> None:
    call = rpc.ReconcilerServiceStub(chan).Work()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call.read()
    assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert "will register" in (raised.value.details() or "")


def test_every_queue_figure_is_a_metric(queue: FairQueue) -> None:
    queue.add("east", "ns/job/a")
    families = {family.name: family for family in QueueMetrics(queue).collect()}
    depth = families["reclock_reconciler_queue_depth"].samples
    assert {sample.labels["cluster"]: sample.value for sample in depth} == {"host": 0.0, "east": 1.0}
    assert "reclock_reconciler_queue_adds" in families


@pytest.mark.parametrize(("key", "value"), [
    ("workers", 0), ("workers", 1001), ("sweepSeconds", 0), ("workerLostTimeout", -1),
    ("discoveryAddress", "nonsense"), ("unknown", 1), ("workers", "many"),
])  # fmt: skip
def test_bad_configuration_is_refused_by_its_key(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key):
        convert(ReconcilerConfig, {key: value})


def test_defaults() -> None:
    config = convert(ReconcilerConfig, {})
    assert (config.grpc_address, config.workers, config.worker_lost_timeout) == ("127.0.0.1:7404", 16, 900)
