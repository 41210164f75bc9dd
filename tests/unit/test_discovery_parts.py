"""Providers whose clusters are made of a server and its objects: namespaces, kcp's workspaces, ClusterProfiles."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from kube_collection import Collection, CollectionFake
from kube_fake import KubeFake, eventually, kubeconfig
from provider_world import World, running

from services.common.kube.client import KubeClient
from services.common.kube.kubeconfig import single
from services.common.kube.shape import Shape, shape_of, shaped
from services.discovery.config import (
    AccessProvider,
    ExecPlugin,
    InventoryProvider,
    KcpProvider,
    NamespaceProvider,
)
from services.discovery.hub import Hub
from services.discovery.probe import ProbeResult, probe
from services.discovery.providers import namespaces as namespaces_module
from services.discovery.providers.base import Reading, found
from services.discovery.providers.inventory import offers
from services.discovery.providers.kcp import IDENTITY
from services.discovery.providers.make import make
from services.discovery.record import Record
from services.discovery.registry import Registry


def shape(world: World, name: str) -> Shape:
    found = world.registry.records[name].found
    assert found is not None
    return shape_of(found.kubeconfig)


def write(path: Path, kube: KubeFake, server: str = "", **user: Any) -> str:
    config = kube.kubeconfig(**user)
    config["clusters"][0]["cluster"]["server"] += server
    path.with_suffix(".new").write_text(json.dumps(config))
    path.with_suffix(".new").rename(path)
    return str(path)


async def test_each_namespace_is_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces_module.NamespaceProviderTask, "reread", 0.2)
    spaces = Collection("/api/v1", "namespaces", "Namespace")
    for name in ("web", "db"):
        spaces.put("", name, labels={"fleet": "yes"})
    spaces.put("", "other")
    world = World("namespace")
    async with CollectionFake(spaces) as kube:
        file = write(tmp_path / "config", kube, token="first")
        settings = NamespaceProvider(kubeconfig=file, label_selector="fleet=yes")
        async with running(make("namespace", settings, None, world.holders), world):
            await eventually(lambda: world.names == {"web", "db"})
            assert (shape(world, "web"), shape(world, "db")) == (
                Shape(namespace="web", of=kube.uid), Shape(namespace="db", of=kube.uid),
            )  # fmt: skip
            assert world.registry.records["web"].source == "Namespace web#"
            assert world.registry.records["web"].provider_labels == {"reclock.dev/namespace": "web"}
            # Rotated credentials reach all of them; a half-written file keeps what there was.
            write(tmp_path / "config", kube, token="second")
            await eventually(lambda: world.token("web") == world.token("db") == "second")
            (tmp_path / "config").write_text('{"clusters": [')
            await eventually(lambda: "is no YAML" in world.problem("web"))
            assert world.token("web") == "second"
            write(tmp_path / "config", kube, token="second")
            await eventually(lambda: world.problem("web") == "")
            spaces.put("", "db", labels={})
            await eventually(lambda: world.names == {"web"})
            spaces.remove("", "web")
            await eventually(lambda: world.names == set())


async def test_a_part_of_a_server_is_told_by_its_own_object() -> None:
    async def space(request: web.Request) -> web.Response:
        return web.json_response({"kind": "Namespace", "metadata": {"name": "web", "uid": "uid-of-web"}})

    kube = KubeFake()
    kube.extra_routes = [web.get("/api/v1/namespaces/web", space)]
    async with kube:
        for part, uid, reason in (
            (Shape(namespace="web"), "uid-of-web", "ReadyzOk"), (Shape(), kube.uid, "ReadyzOk"),
            (Shape(namespace="gone"), "", "NoIdentity"),
        ):  # fmt: skip
            client = await KubeClient.connect(shaped(single(kube.kubeconfig()), part), name="x")
            result = await probe(client, 5)
            assert (result.uid, result.reason) == (uid, reason)
            await client.close()


class Kcp:
    """Workspaces: one collection per parent, at `/clusters/<path>`."""

    def __init__(self, *paths: str) -> None:
        self.of = {
            path: Collection(f"/clusters/{path}/apis/tenancy.kcp.io/v1alpha1", "workspaces", "Workspace")
            for path in paths
        }

    def put(self, path: str, phase: str = "Ready") -> None:
        parent, _, name = path.rpartition(":")
        self.of[parent].put("", name, status={"phase": phase})

    def remove(self, path: str) -> None:
        parent, _, name = path.rpartition(":")
        self.of[parent].remove("", name)


async def test_workspaces_come_and_go_at_any_depth(tmp_path: Path) -> None:
    kcp = Kcp("root", "root:org", "root:org:team", "root:late")
    kcp.put("root:org")
    kcp.put("root:org:team")
    kcp.put("root:late", "Initializing")
    world = World("kcp")
    async with CollectionFake(*kcp.of.values()) as kube:
        file = write(tmp_path / "config", kube, "/clusters/root", token="t")
        provider = make("kcp", KcpProvider(kubeconfig=file, depth=2), None, world.holders)
        async with running(provider, world):
            await eventually(lambda: world.names == {"root-org", "root-org-team"})
            assert world.server("root-org-team") == f"{kube.url}/clusters/root:org:team"
            assert shape(world, "root-org") == Shape(identity=IDENTITY)
            assert world.registry.records["root-org-team"].source == "Workspace root:org:team#"
            kcp.put("root:late")
            await eventually(lambda: "root-late" in world.names)
            # A workspace that cannot be listed any more keeps its children; one that is gone takes them along.
            kcp.of["root:org"].fail(500)
            await asyncio.sleep(0.3)
            assert "root-org-team" in world.names
            kcp.of["root:org"].fail(0)
            kcp.remove("root:org")
            await eventually(lambda: world.names == {"root-late"})
        assert not [task for task in asyncio.all_tasks() if "root" in task.get_name()]


async def test_children_that_cannot_be_listed_yet_stay_over_a_restart(tmp_path: Path, monkeypatch: Any) -> None:
    from services.discovery.providers import kcp as kcp_module

    monkeypatch.setattr(kcp_module, "FIRST", 0.2)
    kcp = Kcp("root", "root:org")
    kcp.put("root:org")
    kcp.put("root:org:team")
    kcp.of["root:org"].fail(403)
    world = World("kcp")
    world.registry.restore(Record("root-org-team", "kcp", "Workspace root:org:team#"))
    async with CollectionFake(*kcp.of.values()) as kube:
        file = write(tmp_path / "config", kube, token="t")
        async with running(make("kcp", KcpProvider(kubeconfig=file, depth=2), None, world.holders), world):
            await eventually(lambda: "root-org" in world.names)
            assert "root-org-team" in world.names
            assert "out of order" in world.problems
            kcp.of["root:org"].fail(0)
            await eventually(lambda: world.server("root-org-team").endswith("/clusters/root:org:team"))
            await eventually(lambda: world.problems == "")


def entry(name: str, server: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "cluster": {"server": server, **more}}


async def group(request: web.Request) -> web.Response:
    return web.json_response({"kind": "APIGroup", "preferredVersion": {"version": "v1alpha1"}})


async def test_cluster_profiles_with_their_access_providers(tmp_path: Path) -> None:
    profiles = Collection("/apis/multicluster.x-k8s.io/v1alpha1", "clusterprofiles", "ClusterProfile")
    config = {"name": "client.authentication.k8s.io/exec", "extension": {"clusterName": "east"}}
    profiles.put(
        "fleet", "east", labels={"region": "eu"},
        status={"accessProviders": [entry("other", "https://x"), entry("google", "https://east:1", extensions=[config])]},
    )  # fmt: skip
    profiles.put("fleet", "none", status={"accessProviders": []})
    profiles.put("fleet", "old", status={"credentialProviders": {"google": {"cluster": {"server": "https://old:1"}}}})
    profiles.put("fleet", "alien", status={"accessProviders": [entry("azure", "https://alien:1")]})
    kube = CollectionFake(profiles)
    kube.extra_routes.append(web.get("/apis/multicluster.x-k8s.io", group))
    world = World("cluster-inventory")
    plugin = ExecPlugin(command="/opt/plugin", args=["--a"], env={"B": "c"})
    async with kube:
        settings = InventoryProvider(
            kubeconfig=write(tmp_path / "hub", kube), access_providers=[AccessProvider(name="google", exec=plugin)]
        )
        async with running(make("cluster-inventory", settings, None, world.holders), world):
            await eventually(lambda: world.names == {"fleet-east", "fleet-old"})
            record = world.registry.records["fleet-east"]
            assert record.provider_labels == {"region": "eu"}
            assert record.found is not None
            cluster = record.found.kubeconfig["clusters"][0]["cluster"]
            assert cluster == {"server": "https://east:1", "extensions": [config]}
            assert record.found.kubeconfig["users"][0]["user"]["exec"] == {
                "apiVersion": "client.authentication.k8s.io/v1", "command": "/opt/plugin", "args": ["--a"],
                "env": [{"name": "B", "value": "c"}], "provideClusterInfo": True, "interactiveMode": "Never",
            }  # fmt: skip
            assert "none of its access providers is configured here: azure" in world.problems
            # What is bad keeps the last; without any access provider it has left.
            profiles.put("fleet", "east", status={"accessProviders": [entry("google", "ftp://east")]})
            await eventually(lambda: "no http(s) URL" in world.problem("fleet-east"))
            assert world.server("fleet-east") == "https://east:1"
            bad = entry("google", "https://east:2", **{"certificate-authority": "/etc/passwd"})
            profiles.put("fleet", "east", status={"accessProviders": [bad]})
            await eventually(lambda: "certificate-authority is not allowed here" in world.problem("fleet-east"))
            profiles.put("fleet", "east", status={})
            await eventually(lambda: world.names == {"fleet-old"})
            profiles.remove("fleet", "old")
            await eventually(lambda: world.names == set())


def test_a_whole_cluster_and_its_parts_are_not_both_members() -> None:
    """Their copies would be taken for each other's. The whole counts, whichever comes first."""
    registry = Registry(Hub(), ["whole", "parts"])
    config = single(kubeconfig("east", {"server": "https://east:1"}, {"token": "t"}))
    part = Reading((found("web", shaped(config, Shape(namespace="web", of="uid-1")), "Namespace web#"),))
    whole = ProbeResult(True, True, "ReadyzOk", uid="uid-1")
    registry.reading("parts", part)
    registry.probed("web", ProbeResult(True, True, "ReadyzOk", uid="uid-of-web"))
    assert registry.hub.get("web") is not None
    registry.reading("whole", Reading((found("east", config, "east"),)))
    registry.probed("east", whole)
    assert registry.hub.get("web") is None
    assert registry.hub.get("east") is not None
    assert registry.records["web"].conditions["Configured"].message == "this is a part of 'east' (uid uid-1); it is left out"
    registry.reading("whole", Reading(()))
    assert registry.hub.get("web") is not None
    # The other way round, and over a reading that says the same.
    registry = Registry(Hub(), ["whole", "parts"])
    registry.reading("whole", Reading((found("east", config, "east"),)))
    registry.probed("east", whole)
    for _ in range(2):
        registry.reading("parts", part)
        assert registry.hub.get("web") is None
    other = Reading((found("web", shaped(config, Shape(namespace="web", of="uid-2")), "Namespace web#"),))
    registry.reading("parts", other)
    assert registry.hub.get("web") is not None


def test_the_namespace_kube_system_is_not_its_whole_cluster() -> None:
    registry = Registry(Hub(), ["whole", "parts"])
    config = single(kubeconfig("east", {"server": "https://east:1"}, {"token": "t"}))
    names = ("kube-system", "web")
    parts = Reading(tuple(found(n, shaped(config, Shape(namespace=n, of="uid-1")), f"Namespace {n}#") for n in names))
    good = ProbeResult(True, True, "ReadyzOk")
    # As after a restart: what the sources say is not known yet.
    registry.restore(Record("kube-system", "parts", "Namespace kube-system#", uid="uid-1"))
    registry.reading("whole", Reading((found("east", config, "east"),)))
    registry.probed("east", replace(good, uid="uid-1"))
    registry.reading("parts", parts)
    registry.probed("kube-system", replace(good, uid="uid-1"))
    registry.probed("web", replace(good, uid="uid-of-web"))
    assert {name for name in (*names, "east") if registry.hub.get(name)} == {"east"}
    registry.reading("whole", Reading(()))
    assert {name for name in (*names, "east") if registry.hub.get(name)} == set(names)
    registry.reading("whole", Reading((found("east", config, "east"),)))
    registry.probed("east", replace(good, uid="uid-1"))
    assert {name for name in (*names, "east") if registry.hub.get(name)} == {"east"}


@pytest.mark.parametrize(("status", "names"), [
    ({}, []), ({"accessProviders": "x"}, []), ({"accessProviders": ["x", {"name": "a", "cluster": "y"}]}, ["a"]),
    ({"credentialProviders": {"a": "x", "b": None, "c": {"cluster": {"server": "https://c"}}}}, ["c"]),
    ({"credentialProviders": 5}, []),
])  # fmt: skip
def test_a_profile_of_another_shape_offers_nothing(status: dict[str, Any], names: list[str]) -> None:
    """Whatever a controller wrote there must not end the provider, and discovery with it."""
    offered = offers({"metadata": {"name": "p"}, "status": status})
    assert list(offered) == names and all(isinstance(cluster, dict) for cluster in offered.values())
