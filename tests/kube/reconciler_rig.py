"""Discovery, scheduler and reconciler on a fleet without a front: Kubernetes' deployment controller works at the host.

`rig`, `host` and `ns` are fixtures: tests import them by name.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from grpc import aio

from deploy.local.fleet import Fleet
from deploy.local.manifests import install
from deploy.local.ports import Ports
from deploy.local.probes import http_ready
from deploy.local.process import Process
from reclock.discovery.v1 import discovery_pb2, discovery_pb2_grpc
from services.common.kube.client import KubeClient
from services.common.kube.resource import NAMESPACES, PODS, Resource
from services.reconciler.names import JOBS, REPLICASETS
from tests.kube.conftest import Kubectl

Obj = dict[str, Any]
CHECKOUT = Path(__file__).parents[2]
POLICIES = Resource("reclock.dev", "v1alpha1", "placementpolicies", "PlacementPolicy", namespaced=False)
FIXED = {"maxSurge": 0, "maxUnavailable": 1}


class Rig:
    """The processes by name, and clients of host ("") and members."""

    def __init__(self, fleet: Fleet, directory: Path) -> None:
        self.fleet = fleet
        self.directory = directory
        self.ports = Ports()
        self.processes: dict[str, Process] = {}
        self.clients: dict[str, KubeClient] = {}
        self.discovery = ""
        self.reconciler = ""
        self.replicas: dict[str, Obj] = {"reconciler": {}}
        """The reconcilers' processes (`reconciler`, `reconciler-…`), and what their configurations have beside the usual."""

    async def forget(self, cluster: str) -> None:
        """Say that a removed cluster will not come back, as soon as that is taken."""
        async with aio.insecure_channel(self.discovery) as channel:
            stub = discovery_pb2_grpc.DiscoveryServiceStub(channel)

            async def forgotten() -> bool:
                try:
                    await stub.ForgetCluster(discovery_pb2.ForgetClusterRequest(name=cluster), timeout=10)
                except aio.AioRpcError as error:
                    assert error.code().name in ("FAILED_PRECONDITION", "NOT_FOUND"), error
                    return error.code().name == "NOT_FOUND"
                return True

            await until(forgotten, f"{cluster} forgotten")

    def _service(self, name: str, grpc: int, config: Obj) -> None:
        http = self.ports.take()
        whole = {
            "grpcAddress": f"127.0.0.1:{grpc}", "httpAddress": f"127.0.0.1:{http}",
            "host": {"kubeconfig": str(self.fleet.host.kubeconfig)}, **config,
        }  # fmt: skip
        path = self.directory / f"{name}.yaml"
        path.write_text(yaml.safe_dump(whole))
        command = [sys.executable, "-m", f"services.{name.partition('-')[0]}", "--config", str(path)]
        self.processes[name] = Process(
            name, command, log=self.directory / f"{name}.log", cwd=CHECKOUT,
            ready=http_ready(f"http://127.0.0.1:{http}/readyz"),
        )  # fmt: skip

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Rig]:
        """Everything up; stopped on the way out."""
        await install(self.fleet.host.api, lambda text: None)
        grpc = {name: self.ports.take() for name in ("discovery", "scheduler", *self.replicas)}
        self.discovery = f"127.0.0.1:{grpc['discovery']}"
        self.addresses = [f"127.0.0.1:{grpc[name]}" for name in self.replicas]
        self.reconciler = self.addresses[0]
        discovery = {"discoveryAddress": self.discovery}
        provider = {"type": "kubeconfig-file", "paths": [str(self.fleet.layout.members)]}
        self._service("discovery", grpc["discovery"], {
            "providers": [provider], "probe": {"interval": 0.5, "timeout": 1.0},
            "stateFile": str(self.directory / "state"),
        })  # fmt: skip
        self._service("scheduler", grpc["scheduler"], {"role": "manager", **discovery})
        for name, more in self.replicas.items():
            self._service(name, grpc[name], {"sweepSeconds": 2, **discovery, **more})
        self.processes["deployments"] = self.fleet.host.build_controller_manager(
            "deployments", self.ports.take(), self.fleet.host.kubeconfig, ["deployment-controller"]
        )
        self.clients = {
            name: await KubeClient.connect(cluster.kubeconfig, name=name)
            for name, cluster in (("", self.fleet.host), *self.fleet.members.items())
        }
        try:
            for process in self.processes.values():
                await process.start()
            for process in self.processes.values():
                await process.wait_ready()
            yield self
        finally:
            for process in reversed(self.processes.values()):
                await process.stop()
            for client in self.clients.values():
                await client.close()
            self.ports.release()

    async def get(self, cluster: str, resource: Resource, namespace: str, name: str) -> Obj | None:
        """An object, or None."""
        found = await self.list(cluster, resource, namespace, fieldSelector=f"metadata.name={name}")
        return found[0] if found else None

    async def list(self, cluster: str, resource: Resource, namespace: str | None, **query: Any) -> list[Obj]:
        """Objects of one cluster."""
        items: list[Obj] = (await self.clients[cluster].list(resource, namespace, **query))["items"]
        return items

    async def count(self, resource: Resource, namespace: str, **query: Any) -> dict[str, int]:
        """Member -> how many objects it has."""
        return {
            member: len(await self.list(member, resource, namespace, **query)) for member in self.fleet.members
        }


class Sampler:
    """Looks at pods and ReplicaSets of the members as fast as it can, and keeps the extremes."""

    def __init__(self, rig: Rig, resource: Resource, namespace: str, selector: str) -> None:
        self._rig, self._resource, self._namespace, self._selector = rig, resource, namespace, selector
        self.fewest_ready: int | None = None
        self.most_replicas = 0
        self.samples = 0

    async def __aenter__(self) -> Sampler:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        results = await asyncio.gather(self._task, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError), results

    async def _run(self) -> None:
        before: list[Obj] = []
        while True:
            now = await self._collect()
            # Clusters are read one after the other: only what two readings in a row agree on was true at once.
            if [version(obj) for obj in now] == [version(obj) for obj in before]:
                self._judge()
            before = now

    async def _collect(self) -> list[Obj]:
        members, query = list(self._rig.fleet.members), {"labelSelector": self._selector}
        lists = await asyncio.gather(
            *(self._rig.list(m, r, self._namespace, **query) for r in (self._resource, REPLICASETS) for m in members)
        )
        half = len(members)
        self._pods = [pod for found in lists[:half] for pod in found]
        self._sets = [item for found in lists[half:] for item in found]
        return [*self._pods, *self._sets]

    def _judge(self) -> None:
        ready = sum(1 for pod in self._pods if is_ready(pod))
        self.fewest_ready = ready if self.fewest_ready is None else min(self.fewest_ready, ready)
        self.most_replicas = max(self.most_replicas, sum(item["spec"]["replicas"] for item in self._sets))
        self.samples += 1


def version(obj: Obj) -> tuple[str, str]:
    """Which object, in which state."""
    return obj["metadata"]["uid"], obj["metadata"]["resourceVersion"]


def is_ready(pod: Obj) -> bool:
    """Ready and not being deleted."""
    conditions = pod["status"].get("conditions") or []
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def rig(clusters: Fleet, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    async with Rig(clusters, tmp_path_factory.mktemp("rig")).running() as running:
        yield running


@pytest.fixture
def host(rig: Rig, kubectl: Callable[..., Kubectl]) -> Kubectl:
    return kubectl(rig.fleet.host.kubeconfig)


@pytest_asyncio.fixture(loop_scope="session")
async def ns(rig: Rig, host: Kubectl, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """A namespace for one test; nothing of it may be left anywhere afterwards."""
    # Another one for each try: what a failed one left may still be on its way out.
    name = f"{request.node.name.replace('_', '-').split('[')[0][:50].strip('-')}-{secrets.token_hex(2)}"
    await host("create", "namespace", name)
    yield name
    await host("delete", "namespace", name, timeout=120)
    for cluster in rig.clients:
        assert await rig.get(cluster, NAMESPACES, "", name) is None


async def until(condition: Callable[[], Awaitable[Any]], what: str, timeout: float = 30) -> Any:
    """Wait until the condition holds and return what it gave."""
    try:
        async with asyncio.timeout(timeout):
            while not (value := await condition()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            return value
    except TimeoutError:
        raise AssertionError(f"not within {timeout} s: {what}") from None


async def pin(rig: Rig, ns: str, *members: str) -> None:
    """All workloads of the namespace go to these members."""
    spec = {"priority": 100, "clusterNames": list(members), "resourceSelectors": [{"namespace": ns}]}
    await rig.clients[""].create(POLICIES, None, {
        "apiVersion": "reclock.dev/v1alpha1", "kind": "PlacementPolicy", "metadata": {"name": ns}, "spec": spec,
    })  # fmt: skip


def job(name: str, ns: str, run_time: str = "1s", **spec: Any) -> Obj:
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "busybox"}]}
    template = {"metadata": {"annotations": {"fleet.reclock.dev/run-time": run_time}}, "spec": pod}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": ns},
            "spec": {"template": template, **spec}}  # fmt: skip


async def home(rig: Rig, ns: str, name: str, resource: Resource = JOBS) -> str:
    """The member that has the copy."""
    async def found() -> str:
        return next((m for m, n in (await rig.count(resource, ns, fieldSelector=f"metadata.name={name}")).items() if n), "")

    return str(await until(found, f"a copy of {name}"))


def is_true(obj: Obj | None, kind: str) -> bool:
    conditions = ((obj or {}).get("status") or {}).get("conditions") or []
    return any(c["type"] == kind and c["status"] == "True" for c in conditions)


async def spread(rig: Rig, ns: str) -> dict[str, int]:
    """Member -> pods that are there and stay."""
    found = {}
    for member in rig.fleet.members:
        pods = await rig.list(member, PODS, ns)
        found[member] = sum(1 for pod in pods if "deletionTimestamp" not in pod["metadata"])
    return found


async def spread_of(rig: Rig, ns: str, selector: str) -> dict[str, int]:
    found = {}
    for member in rig.fleet.members:
        pods = await rig.list(member, PODS, ns, labelSelector=selector)
        found[member] = sum(1 for pod in pods if "deletionTimestamp" not in pod["metadata"])
    return found
