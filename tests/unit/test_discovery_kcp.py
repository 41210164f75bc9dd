"""Provider `kcp` on a server that serves one whole API for each path: simulated clusters, each a workspace."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from kcp_objects import crd, workspace
from kube_fake import eventually
from provider_world import World, running

from deploy.local.sim import World as Sims
from deploy.local.sim import server as sim_server
from deploy.local.sim.access import Credentials
from deploy.local.sim.cluster import Cluster
from deploy.local.sim.server import Server
from services.common.kube.client import KubeClient
from services.common.kube.informer import Informer
from services.common.kube.resource import Resource
from services.discovery.config import KcpProvider, Probe
from services.discovery.probe import Prober
from services.discovery.providers.make import make
from services.discovery.record import READY

CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
PATHS = ("root", "root:org", "root:org:team", "root:late")


def config_map(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}}


@pytest_asyncio.fixture
async def kcp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Server, Path]]:
    """Four workspaces, of which two are ready; and the kubeconfig of the root, as kcp writes it."""
    monkeypatch.setattr(sim_server, "PREFIX", "/clusters/")
    credentials = Credentials(tmp_path)
    sims = Sims(5, time.time)
    for path in PATHS:
        one = sims.add(path, authority=credentials.authority_pem, role="basic")
        one.create(crd("tenancy.kcp.io", "workspaces", "Workspace"))
        one.create(crd("core.kcp.io", "logicalclusters", "LogicalCluster"))
        sims.settle()
        one.create({"apiVersion": "core.kcp.io/v1alpha1", "kind": "LogicalCluster", "metadata": {"name": "cluster"}})
        one.create(config_map(f"of-{path.replace(':', '-')}"))
    sims.clusters["root"].create(workspace("org"))
    sims.clusters["root:org"].create(workspace("team"))
    sims.clusters["root"].create(workspace("late", "Initializing"))
    async with Server(sims, tls=credentials.tls(), home=tmp_path / "rootfs").serving() as server:
        file = tmp_path / "kubeconfig"
        file.write_text(json.dumps(credentials.access("root", server.url_of("root"), "admin").document()))
        yield server, file


def uid(cluster: Cluster) -> str:
    return str(cluster.get("logicalclusters.core.kcp.io", None, "cluster")["metadata"]["uid"])


async def test_each_workspace_is_a_cluster_that_shows_its_own_objects(kcp: tuple[Server, Path]) -> None:
    server, file = kcp
    world = World("kcp")
    prober = Prober(Probe(interval=0.1, timeout=5), world.registry.probed)
    world.registry.add_keeper(prober)
    sims = server.world.clusters

    def ready(*names: str) -> bool:
        return world.names == {*names} and all(record.is_true(READY) for record in world.registry.records.values())

    async with running(make("kcp", KcpProvider(kubeconfig=str(file), depth=2), None, world.holders), world):
        await eventually(lambda: ready("root-org", "root-org-team"))
        assert world.problems == ""
        for number, path in enumerate(("root:org", "root:org:team")):
            record = world.registry.records[path.replace(":", "-")]
            assert (record.server, record.uid) == (server.url_of(path), uid(sims[path]))
            assert record.found is not None
            client = await KubeClient.connect(record.found.kubeconfig, name=record.name)
            seen: list[str] = []

            def note(kind: str, obj: dict[str, Any], old: Any, seen: list[str] = seen) -> None:
                seen.append(f"{kind} {obj['metadata']['name']}")

            informer = Informer(client, CONFIG_MAPS, namespace="default", handler=note)
            following = asyncio.create_task(informer.run())
            await eventually(informer.synced.is_set)
            for other in PATHS:
                sims[other].create(config_map(f"n{number}-{other.replace(':', '-')}"))
            await eventually(lambda seen=seen, number=number: any(f" n{number}-" in line for line in seen))
            await asyncio.sleep(0.1)  # for another workspace's
            assert [line for line in seen if f" n{number}-" in line] == [f"ADDED n{number}-{record.name}"]
            following.cancel()
            await asyncio.wait({following})
            await client.close()
        # One that is initialised joins; one that goes takes its children along.
        late = sims["root"].get("workspaces.tenancy.kcp.io", None, "late")
        sims["root"].replace({**late, "status": {"phase": "Ready"}})
        await eventually(lambda: ready("root-late", "root-org", "root-org-team"))
        sims["root"].delete("workspaces.tenancy.kcp.io", None, "org")
        await eventually(lambda: ready("root-late"))
    await prober.close()
