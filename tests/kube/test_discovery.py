"""Discovery on real clusters: `Cluster` objects, what operators set, joins and leaves, losses, restarts."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from deploy.local.fleet import Fleet
from services.common.fleet import FleetWatcher, Member
from services.common.kube.client import KubeClient
from services.common.kube.informer import Informer
from services.common.kube.resource import NAMESPACES, Resource
from services.common.service import Service
from services.discovery.config import DiscoveryConfig
from services.discovery.service import DiscoveryService

CRD = Path(__file__).parents[2] / "deploy/kustomize/base/crds/cluster.yaml"
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
LIMIT = 60.0


async def eventually(check: Callable[[], Any], limit: float = LIMIT) -> None:
    end = asyncio.get_running_loop().time() + limit
    while not check():
        assert asyncio.get_running_loop().time() < end, "did not come true in time"
        await asyncio.sleep(0.05)


class Listener:
    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    async def engaged(self, member: Member) -> None:
        self.told.append(("engaged", member.name))

    async def updated(self, member: Member, old: Member) -> None:
        self.told.append(("updated", member.name))

    async def disengaged(self, member: Member) -> None:
        self.told.append(("disengaged", member.name))


class Rig:
    """Discovery in this process, on the clusters of a fleet, with one folder of kubeconfigs."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self.fleet = fleet
        self.sources = folder / "clusters"
        self.sources.mkdir()
        self.config = DiscoveryConfig(
            grpc_address="127.0.0.1:0", http_address="",
            providers=[{"type": "kubeconfig-file", "paths": [str(self.sources)]}],
        )  # fmt: skip
        self.config.host.kubeconfig = str(fleet.host.kubeconfig)
        self.config.probe.interval = 0.3
        self.service: Service[DiscoveryConfig] | None = None
        self._task: asyncio.Task[int] | None = None
        self.listener = Listener()
        self._watch: asyncio.Task[None] | None = None

    def add(self, name: str, source: str = "") -> None:
        fresh = self.sources.parent / f"{name}.fresh"
        shutil.copy(self.fleet.members[source or name].kubeconfig, fresh)
        fresh.rename(self.sources / f"{name}.kubeconfig")

    def remove(self, name: str) -> None:
        (self.sources / f"{name}.kubeconfig").unlink()

    async def start(self) -> None:
        self.service = DiscoveryService(self.config)
        self._task = asyncio.create_task(self.service.run())
        await eventually(lambda: self.service is not None and self.service._ready)
        self.config.grpc_address = self.service.grpc.bound

    async def stop(self) -> None:
        if self.service is not None and self._task is not None:
            self.service.request_stop()
            assert await self._task == 0
            self.service = None

    async def watch(self) -> FleetWatcher:
        watcher = FleetWatcher(self.config.grpc_address)
        watcher.subscribe(self.listener)
        self._watch = asyncio.create_task(watcher.run())
        await eventually(watcher.synced.is_set)
        return watcher

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait({self._watch})
        await self.stop()


@asynccontextmanager
async def discovering(clusters: Fleet, on_host: Any, folder: Path, *names: str) -> AsyncIterator[Rig]:
    """A rig that has found those members."""
    await on_host("apply", "-f", str(CRD))
    await on_host("wait", "--for=condition=Established", "crd/clusters.reclock.dev")
    # Discovery keeps clusters that the host knows: another test's would be the same clusters under other names.
    await on_host("delete", "clusters", "--all")
    made = Rig(clusters, folder)
    for name in names:
        made.add(name)
    await made.start()
    yield made
    await made.close()
    await on_host("delete", "clusters", "--all")


@pytest_asyncio.fixture(loop_scope="session")
async def rig(clusters: Fleet, on_host: Any, tmp_path: Path) -> AsyncIterator[Rig]:
    async with discovering(clusters, on_host, tmp_path, "east", "west") as made:
        yield made


@pytest.fixture
def on_host(clusters: Fleet, kubectl: Any) -> Any:
    return kubectl(clusters.host.kubeconfig)


async def test_clusters_are_shown_on_the_host(rig: Rig, on_host: Any) -> None:
    table = await on_host.until(
        "get", "clusters", is_so=lambda out: out.count("True") == 4 and out.count("v1.") == 2
    )
    assert table.split()[:5] == ["NAME", "REACHABLE", "READY", "VERSION", "LATENCY"]
    east = await on_host.json("get", "cluster", "east")
    assert {c["type"]: c["status"] for c in east["status"]["conditions"]} == {
        "Configured": "True", "Reachable": "True", "Ready": "True",
    }  # fmt: skip
    member = await KubeClient.connect(rig.fleet.members["east"].kubeconfig, name="east")
    system = await member.get(NAMESPACES, None, "kube-system")
    assert east["status"]["uid"] == system["metadata"]["uid"]
    await member.close()
    refused = await on_host.run(
        "patch", "cluster", "east", "--type=merge", "-p",
        '{"spec":{"taints":[{"key":"a","effect":"Nonsense"}]}}',
    )  # fmt: skip
    assert refused.code != 0
    assert "NoSchedule" in refused.err


async def test_operators_labels_and_taints_reach_the_stream_and_stay(rig: Rig, on_host: Any) -> None:
    fleet = await rig.watch()
    await eventually(lambda: all(member.ready for member in fleet.members.values()))
    await on_host("label", "cluster", "east", "region=eu")
    taint = '{"spec":{"taints":[{"key":"reclock.dev/maintenance","effect":"NoSchedule"}]}}'
    await on_host("patch", "cluster", "east", "--type=merge", "-p", taint)
    east = fleet.members["east"]
    await eventually(lambda: east.labels == {"region": "eu"} and len(east.taints) == 1)
    assert (east.taints[0].key, east.taints[0].effect) == ("reclock.dev/maintenance", "NoSchedule")
    # Neither a restart of discovery nor a leave and return of the cluster loses them.
    await rig.stop()
    await rig.start()
    await eventually(lambda: fleet.last_error == "")
    assert east.labels == {"region": "eu"}
    assert ("disengaged", "east") not in rig.listener.told
    rig.remove("east")
    await on_host.until("get", "cluster", "east", "-o", "yaml", is_so=lambda out: "Removed" in out)
    await eventually(lambda: "east" not in fleet.members)
    rig.add("east")
    await eventually(lambda: "east" in fleet.members and fleet.members["east"].ready)
    assert fleet.members["east"].labels == {"region": "eu"}
    assert len(fleet.members["east"].taints) == 1


async def test_a_cluster_of_which_nothing_is_set_goes_with_its_context(rig: Rig, on_host: Any) -> None:
    await on_host.until("get", "clusters", is_so=lambda out: "west" in out)
    rig.remove("west")
    await on_host.until("get", "clusters", is_so=lambda out: "west" not in out)


async def test_a_deleted_object_is_made_again(rig: Rig, on_host: Any) -> None:
    await on_host.until("get", "clusters", is_so=lambda out: out.count("True") == 4)
    before = (await on_host.json("get", "cluster", "west"))["metadata"]["uid"]
    await on_host("delete", "cluster", "west")
    await on_host.until("get", "clusters", is_so=lambda out: out.count("True") == 4)
    after = await on_host.json("get", "cluster", "west")
    assert after["metadata"]["uid"] != before
    assert after["status"]["kubeVersion"]


async def test_members_are_usable_and_a_lost_one_comes_back(rig: Rig, on_host: Any) -> None:
    fleet = await rig.watch()
    east = fleet.members["east"]
    await eventually(lambda: east.ready and fleet.members["west"].ready)
    seen: list[tuple[str, str]] = []
    informer = Informer(
        east.client, CONFIG_MAPS, namespace="default",
        handler=lambda kind, obj, old: seen.append((kind, obj["metadata"]["name"])),
    )  # fmt: skip
    task = asyncio.create_task(informer.run())
    await eventually(informer.synced.is_set)
    apiserver = rig.fleet.processes["east-apiserver"]
    await apiserver.kill9()
    await eventually(lambda: not east.reachable)
    assert east.unreachable_since is not None
    lost_at = east.unreachable_since
    assert fleet.members["west"].ready
    await on_host.until("get", "cluster", "east", "-o", "yaml", is_so=lambda out: "unreachableSince" in out)
    # The time of the loss is kept over a restart of discovery.
    await rig.stop()
    await rig.start()
    await eventually(lambda: fleet.last_error == "")
    assert east.unreachable_since == lost_at
    await apiserver.start()
    await apiserver.wait_ready()
    await eventually(lambda: east.ready)
    assert east.unreachable_since is None
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "after"}}
    await east.client.create(CONFIG_MAPS, "default", body)
    await eventually(lambda: ("ADDED", "after") in seen)
    await east.client.delete(CONFIG_MAPS, "default", "after")
    await eventually(lambda: ("DELETED", "after") in seen)
    assert len([event for event in seen if event[1] == "kube-root-ca.crt"]) <= 1
    task.cancel()
    await asyncio.wait({task})


async def test_the_same_cluster_under_two_names_is_shown_once(rig: Rig, on_host: Any) -> None:
    fleet = await rig.watch()
    await eventually(lambda: fleet.members["west"].ready)
    rig.add("again", source="west")
    await on_host.until("get", "clusters", "-o", "wide", is_so=lambda out: "the same cluster as 'west'" in out)
    await eventually(lambda: set(fleet.members) == {"east", "west"})


async def test_status_of_a_quiet_fleet_is_not_written_again(rig: Rig, on_host: Any) -> None:
    await on_host.until("get", "clusters", is_so=lambda out: out.count("True") == 4)
    await asyncio.sleep(2)
    before = (await on_host.json("get", "cluster", "west"))["metadata"]["resourceVersion"]
    await asyncio.sleep(3)
    assert (await on_host.json("get", "cluster", "west"))["metadata"]["resourceVersion"] == before


async def test_registered_clusters_are_kept_on_the_host(rig: Rig, on_host: Any) -> None:
    from reclock.discovery.v1 import discovery_pb2 as pb
    from reclock.discovery.v1 import discovery_pb2_grpc
    from services.common.grpc import channel

    fleet = await rig.watch()
    rig.remove("west")
    await eventually(lambda: "west" not in fleet.members)
    data = await asyncio.to_thread(rig.fleet.members["west"].kubeconfig.read_bytes)
    async with channel(rig.config.grpc_address) as chan:
        stub = discovery_pb2_grpc.DiscoveryServiceStub(chan)
        await stub.RegisterCluster(pb.RegisterClusterRequest(name="byhand", kubeconfig=data, labels={"a": "b"}))
    await eventually(lambda: "byhand" in fleet.members and fleet.members["byhand"].ready)
    await on_host.until("get", "clusters", "-l", "a=b", is_so=lambda out: "byhand" in out)
    # The operator's value of a label wins, now and when the registration brings others.
    await on_host("label", "cluster", "byhand", "a=mine", "--overwrite")
    await eventually(lambda: fleet.members["byhand"].labels == {"a": "mine"})
    async with channel(rig.config.grpc_address) as chan:
        again = pb.RegisterClusterRequest(name="byhand", kubeconfig=data, labels={"a": "c", "d": "e"})
        await discovery_pb2_grpc.DiscoveryServiceStub(chan).RegisterCluster(again)
    await on_host.until("get", "clusters", "-l", "a=mine,d=e", is_so=lambda out: "byhand" in out)
    await eventually(lambda: fleet.members["byhand"].labels == {"a": "mine", "d": "e"})
    rig.listener.told.clear()
    await rig.stop()
    await rig.start()
    await eventually(lambda: fleet.last_error == "")
    assert fleet.members["byhand"].ready
    assert ("disengaged", "byhand") not in rig.listener.told
    async with channel(rig.config.grpc_address) as chan:
        stub = discovery_pb2_grpc.DiscoveryServiceStub(chan)
        await stub.DeregisterCluster(pb.DeregisterClusterRequest(name="byhand"))
    await eventually(lambda: "byhand" not in fleet.members)


async def test_labelled_secrets_of_the_host_are_clusters_beside_files(rig: Rig, on_host: Any) -> None:
    fleet = await rig.watch()
    await rig.stop()
    rig.remove("west")
    rig.config.providers.append({"type": "kubeconfig-secret", "namespace": "default"})
    file = rig.fleet.members["west"].kubeconfig
    await on_host("create", "secret", "generic", "from-secret", f"--from-file=kubeconfig={file}")
    try:
        await on_host("label", "secret", "from-secret", "sigs.k8s.io/multicluster-runtime-kubeconfig=true")
        await rig.start()
        await eventually(lambda: "from-secret" in fleet.members and fleet.members["from-secret"].ready)
        await on_host.until("get", "clusters", "-o", "wide", is_so=lambda out: "kubeconfig-secret" in out)
        assert set(fleet.members) == {"east", "from-secret"}
        # Half a kubeconfig: the last good one stays, with the reason.
        await on_host("patch", "secret", "from-secret", "-p", '{"stringData":{"kubeconfig":"clusters: ["}}')
        await on_host.until("get", "cluster", "from-secret", "-o", "yaml", is_so=lambda out: "is no YAML" in out)
        assert fleet.members["from-secret"].ready
        await on_host("label", "secret", "from-secret", "sigs.k8s.io/multicluster-runtime-kubeconfig-")
        await eventually(lambda: "from-secret" not in fleet.members)
    finally:
        await on_host("delete", "secret", "from-secret")


CAPI_CRD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": "clusters.cluster.x-k8s.io"},
    "spec": {
        "group": "cluster.x-k8s.io", "scope": "Namespaced",
        "names": {"kind": "Cluster", "plural": "clusters", "singular": "cluster"},
        "versions": [
            {"name": name, "served": True, "storage": name == "v1beta2", "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": True}}}
            for name in ("v1beta1", "v1beta2")
        ],
    },
}  # fmt: skip


async def test_clusters_of_cluster_api(rig: Rig, on_host: Any) -> None:
    fleet = await rig.watch()
    await rig.stop()
    rig.remove("west")
    rig.config.providers.append({"type": "cluster-api"})
    file = rig.fleet.members["west"].kubeconfig
    made = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": {"name": "west"}}
    await on_host("apply", "-f", "-", stdin=json.dumps(CAPI_CRD))
    try:
        await on_host("wait", "--for=condition=Established", "crd/clusters.cluster.x-k8s.io")
        await on_host("create", "secret", "generic", "west-kubeconfig", f"--from-file=value={file}")
        await rig.start()
        await eventually(lambda: "east" in fleet.members and fleet.last_error == "")
        assert "default-west" not in fleet.members
        await on_host("apply", "-f", "-", stdin=json.dumps(made))
        await eventually(lambda: "default-west" in fleet.members and fleet.members["default-west"].ready)
        await on_host("delete", "clusters.cluster.x-k8s.io", "west")
        await eventually(lambda: "default-west" not in fleet.members)
    finally:
        await on_host("delete", "crd/clusters.cluster.x-k8s.io", "secret/west-kubeconfig", "--ignore-not-found")
