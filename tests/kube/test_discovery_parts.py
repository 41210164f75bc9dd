"""Providers `namespace` and `cluster-inventory` on real clusters: what their clients see, and what they do not."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from deploy.local.fleet import Fleet
from services.common.errors import StatusError
from services.common.fleet import FleetWatcher
from services.common.kube.client import KubeClient
from services.common.kube.informer import Informer
from services.common.kube.resource import CRDS, NAMESPACES, NODES, PODS, Resource
from services.discovery.config import DiscoveryConfig
from services.discovery.service import DiscoveryService
from tests.kube.conftest import Kubectl
from tests.kube.test_discovery import CONFIG_MAPS, eventually

CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: clusterprofiles.multicluster.x-k8s.io, annotations: {api-approved.kubernetes.io: unapproved}}
spec:
  group: multicluster.x-k8s.io
  scope: Namespaced
  names: {kind: ClusterProfile, plural: clusterprofiles}
  versions:
  - name: v1alpha1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
"""
PLUGIN = """
import json, os
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])["spec"]["cluster"]
user = json.load(open(info["config"]["file"]))
assert info["server"] and info["certificate-authority-data"]
print(json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": user}))
"""


@pytest_asyncio.fixture(loop_scope="session")
async def parts(clusters: Fleet, kubectl: Callable[[Path], Kubectl], tmp_path: Path) -> AsyncIterator[FleetWatcher]:
    """Namespaces of `west` that are labelled, and ClusterProfiles on the host."""
    plugin = tmp_path / "plugin.py"
    plugin.write_text(PLUGIN)
    providers: list[dict[str, Any]] = [
        {"type": "namespace", "kubeconfig": str(clusters.members["west"].kubeconfig), "labelSelector": "fleet=parts"},
        {"type": "cluster-inventory", "kubeconfig": str(clusters.host.kubeconfig),
         "accessProviders": [{"name": "files", "exec": {"command": sys.executable, "args": [str(plugin)]}}]},
    ]  # fmt: skip
    host = kubectl(clusters.host.kubeconfig)
    await host("apply", "-f", "-", stdin=CRD)
    await host("wait", "--for=condition=Established", "crd/clusterprofiles.multicluster.x-k8s.io")
    service = DiscoveryService(DiscoveryConfig(grpc_address="127.0.0.1:0", http_address="", providers=providers))
    service.config.probe.interval = 0.3
    running = asyncio.create_task(service.run())
    await eventually(lambda: service._ready)
    watcher = FleetWatcher(service.grpc.bound)
    watching = asyncio.create_task(watcher.run())
    await eventually(watcher.synced.is_set)
    yield watcher
    watching.cancel()
    await asyncio.wait({watching})
    service.request_stop()
    assert await running == 0
    await host("delete", "crd", "clusterprofiles.multicluster.x-k8s.io")


def config_map(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


async def test_a_namespace_is_a_cluster_that_shows_only_itself(
    parts: FleetWatcher, clusters: Fleet, kubectl: Callable[[Path], Kubectl]
) -> None:
    west = kubectl(clusters.members["west"].kubeconfig)
    for name in ("team-a", "team-b"):
        await west("create", "namespace", name)
        await west("label", "namespace", name, "fleet=parts")
    await eventually(lambda: {m.name for m in parts.members.values() if m.ready} == {"team-a", "team-b"})
    a, b = parts.members["team-a"], parts.members["team-b"]
    assert a.uid == (await west.json("get", "namespace", "team-a"))["metadata"]["uid"] != b.uid
    one = a.client
    await one.create(CONFIG_MAPS, "team-a", config_map("mine"))
    await b.client.create(CONFIG_MAPS, "team-b", config_map("theirs"))
    listed = (await one.list(CONFIG_MAPS))["items"]
    assert {(item["metadata"]["namespace"], item["metadata"]["name"]) for item in listed} == {
        ("team-a", "mine"), ("team-a", "kube-root-ca.crt")
    }  # fmt: skip
    assert [item["metadata"]["name"] for item in (await one.list(NAMESPACES))["items"]] == ["team-a"]
    assert (await one.list(CONFIG_MAPS, "team-b"))["items"] == []
    for call in (
        one.list(NODES), one.list(CRDS), one.get(NODES, None, "west-n0"), one.get(CONFIG_MAPS, "team-b", "theirs"),
        one.get(NAMESPACES, None, "team-b"), one.create(CONFIG_MAPS, "team-b", config_map("intruder")),
        one.create(NAMESPACES, None, {"metadata": {"name": "new"}}), one.delete(NAMESPACES, None, "team-a"),
    ):  # fmt: skip
        with pytest.raises(StatusError) as caught:
            await call
        assert caught.value.code in (403, 404)
    types = (await one.request("GET", "/api/v1")).json()["resources"]
    assert {kind["name"] for kind in types if not kind["namespaced"]} == {"namespaces", "namespaces/status"}
    # A controller's watch over all namespaces is one over this cluster; over pods, in any form, too.
    seen: list[str] = []
    informer = Informer(one, CONFIG_MAPS, handler=lambda kind, obj, old: seen.append(f"{kind} {obj['metadata']['name']}"))
    running = asyncio.create_task(informer.run())
    await eventually(informer.synced.is_set)
    await b.client.create(CONFIG_MAPS, "team-b", config_map("unseen"))
    await one.create(CONFIG_MAPS, "team-a", config_map("seen"))
    await eventually(lambda: "ADDED seen" in seen)
    assert "ADDED unseen" not in seen
    running.cancel()
    accept = "application/json;as=Table;g=meta.k8s.io;v=v1"
    assert (await one.request("GET", PODS.path(), headers={"Accept": accept})).json()["kind"] == "Table"
    # The namespace goes, and is made anew: another cluster of that name.
    uid = a.uid
    await west("delete", "namespace", "team-a")
    await eventually(lambda: "team-a" not in parts.members)
    await west("create", "namespace", "team-a")
    await west("label", "namespace", "team-a", "fleet=parts")
    await eventually(lambda: "team-a" in parts.members and parts.members["team-a"].uid not in ("", uid))
    await west("delete", "namespace", "team-a", "team-b", "--wait=false")


async def test_cluster_profiles_with_a_plugin(parts: FleetWatcher, clusters: Fleet, tmp_path: Path) -> None:
    client = await KubeClient.connect(Path(clusters.members["east"].kubeconfig), name="east")
    single: Any = client._credentials.kubeconfig
    user = {
        to: base64.b64decode(single["users"][0]["user"][key]).decode()
        for key, to in (("client-certificate-data", "clientCertificateData"), ("client-key-data", "clientKeyData"))
    }
    (tmp_path / "user.json").write_text(json.dumps(user))
    cluster = single["clusters"][0]["cluster"]
    cluster = {**cluster, "extensions": [
        {"name": "client.authentication.k8s.io/exec", "extension": {"file": str(tmp_path / "user.json")}}
    ]}  # fmt: skip
    host = await KubeClient.connect(Path(clusters.host.kubeconfig), name="")
    profiles = Resource("multicluster.x-k8s.io", "v1alpha1", "clusterprofiles", "ClusterProfile")
    await host.create(profiles, "default", {
        "apiVersion": profiles.group_version, "kind": profiles.kind, "metadata": {"name": "east"},
        "status": {"accessProviders": [{"name": "files", "cluster": cluster}]},
    })  # fmt: skip
    await eventually(lambda: "default-east" in parts.members and parts.members["default-east"].ready)
    member = parts.members["default-east"]
    assert member.uid == (await client.get(NAMESPACES, None, "kube-system"))["metadata"]["uid"]
    assert (await member.client.list(NODES))["items"]
    await host.delete(profiles, "default", "east")
    await eventually(lambda: "default-east" not in parts.members)
    await client.close()
    await host.close()
