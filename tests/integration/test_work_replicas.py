"""Replicas of the reconciler: processes on a real etcd, killed and frozen; proved from what the workers wrote down."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from reclock.reconciler.v1 import reconciler_pb2 as pb
from reclock.reconciler.v1 import reconciler_pb2_grpc as rpc
from services.common.grpc import channel
from services.reconciler.work import ring
from tests.integration.etcd_server import EtcdServer
from tests.integration.work_fleet import HOST, FakeFleet
from tests.integration.work_processes import Client, History, Key, Replica, Run, Service
from tests.integration.work_rig import for_configmaps
from tests.integration.work_worker import WorkerProcess, slow_now_and_then

LEASE = 3
REPLICA_LEASE = 3
NAMES = [f"c{number}" for number in range(9)]
REQUESTS = int(os.environ.get("RECLOCK_REQUESTS", "0"))
"""Requests that are handled while everything is killed; by hand 100,000, in CI as many as come in a few seconds."""


class World:
    """Fake clusters, discovery, replicas."""

    def __init__(self, clusters: FakeFleet, discovery: Service, replicas: list[Replica]) -> None:
        self.clusters = clusters
        self.discovery = discovery
        self.replicas = replicas

    def addresses(self) -> list[str]:
        """Where workers may connect."""
        return [replica.address for replica in self.replicas]

    async def queues(self, replica: int = 0) -> pb.ListQueuesResponse | None:
        """What a replica says of all queues; None when it does not answer."""
        chan = channel(self.replicas[replica].address)
        try:
            answer: pb.ListQueuesResponse = await rpc.QueueServiceStub(chan).ListQueues(pb.ListQueuesRequest(controller="c"), timeout=5)
            return answer
        except grpc.aio.AioRpcError:
            return None
        finally:
            await chan.close()

    async def until(self, holds: Callable[[pb.ListQueuesResponse], bool], what: str, replica: int = 0) -> pb.ListQueuesResponse:
        """Wait until the queues are so."""
        last = None
        try:
            async with asyncio.timeout(60):
                while True:
                    last = await self.queues(replica)
                    if last is not None and holds(last):
                        return last
                    await asyncio.sleep(0.1)
        except TimeoutError:
            logs = "\n".join(each.log[-3000:] for each in self.replicas)
            raise AssertionError(f"{what}; last: {last}\n{logs}") from None


def split(answer: pb.ListQueuesResponse) -> dict[str, str]:
    """Cluster -> replica."""
    return {row.cluster: row.replica for row in answer.queues}


def covers(*replicas: Replica) -> Callable[[pb.ListQueuesResponse], bool]:
    """All members are served, each by whom of these it belongs to. (One of them may have none: nine clusters are few.)"""
    def holds(answer: pb.ListQueuesResponse) -> bool:
        weights = {replica.name: 1.0 for replica in replicas}
        return split(answer) == {name: ring.owner(name, weights) for name in NAMES} and len(answer.queues) == len(NAMES)

    return holds


async def eventually(holds: Callable[[], bool], what: str, more: Callable[[], str] = str) -> None:
    """Wait until something holds; the test fails when it does not in time."""
    for _ in range(900):
        if holds():
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{what}: it did not come to that; {more()}")


@asynccontextmanager
async def world(etcd: EtcdServer, tmp_path: Path, number: int) -> AsyncIterator[World]:
    """So many replicas, started."""
    clusters = FakeFleet()
    for name in NAMES:
        clusters.add(name)
    await clusters.start()
    discovery = Service("services.discovery", tmp_path / "discovery.yaml", {
        "probe": {"interval": 1}, "stateFile": str(tmp_path / "discovery.json"),
        "providers": [{"type": "static", "clusters": [{"name": name, "kubeconfig": str(tmp_path / name)} for name in NAMES]}],
    })  # fmt: skip
    for name in NAMES:
        (tmp_path / name).write_text(yaml.safe_dump(clusters.kubeconfig(name)))
    await discovery.start()
    host = tmp_path / "host.yaml"
    host.write_text(yaml.safe_dump(clusters.kubeconfig(HOST)))
    config: dict[str, Any] = {
        "host": {"kubeconfig": str(host)}, "discoveryAddress": discovery.address, "leaseSeconds": LEASE,
        "etcd": {"endpoints": [etcd.endpoint]}, "replicaLeaseSeconds": REPLICA_LEASE,
    }  # fmt: skip
    replicas = [Replica(tmp_path, each, config) for each in range(number)]
    made = World(clusters, discovery, replicas)
    try:
        await asyncio.gather(*(replica.start() for replica in replicas))
        yield made
    finally:
        for process in (*replicas, discovery):
            await process.end(signal.SIGKILL)
        await clusters.stop()


def test_weighted_rendezvous_gives_each_its_share_and_moves_only_what_must() -> None:
    clusters = [f"cluster-{number}" for number in range(3000)]
    weights = {"a": 1.0, "b": 1.0, "c": 2.0}
    before = {cluster: ring.owner(cluster, weights) for cluster in clusters}
    shares = {name: sum(owner == name for owner in before.values()) / len(clusters) for name in weights}
    assert all(abs(shares[name] - weights[name] / 4) < 0.04 for name in weights)
    after = {cluster: ring.owner(cluster, {"a": 1.0, "c": 2.0}) for cluster in clusters}
    assert all(after[cluster] == owner for cluster, owner in before.items() if owner != "b")
    assert ring.owner("x", {}) == ""


def test_a_history_tells_two_valid_leases_of_one_key() -> None:
    history = History()
    key, other = ("c1", "a", "one"), ("c1", "a", "two")
    for began, ended, of in ((0.0, 1.0, key), (0.5, 2.0, other), (1.0, 2.0, key), (5.0, 9.0, key)):
        history.ended(Run(of, began, ended, "w", f"t{began}", 1), True)
    assert history.overlaps() == [] and len(history.judged()) == 2
    history.ended(Run(key, 8.5, 9.5, "v", "late", 2), True)
    [(one, two)] = history.overlaps()
    assert (one.worker, two.worker) == ("w", "v")
    # What the test itself did not live through proves nothing.
    history.stalled(8.0, 8.6)
    assert history.overlaps() == [] and len(history.judged()) == 1


async def test_one_stream_serves_the_clusters_of_all_replicas_and_orderly_moves_do_not_wait(
    etcd: EtcdServer, tmp_path: Path
) -> None:
    async with world(etcd, tmp_path, 2) as it:
        for name in NAMES:
            it.clusters.clusters[name].put("configmaps", "a", "one", labels={"app": name}, data={"same": "value"})
        history = History()
        register = for_configmaps(max_in_flight=2, indexes=[pb.Index(name="same", path="data.same")])
        client = Client("w", register, lambda: it.addresses()[:1], history, lambda key: 0.0)
        # Objects of every member name one of the host: whoever has the host gets the requests.
        aware = pb.Source(
            version="v1", resource="configmaps", scope=pb.SCOPE_MEMBERS,
            by_label=pb.ByLabel(key="app", naming=pb.Naming(to_host=True)),
        )  # fmt: skip
        on_host = History()
        other = Client("h", for_configmaps("h", sources=[aware], scope=pb.SCOPE_HOST), it.addresses, on_host, lambda key: 0.0)
        await it.until(covers(*it.replicas), "two replicas share the clusters")
        await eventually(lambda: set(on_host.started) == {("", "a", name) for name in NAMES}, "the host's requests were handled")
        await eventually(lambda: len(history.started) == len(NAMES), "each cluster's object was handled")
        chan = channel(it.replicas[1].address)
        found = await rpc.ReconcilerServiceStub(chan).QueryIndex(pb.QueryIndexRequest(controller="c", index="same", value="value"))
        assert [each.cluster for each in found.objects] == NAMES and not found.missing_clusters
        for name in NAMES:
            await rpc.QueueServiceStub(chan).UpdateQueue(pb.UpdateQueueRequest(controller="c", cluster=name, cap=7))
        rows = (await it.queues(0)) or pb.ListQueuesResponse()
        assert {row.cap for row in rows.queues} == {7}
        with_secret = rpc.QueueServiceStub(chan)
        assert (await with_secret.ListQueues(pb.ListQueuesRequest(this_replica=True))).queues  # this machine's user may
        await chan.close()

        # The built-in controllers run where the host is, and only there.
        leads = "reclock-workloads: working as"
        await eventually(lambda: any(leads in replica.log for replica in it.replicas), "a replica runs the built-in controllers")
        assert [leads in replica.log for replica in it.replicas].count(True) == 1

        # SIGTERM: what is idle moves at once, without waiting for anybody's leases.
        seen = len(it.replicas[0].log)
        await it.replicas[1].end(signal.SIGTERM)
        await it.until(covers(it.replicas[0]), "the other replica has all")
        await eventually(lambda: leads in it.replicas[0].log, "the other replica runs the built-in controllers")
        for name in NAMES:
            it.clusters.clusters[name].put("configmaps", "a", "two", labels={"app": f"{name}-two"})
        await eventually(lambda: len(on_host.started) == 2 * len(NAMES), "the host's new requests were handled")
        await eventually(lambda: len(history.started) == 2 * len(NAMES), "each cluster's second object was handled")
        assert not re.search(r"has c\d now, after a lease", it.replicas[0].log[seen:])
        assert not history.overlaps() and not on_host.overlaps()
        await client.die()
        await other.die()


@pytest.mark.timeout(300 + REQUESTS // 20)
async def test_no_two_leases_of_one_key_and_no_request_lost_while_replicas_and_workers_are_killed_and_frozen(
    etcd: EtcdServer, tmp_path: Path
) -> None:
    chance = random.Random(5)
    async with world(etcd, tmp_path, 3) as it:
        each = max(20, REQUESTS // 400)
        keys: list[Key] = [(name, f"ns{number % 3}", f"o{number}") for name in NAMES for number in range(each)]
        history = History()
        stalls = asyncio.create_task(history.watch_stalls())
        flight = 64 if REQUESTS else 8
        register = for_configmaps(max_in_flight=flight, caps=dict.fromkeys(NAMES, flight))

        changed: dict[Key, float] = {}

        def change(key: Key) -> None:
            it.clusters.clusters[key[0]].put("configmaps", key[1], key[2], annotations={"at": str(time.monotonic())})
            changed[key] = time.monotonic()

        for key in keys:
            change(key)
        tasks = [
            Client(name, register, it.addresses, history, slow_now_and_then(name, 2.5 * LEASE)) for name in ("t0", "t1")
        ]
        workers: list[WorkerProcess] = []

        async def add_worker() -> None:
            addresses, name = it.addresses(), f"w{len(workers)}"
            workers.append(await WorkerProcess.start(name, register, addresses, history, tmp_path, 2.5 * LEASE))

        async def replace_worker() -> None:
            await workers[-2].die()
            await add_worker()

        await add_worker()
        await add_worker()
        busy = asyncio.create_task(_keep_changing(change, keys, chance, 50 if REQUESTS else 5))
        await it.until(covers(*it.replicas), "three replicas share the clusters")
        await asyncio.sleep(1)

        taken: list[float] = []
        while not taken or len(history.runs) < REQUESTS:
            taken.append(await _kill_and_freeze(it, replace_worker))
            workers[-2].read()
        await asyncio.sleep(2)
        busy.cancel()
        for key in keys:
            change(key)

        def missing() -> list[Key]:
            for worker in workers[-2:]:
                worker.read()
            return [key for key in keys if history.started.get(key, 0.0) < changed[key]]

        await eventually(lambda: not missing(), "all last states were seen", lambda: f"not: {missing()[:5]} of {len(missing())}")
        for each_of in (*tasks, *workers[-2:]):
            await each_of.die()
        stalls.cancel()
        assert history.overlaps() == []
        assert history.judged(), "there is something to judge"
        assert len(history.runs) > len(keys) * 2
        assert sum(worker.cut_off for worker in workers) or not REQUESTS, "workers were killed with requests in their hands"
        assert len({run.worker for run in history.runs}) >= 5
        print(
            f"{len(history.runs)} requests by {len({run.worker for run in history.runs})} workers in {len(taken)} rounds of kills, "
            f"{sum(replica.log.count('could not be renewed in time') for replica in it.replicas)} leases of replicas ended "
            f"(one each round is meant to), {sum(worker.cut_off for worker in workers)} requests were held by killed worker processes, "
            f"{len(history.stalls)} stalls of the test itself, {len(history.judged())} pairs of runs judged; all clusters of a killed replica were "
            f"others' after {min(taken):.1f} to {max(taken):.1f} s (lease: {REPLICA_LEASE} s)"
        )
        # A fence never goes back for a cluster, whoever gave the lease.
        for name in NAMES:
            fences = [run.fence for run in sorted(history.runs, key=lambda run: run.began) if run.key[0] == name]
            assert fences == sorted(fences), name


async def _kill_and_freeze(it: World, replace_worker: Callable[[], Awaitable[None]]) -> float:
    """One of each: a replica, discovery and a worker are killed (-9), a replica is frozen for longer than its lease.

    Returns the seconds from the kill of the replica until all its clusters were others'.
    """
    # kill -9 of a replica: its clusters go to the others.
    killed = time.monotonic()
    await it.replicas[1].end(signal.SIGKILL)
    await it.discovery.end(signal.SIGKILL)
    await it.until(covers(it.replicas[0], it.replicas[2]), "two replicas have all")
    taken = time.monotonic() - killed
    # kill -9 of a worker: what it held comes again.
    await replace_worker()
    # A replica that freezes longer than its lease: when it wakes, others have its clusters.
    it.replicas[2].send(signal.SIGSTOP)
    await it.until(covers(it.replicas[0]), "the last replica has all")
    it.replicas[2].send(signal.SIGCONT)
    await it.discovery.start()
    await it.replicas[1].start()
    await it.until(covers(*it.replicas), "three share again")
    return taken


async def _keep_changing(change: Callable[[Key], None], keys: list[Key], chance: random.Random, number: int) -> None:
    while True:
        for key in chance.sample(keys, number):
            change(key)
        await asyncio.sleep(0.05)
