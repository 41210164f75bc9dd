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
from services.common.kube.resource import CLUSTERS, EVENTS, LEASES, PODS
from services.reconciler.names import CONFIGMAPS, FENCED, JOBS, STATEFULSETS
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



async def test_what_must_not_run_twice_stops_on_a_lost_cluster_before_it_starts_elsewhere(
    rig: CutRig, host: Callable[..., Kubectl], ns: str
) -> None:
    await rig.clients[""].create(CONFIGMAPS, ns, {"metadata": {"name": "settings"}, "data": {"a": "b"}})
    await policy(rig, ns, clusterNames=["east"])
    for name in ("db", "stays"):
        await rig.clients[""].create(STATEFULSETS, ns, database(name, ns))
    await rig.clients[""].create(JOBS, ns, once(job("once", ns)))
    for name in ("db", "stays"):
        await running(rig, "east", ns, name, 2)

    async def fences() -> bool:
        lease = await rig.get("", LEASES, "kube-system", "reclock-worker-east")
        return lease is not None and lease["metadata"]["annotations"]["reclock.dev/fences"] == "true"

    await until(fences, "the worker has said that it fences")

    # A cut that is over in time: nothing is stopped.
    for link in rig.links:
        link.cut()
    await asyncio.sleep(LOST / 4)
    for link in rig.links:
        link.mend()
    await asyncio.sleep(LOST)
    copies = await rig.list("east", STATEFULSETS, ns)
    assert [copy["spec"]["replicas"] for copy in copies] == [2, 2]
    assert not any(FENCED in copy["metadata"]["annotations"] for copy in copies)

    # A cut that is longer. `db` may go to west, `stays` may not; everybody is killed once meanwhile.
    await rig.clients[""].create(POLICIES, None, {
        "apiVersion": "reclock.dev/v1alpha1", "kind": "PlacementPolicy", "metadata": {"name": f"{ns}-db"},
        "spec": {"priority": 200, "clusterNames": ["east", "west"],
                 "resourceSelectors": [{"namespace": ns, "kind": "StatefulSet", "name": "db"}]},
    })  # fmt: skip
    watch = asyncio.create_task(Twice(rig, ns, "db").run())
    for link in rig.links:
        link.cut()
    # Its kubeconfig leads to another cluster meanwhile (west's is at hand): that one is not taken for it.
    mine = rig.members / "east.yaml"
    kubeconfig = mine.read_text()
    mine.write_text(misleading(kubeconfig, (rig.members / "west.yaml").read_text()))

    async def reason() -> str:
        found = await rig.get("", CLUSTERS, "", "east")
        conditions = (found or {})["status"]["conditions"]
        return next(c["reason"] for c in conditions if c["type"] == "Configured")

    async def waits() -> bool:
        return await reason() == "AnotherCluster"

    try:
        await until(waits, "another cluster waits for the name")
        await rig.processes["worker"].kill9()
        await rig.processes["worker"].start()
        await rig.processes["scheduler"].kill9()
        await rig.processes["scheduler"].start()

        async def stopped() -> bool:
            left = [pod for name in ("db", "stays") for pod in await rig.pods("east", ns, name)]
            return not left and (await rig.get("east", JOBS, ns, "once") or {})["spec"].get("suspend") is True

        await until(stopped, "the worker has stopped what must not run twice")
        assert (await rig.placed(ns, "statefulset-stays")) in ({"east": 2}, None)
        events = await rig.list("east", EVENTS, ns)
        assert {e["involvedObject"]["name"] for e in events if e["reason"] == "Fenced"} == {"db", "stays", "once"}
        await rig.processes["worker"].kill9()
        await rig.processes["worker"].start()
        await running(rig, "west", ns, "db", 2)
        assert not await rig.pods("east", ns, "db")
        # It may have left by then (rule 4), and west is not taken in under a second name.
        made = {copy["metadata"]["name"] for resource in (STATEFULSETS, JOBS) for copy in await rig.list("west", resource, ns)}
        assert made == {"db"}, "what stays, and the Job, are made nowhere under the name of their cluster"
    finally:
        mine.write_text(kubeconfig)
        for link in rig.links:
            link.mend()

    # Back: what has moved is removed, what has not runs again.
    async def settled() -> bool:
        return await rig.get("east", STATEFULSETS, ns, "db") is None

    await until(settled, "the old copy is removed")
    await running(rig, "east", ns, "stays", 2)
    await running(rig, "west", ns, "db", 2)

    async def resumed() -> bool:
        found = await rig.get("east", JOBS, ns, "once")
        return found is not None and not found["spec"]["suspend"] and FENCED not in found["metadata"]["annotations"]

    await until(resumed, "the Job runs again")
    watch.cancel()
    result = (await asyncio.gather(watch, return_exceptions=True))[0]
    assert isinstance(result, asyncio.CancelledError), result
    await rig.clients[""].delete(POLICIES, None, f"{ns}-db")


def misleading(kubeconfig: str, other: str) -> str:
    """A kubeconfig of the same names that leads to the cluster of another one."""
    changed, found = yaml.safe_load(kubeconfig), yaml.safe_load(other)
    for section, key in (("clusters", "cluster"), ("users", "user")):
        changed[section][0][key] = found[section][0][key]
    return yaml.safe_dump(changed)


class Twice:
    """Looks at the pods of both members, again and again; fails when both have some that run."""

    def __init__(self, rig: CutRig, ns: str, name: str) -> None:
        self._rig, self._ns, self._name = rig, ns, name

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            # The new place first: what is seen there must have stopped in the old one before.
            new = await self._rig.pods("west", self._ns, self._name)
            old = await self._rig.pods("east", self._ns, self._name)
            assert not (new and old), "it runs twice"
            await asyncio.sleep(0.05)


def once(made: Obj) -> Obj:
    made["metadata"]["annotations"] = {"reclock.dev/at-most-once": "true"}
    return made
