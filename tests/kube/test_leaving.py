"""Clusters whose provider drops them (rule 9), and clusters that are cut off (rule 4, what must not run twice), on real
clusters with short time-outs. `east` is reached through links that can be cut; the worker beside it is not."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
import yaml

from deploy.local.fleet import Fleet
from deploy.local.probes import http_ready
from deploy.local.process import Process
from services.common.kube.resource import CLUSTERS, PODS
from services.reconciler.names import CONFIGMAPS, JOBS, STATEFULSETS
from services.scheduler.policy import POLICIES
from tests.kube.conftest import Kubectl
from tests.kube.cut import Link
from tests.kube.reconciler_rig import CHECKOUT, Obj
from tests.kube.test_placement import PlacementRig, host, job, ns, policy, until

__all__ = ["host", "ns"]

LOST = 10
"""Seconds of workerLostTimeout: a worker without contact fences after half of it."""


class CutRig(PlacementRig):
    """Discovery, manager and reconciler reach east, and the worker beside it, through links."""

    def __init__(self, fleet: Fleet, directory: Path) -> None:
        super().__init__(fleet, directory)
        self.members = directory / "members"
        self.members.mkdir()
        self.links: list[Link] = []
        self.worker_port, self.worker_link = self.ports.take(), self.ports.take()
        for name, member in fleet.members.items():
            config = yaml.safe_load(member.kubeconfig.read_text())
            server = config["clusters"][0]["cluster"]
            if name == "east":
                link = Link("127.0.0.1", urlsplit(server["server"]).port or 0, self.ports.take())
                server["server"] = f"https://127.0.0.1:{link.port}"
                self.links.append(link)
            (self.members / f"{name}.yaml").write_text(yaml.safe_dump(config))
        self.links.append(Link("127.0.0.1", self.worker_port, self.worker_link))

    def _service(self, name: str, grpc: int, config: Obj) -> None:
        if name == "discovery":
            config = {**config, "providers": [{"type": "kubeconfig-file", "paths": [str(self.members)]}]}
        elif name == "scheduler":
            http = self.ports.take()
            workers = {"east": f"127.0.0.1:{self.worker_link}"}
            config = {**config, "workers": workers, "leaseSeconds": 3, "workerLostTimeout": LOST,
                      "stateFile": str(self.directory / "scheduler.fleet")}  # fmt: skip
            path = self.directory / "worker.yaml"
            path.write_text(yaml.safe_dump({
                "role": "worker", "cluster": "east", "grpcAddress": f"127.0.0.1:{self.worker_port}",
                "httpAddress": f"127.0.0.1:{http}",
                "member": {"kubeconfig": str(self.fleet.members["east"].kubeconfig)},
            }))  # fmt: skip
            self.processes["worker"] = Process(
                "worker", [sys.executable, "-m", "services.scheduler", "--config", str(path)],
                log=self.directory / "worker.log", cwd=CHECKOUT, ready=http_ready(f"http://127.0.0.1:{http}/readyz"),
            )  # fmt: skip
        else:
            config = {**config, "workerLostTimeout": LOST, "stateFile": str(self.directory / "reconciler.fleet")}
        super(PlacementRig, self)._service(name, grpc, config)

    async def pods(self, member: str, ns: str, name: str) -> list[Obj]:
        """Pods of a StatefulSet on a member."""
        return await self.list(member, PODS, ns, labelSelector=f"app={name}")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def rig(clusters: Fleet, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CutRig]:
    made = CutRig(clusters, tmp_path_factory.mktemp("leaving"))
    for link in made.links:
        await link.start()
    try:
        async with made.running():
            yield made
    finally:
        for link in made.links:
            await link.stop()


def database(name: str, ns: str, replicas: int = 2) -> Obj:
    container = {"name": "c", "image": "busybox", "envFrom": [{"configMapRef": {"name": "settings"}}]}
    spec = {
        "replicas": replicas, "serviceName": name, "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}},
    }  # fmt: skip
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name, "namespace": ns}, "spec": spec}


async def placed_on(rig: CutRig, ns: str, workload: str) -> str:
    placement = await until(lambda: rig.placed(ns, workload), f"placement of {workload}")
    return str(next(iter(placement)))


async def running(rig: CutRig, member: str, ns: str, name: str, count: int) -> None:
    async def are() -> bool:
        pods = await rig.pods(member, ns, name)
        return sum(1 for pod in pods if pod["status"].get("phase") == "Running") == count

    await until(are, f"{count} pods of {name} on {member}")


async def test_a_removed_cluster_is_emptied_before_its_credentials_go(
    rig: CutRig, host: Callable[..., Kubectl], ns: str
) -> None:
    await rig.clients[""].create(CONFIGMAPS, ns, {"metadata": {"name": "settings"}, "data": {"a": "b"}})
    await rig.clients[""].create(STATEFULSETS, ns, database("db", ns))
    home = await placed_on(rig, ns, "statefulset-db")
    other = "west" if home == "east" else "east"
    await policy(rig, ns, clusterNames=[home])
    await rig.clients[""].create(JOBS, ns, job("done", ns, "1s"))
    await running(rig, home, ns, "db", 2)

    async def finished() -> bool:
        return (await rig.condition(ns, "job-done", "Finished")).get("status") == "True"

    await until(finished, "the Job has finished")
    before = {pod["metadata"]["uid"] for pod in await rig.pods(home, ns, "db")}
    file = rig.members / f"{home}.yaml"
    kubeconfig = file.read_text()

    async def leaving() -> bool:
        found = await rig.get("", CLUSTERS, "", home)
        return found is not None and "leavingSince" in found["status"]

    # Away for a moment: nothing happens to what runs there.
    file.unlink()
    await until(leaving, "it is leaving")
    await asyncio.sleep(LOST / 4)
    file.write_text(kubeconfig)

    async def back() -> bool:
        return not await leaving()

    await until(back, "it is back")
    await asyncio.sleep(LOST)
    assert {pod["metadata"]["uid"] for pod in await rig.pods(home, ns, "db")} == before
    assert await rig.placed(ns, "statefulset-db") == {home: 2}

    # Away for good, and everything that has a part in it is killed meanwhile.
    await rig.clients[""].patch(POLICIES, None, ns, {"spec": {"clusterNames": [home, other]}})
    file.unlink()
    await until(leaving, "it is leaving")
    for name in ("discovery", "scheduler", "reconciler"):
        await rig.processes[name].kill9()
    for name in ("discovery", "scheduler", "reconciler"):
        await rig.processes[name].start()
    await running(rig, other, ns, "db", 2)
    origin = "reclock.dev/origin"

    async def gone() -> bool:
        return await rig.get("", CLUSTERS, "", home) is None

    await until(gone, "it has left", 60)
    for resource in (STATEFULSETS, JOBS, CONFIGMAPS):
        assert not await rig.list(home, resource, None, labelSelector=origin)
    assert await rig.get("", JOBS, ns, "done"), "the host's Job stays as it ended"
    file.write_text(kubeconfig)
    await until(back, "it joins again")

