"""Two reconcilers over one etcd on real clusters: killed -9, and cut off from their etcd, while Deployments and Jobs go on."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from deploy.local.fleet import Fleet
from reclock.reconciler.v1 import reconciler_pb2 as pb
from reclock.reconciler.v1 import reconciler_pb2_grpc as rpc
from services.common.grpc import channel
from services.reconciler.work import ring
from tests.integration.etcd_server import EtcdServer, find_etcd, free_port
from tests.integration.work_processes import Client, History, Key
from tests.kube.conftest import Kubectl
from tests.kube.cut import Link
from tests.kube.reconciler_rig import JOBS, Rig, host, job, ns, spread_of, until
from tests.kube.test_discovery import CONFIG_MAPS

__all__ = ["host", "ns", "rig"]

LEASE = 3
NAMES = ("reconciler", "reconciler-2")
KEYS = 4
"""ConfigMaps in each cluster that change all the time."""
CLUSTERS = ("", "east", "west")


class Pair(Rig):
    """A rig with two reconcilers, each with a link of its own to their etcd."""

    def __init__(self, fleet: Fleet, directory: Path, etcd: EtcdServer) -> None:
        super().__init__(fleet, directory)
        self._since = dict.fromkeys(NAMES, 0)
        self.links = {name: Link("127.0.0.1", etcd.port, free_port()) for name in NAMES}
        self.replicas = {
            name: {"etcd": {"endpoints": [f"127.0.0.1:{link.port}"]}, "replicaLeaseSeconds": LEASE, "leaseSeconds": LEASE}
            for name, link in self.links.items()
        }

    def said(self, name: str) -> str:
        """What a reconciler's process that runs now has logged."""
        return self.processes[name].log.read_bytes()[self._since[name] :].decode()

    async def start(self, name: str) -> None:
        """Start a reconciler that does not run."""
        # Ready is said before it takes part: what it was called before is in the same file, and is not its name any more.
        self._since[name] = self.processes[name].log.stat().st_size
        await self.processes[name].start()
        await self.processes[name].wait_ready()

    async def whole(self) -> None:
        """All run, and reach their etcd."""
        for name in NAMES:
            self.links[name].mend()
            if not self.processes[name].running:
                await self.start(name)

    def called(self, name: str) -> str:
        """What a reconciler calls itself now; "" while it does not take part."""
        words = [line.partition("replica ")[2].split()[0] for line in self.said(name).splitlines() if "takes part" in line]
        return words[-1] if words else ""

    async def owners(self) -> dict[str, str]:
        """Cluster -> which reconciler has it, as the first one says that knows of all."""
        for address in self.addresses:
            async with channel(address) as chan:
                try:
                    found = await rpc.QueueServiceStub(chan).ListQueues(pb.ListQueuesRequest(controller="c"), timeout=5)
                except grpc.aio.AioRpcError:
                    continue
            if {row.cluster for row in found.queues} == set(CLUSTERS):
                names = {self.called(name): name for name in NAMES}
                return {row.cluster: names.get(row.replica, "?") for row in found.queues}
        return {}

    async def shared(self) -> dict[str, str]:
        """Wait until both have clusters, as the hash says; one whose name gives it none is started anew, under another."""
        for _ in range(12):
            async def as_hashed() -> dict[str, str]:
                weights = {self.called(name): 1.0 for name in NAMES}
                found = await self.owners()
                if set(found) != set(CLUSTERS) or not all(weights):
                    return {}
                return found if all(self.called(found[c]) == ring.owner(c, weights) for c in ("east", "west")) else {}

            found = await until(as_hashed, "two reconcilers share the clusters", 60)
            idle = set(NAMES) - set(found.values())
            if not idle:
                return dict(found)
            name = idle.pop()
            await self.processes[name].stop()
            await self.start(name)
        raise AssertionError("a dozen names gave one of two all three clusters")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def rig(clusters: Fleet, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    binary = find_etcd()
    assert binary, "there is one beside the clusters' binaries"
    etcd = EtcdServer(binary, tmp_path_factory.mktemp("etcd"))
    await etcd.start()
    made = Pair(clusters, tmp_path_factory.mktemp("pair"), etcd)
    try:
        for link in made.links.values():
            await link.start()
        async with made.running():
            yield made
    finally:
        for link in made.links.values():
            await link.stop()
        etcd.kill()


class Traffic:
    """ConfigMaps that change in all clusters, and two workers that handle them; what both did is written down."""

    def __init__(self, rig: Pair) -> None:
        self.rig, self.label = rig, f"t{secrets.token_hex(3)}"
        self.history = History()
        self.changed: dict[Key, float] = {}
        source = pb.Source(
            version="v1", resource="configmaps", for_object=pb.ForObject(), namespaces=["default"],
            label_selector=f"traffic={self.label}",
        )  # fmt: skip
        register = pb.Register(
            controller="c", protocol_version=1, sources=[source], max_in_flight=8, scope=pb.SCOPE_ALL,
            caps=dict.fromkeys(CLUSTERS[1:], 4),
        )  # fmt: skip
        self.workers = [Client(f"w{n}", register, lambda: rig.addresses, self.history, lambda key: 0.3) for n in range(2)]
        self._stalls = asyncio.create_task(self.history.watch_stalls())
        self._changes: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Make the ConfigMaps, and change them from now on."""
        for cluster in CLUSTERS:
            for number in range(KEYS):
                name = f"{self.label}-{number}"
                metadata = {"name": name, "labels": {"traffic": self.label}}
                body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
                await self.rig.clients[cluster].create(CONFIG_MAPS, "default", body)
                self.changed[cluster, "default", name] = time.monotonic()
        self._changes = asyncio.create_task(self._keep_changing())

    async def _keep_changing(self) -> None:
        while True:
            for key in list(self.changed):
                await self._change(key)

    async def _change(self, key: Key) -> None:
        patch = {"data": {"at": str(time.monotonic_ns())}}
        await self.rig.clients[key[0]].patch(CONFIG_MAPS, key[1], key[2], patch)
        self.changed[key] = time.monotonic()

    async def end(self) -> None:
        """A last change of each; wait until all of them were handled."""
        await self._stop_changing()
        for key in self.changed:
            await self._change(key)

        async def handled() -> bool:
            return all(self.history.started.get(key, 0.0) >= at for key, at in self.changed.items())

        await until(handled, "every last state was handled", 60)

    async def _stop_changing(self) -> None:
        if self._changes is not None:
            self._changes.cancel()
            await asyncio.wait({self._changes})

    async def close(self) -> None:
        """Take everything away, however far it came."""
        await self._stop_changing()
        for worker in self.workers:
            await worker.die()
        self._stalls.cancel()
        for cluster, namespace, name in self.changed:
            await self.rig.clients[cluster].delete(CONFIG_MAPS, namespace, name)


async def taken_over(rig: Pair, by: str) -> float:
    """Wait until one has all clusters; the seconds that it took."""
    began = time.monotonic()

    async def all_there() -> bool:
        return await rig.owners() == dict.fromkeys(CLUSTERS, by)

    await until(all_there, f"{by} has all clusters", 60)
    return time.monotonic() - began


async def at_work(rig: Pair, host: Kubectl, ns: str, replicas: int, name: str) -> None:
    """A Deployment gets another size, and a Job runs to its end."""
    await host("-n", ns, "rollout", "status", "deployment/web", "--timeout=90s", timeout=120)
    await host("-n", ns, "wait", "--for=condition=complete", f"job/{name}", "--timeout=90s", timeout=120)

    async def there() -> bool:
        return sum((await spread_of(rig, ns, "app=web")).values()) == replicas

    await until(there, f"{replicas} pods", 60)


async def begin_work(rig: Pair, host: Kubectl, ns: str, replicas: int, name: str) -> None:
    await host("-n", ns, "scale", "deployment/web", f"--replicas={replicas}")
    await rig.clients[""].create(JOBS, ns, job(name, ns, "2s"))


@pytest_asyncio.fixture(loop_scope="session")
async def traffic(rig: Pair) -> AsyncIterator[Traffic]:
    made = Traffic(rig)
    try:
        await made.begin()
        yield made
    finally:
        await rig.whole()
        await made.close()


async def test_one_is_killed_and_one_is_cut_off_from_its_etcd(rig: Pair, host: Kubectl, traffic: Traffic, ns: str) -> None:
    owners = await rig.shared()
    await host("-n", ns, "create", "deployment", "web", "--image=nginx:1", "--replicas=2")
    await rig.clients[""].create(JOBS, ns, job("first", ns))
    await at_work(rig, host, ns, 2, "first")

    # kill -9 of the one that runs the built-in controllers, with work under way.
    first = owners[""]
    [second] = set(NAMES) - {first}
    await begin_work(rig, host, ns, 6, "killed")
    await rig.processes[first].kill9()
    killed = await taken_over(rig, second)
    await at_work(rig, host, ns, 6, "killed")
    await rig.start(first)
    assert (await rig.shared())[""] == second, "the host stays where it is"

    # The one that has the host now cannot reach its etcd any more, and is not told; it runs on.
    seen = len(rig.said(second))
    await begin_work(rig, host, ns, 3, "cut")
    rig.links[second].freeze()
    cut = await taken_over(rig, first)
    await at_work(rig, host, ns, 3, "cut")
    assert "could not be renewed in time" in rig.said(second)[seen:]
    assert rig.processes[second].running
    rig.links[second].mend()
    assert (await rig.shared())[""] == first

    await traffic.end()
    runs = traffic.history.runs
    assert traffic.history.overlaps() == [], "no two valid leases of one key"
    assert traffic.history.judged(), "there is something to judge"
    assert len({run.fence for run in runs if run.key[0] == ""}) == 3, "three terms of the host"
    for cluster in CLUSTERS:
        fences = [run.fence for run in sorted(runs, key=lambda run: run.began) if run.key[0] == cluster]
        assert fences and fences == sorted(fences), cluster
    print(f"{len(runs)} requests; all clusters were the other's {killed:.1f} s after the kill, {cut:.1f} s after the cut (lease: {LEASE} s)")
