"""Two replicas of the Work service in this process, on a real etcd: what a worker runs while its cluster's replica dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from reclock.reconciler.v1 import reconciler_pb2 as pb
from tests.integration.etcd_server import EtcdServer
from tests.integration.work_fleet import FakeFleet
from tests.integration.work_rig import Rig, Worker, for_configmaps, rig

NAMES = [f"c{number}" for number in range(6)]


@asynccontextmanager
async def pair(etcd: EtcdServer, lease: int) -> AsyncIterator[tuple[Rig, Rig]]:
    """Two replicas that share six members, all of them taken."""
    clusters = FakeFleet()
    for name in NAMES:
        clusters.add(name).put("configmaps", "a", "one")
    await clusters.start()
    config = {"etcd": {"endpoints": [etcd.endpoint]}, "replicaLeaseSeconds": 2, "lease": lease, "clusters": clusters}
    try:
        async with rig(*NAMES, replica="r1", **config) as one, rig(*NAMES, replica="r2", **config) as two:  # type: ignore[arg-type]
            for _ in range(400):
                if owned(one) and owned(two) and owned(one) | owned(two) == {"", *NAMES}:
                    break
                await asyncio.sleep(0.05)
            else:
                raise AssertionError(f"not all was taken: {owned(one)}, {owned(two)}")
            yield one, two
    finally:
        await clusters.stop()


def owned(it: Rig) -> set[str]:
    """Clusters of a replica."""
    return set(it.work.parts.hub.engaged_here) if it.work.parts.hub is not None else set()


async def beat(worker: Worker, *tokens: str) -> None:
    """Heartbeats, as a worker has to; for some tokens only, or for all."""
    number = 0
    while not worker.ended:
        number += 1
        await worker.say(heartbeat=pb.Heartbeat(sequence=number, tokens=tokens))
        await asyncio.sleep(0.3)


async def test_what_a_worker_runs_is_taken_over_by_the_replica_that_follows(etcd: EtcdServer) -> None:
    async with pair(etcd, lease=6) as (one, two):
        worker = one.worker(for_configmaps(worker="w"))
        beats = asyncio.create_task(beat(worker))
        requests = {request.cluster: request for request in await worker.requests(len(NAMES), patience=30)}
        [theirs, *others] = [requests[cluster] for cluster in owned(two) if cluster]
        for request in [request for request in requests.values() if request is not theirs]:
            await worker.done(request)
        await two.crash()
        await worker.until(lambda: theirs.cluster in owned(one), patience=30)
        number = len(worker.of("renewed"))
        await worker.until(lambda: any(theirs.token in each.tokens for each in worker.of("renewed")[number:]))
        # While it runs nobody else gets the key; the others of that replica come again, once one lease has passed.
        await worker.until(lambda: len(worker.of("request")) == len(NAMES) + len(others), patience=30)
        assert theirs.cluster not in {request.cluster for request in worker.of("request")[len(NAMES) :]}
        await worker.done(theirs)
        await worker.until(lambda: worker.of("request")[-1].cluster == theirs.cluster)
        assert worker.of("request")[-1].fence > theirs.fence
        assert not worker.of("problem") and not worker.of("cancelled")
        beats.cancel()
        await worker.close()


async def test_room_that_a_dead_replicas_requests_took_comes_back(etcd: EtcdServer) -> None:
    async with pair(etcd, lease=2) as (one, two):
        worker = one.worker(for_configmaps(max_in_flight=1, caps=dict.fromkeys(NAMES, 1)))
        beats = asyncio.create_task(beat(worker, "none"))
        answered = 0
        async with asyncio.timeout(60):
            while True:
                request = (await worker.requests(answered + 1, patience=30))[answered]
                if request.cluster in owned(two):
                    break
                await worker.done(request)
                answered += 1
        await two.crash()
        # It is never answered, and nobody believes in it for ever.
        later = (await worker.requests(answered + 2, patience=40))[answered + 1]
        assert later.token != request.token
        beats.cancel()
        await worker.close()


async def test_replicas_know_each_other_by_their_secret_only(etcd: EtcdServer) -> None:
    import grpc
    import pytest

    from reclock.reconciler.v1 import peer_pb2, peer_pb2_grpc

    async with pair(etcd, lease=2) as (one, _):
        stub = peer_pb2_grpc.PeerServiceStub(one.channel)
        for metadata in (None, (("reclock-peer", "guess"),)):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await stub.Add(peer_pb2.AddRequest(), metadata=metadata)
            assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED


async def test_a_sole_worker_is_asked_by_each_replica_and_waits_for_no_lease_of_a_dead_one(etcd: EtcdServer) -> None:
    async with pair(etcd, lease=60) as (one, two):
        source = pb.Source(name="a", channel=pb.Channel())
        worker = one.worker(pb.Register(controller="c", protocol_version=1, worker="w", max_in_flight=100, sources=[source]))

        def told(after: int = 0) -> set[str]:
            return {tell.cluster for tell in worker.of("tell")[after:]}

        def due(*names: str) -> pb.Due:
            return pb.Due(keys=[pb.DueKey(cluster=theirs, namespace="ns", name=name) for name in names])

        await worker.until(lambda: told() == set(NAMES), patience=30)
        theirs = next(cluster for cluster in owned(two) if cluster)
        # Nobody has served these clusters before; for a lease that would count for nothing.
        await worker.say(resume=pb.Resume(sole=True))
        await worker.say(due=due("long"))
        [held] = await worker.requests(1)
        number = len(worker.of("tell"))
        await two.crash()
        await worker.until(lambda: theirs in told(number), patience=30)
        running = pb.Held(token=held.token, cluster=theirs, namespace="ns", name="long", source="a")
        await worker.say(resume=pb.Resume(tokens=[held.token], held=[running], sole=True))
        await worker.say(due=due("long", "short"))
        short = (await worker.requests(2))[1]
        assert (short.cluster, short.name) == (theirs, "short") and short.fence > held.fence
        await worker.done(held)
        assert (await worker.requests(3))[2].name == "long", "what ran is run again only after its end"
        assert not worker.of("problem") and not worker.of("cancelled")
        await worker.close()
