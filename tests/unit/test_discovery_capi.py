"""Provider `cluster-api` on a fake management cluster: it takes the Cluster and its Secret."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from kube_collection import Collection, CollectionFake
from kube_fake import eventually
from provider_world import World, running
from test_discovery_secrets import secret

from services.discovery.config import ClusterApiProvider
from services.discovery.providers.make import make

ID = "cluster-api"


def value(name: str, token: str = "t") -> dict[str, str]:
    """Data of a Cluster's Secret."""
    return {"value": secret(name, token)["kubeconfig"]}


class Management:
    """A management cluster whose Cluster API serves two versions."""

    def __init__(self) -> None:
        self.clusters = Collection("/apis/cluster.x-k8s.io/v1beta2", "clusters", "Cluster")
        self.secrets = Collection("/api/v1", "secrets", "Secret")
        self.kube = CollectionFake(self.clusters, self.secrets)
        self.installed = True
        self.kube.extra_routes.append(web.get("/apis/cluster.x-k8s.io", self._group))

    async def _group(self, request: web.Request) -> web.Response:
        if not self.installed:
            return web.Response(status=404)
        versions = [{"version": version} for version in ("v1beta1", "v1beta2")]
        return web.json_response({"kind": "APIGroup", "versions": versions, "preferredVersion": versions[1]})

    def add(self, namespace: str, name: str) -> None:
        self.clusters.put(namespace, name)
        self.secrets.put(namespace, f"{name}-kubeconfig", data=value(name))

    @asynccontextmanager
    async def running(self, tmp_path: Path, **settings: Any) -> AsyncIterator[World]:
        world = World(ID)
        file = tmp_path / "management"
        async with self.kube as kube:
            file.write_text(json.dumps(kube.kubeconfig()))
            settings["kubeconfig"] = str(file)
            async with running(make(ID, ClusterApiProvider(**settings), None, world.holders), world):
                yield world

    def fetched(self) -> list[str]:
        """Secrets that were read one by one."""
        paths = [path for _, path in self.kube.requests if "/secrets/" in path]
        return [path.rpartition("/")[2] for path in paths]


async def test_cluster_and_secret_make_a_cluster(tmp_path: Path) -> None:
    management = Management()
    management.add("prod", "east")
    management.clusters.put("prod", "bare")
    management.secrets.put("prod", "stray-kubeconfig", data=value("stray"))
    management.secrets.put("prod", "password", data={"value": "eA=="})
    async with management.running(tmp_path) as world:
        await eventually(lambda: world.names == {"prod-east"})
        assert world.registry.records["prod-east"].source == "Cluster prod/east#east-kubeconfig"
        assert world.problems == ""
        management.secrets.put("prod", "bare-kubeconfig", data=value("bare"))
        await eventually(lambda: world.names == {"prod-east", "prod-bare"})
        management.secrets.put("prod", "east-kubeconfig", data=value("east", "rotated"))
        await eventually(lambda: world.token("prod-east") == "rotated")
        management.clusters.remove("prod", "east")
        await eventually(lambda: world.names == {"prod-bare"})
        management.secrets.put("prod", "bare-kubeconfig", data={})
        await eventually(lambda: world.names == set())
        management.secrets.put("prod", "bare-kubeconfig", data=value("bare"))
        await eventually(lambda: world.names == {"prod-bare"})
        management.secrets.remove("prod", "bare-kubeconfig")
        await eventually(lambda: world.names == set())
    assert set(management.fetched()) == {"east-kubeconfig", "bare-kubeconfig"}


async def test_status_changes_cause_no_reads(tmp_path: Path) -> None:
    management = Management()
    management.add("prod", "east")
    async with management.running(tmp_path) as world:
        await eventually(lambda: world.names == {"prod-east"})
        for _ in range(3):
            management.clusters.put("prod", "east", status={"phase": "Provisioned"})
        management.add("prod", "west")
        await eventually(lambda: world.names == {"prod-east", "prod-west"})
    assert management.fetched().count("east-kubeconfig") == 1


async def test_names_that_fall_together(tmp_path: Path) -> None:
    management = Management()
    management.add("a-b", "c")
    management.add("a", "b-c")
    async with management.running(tmp_path) as world:
        await eventually(lambda: len(world.names) == 2)
        assert "a-b-c" in world.names
        assert "the name 'a-b-c' is taken by Cluster" in world.problems


async def test_a_bad_or_unreadable_secret_keeps_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.discovery.providers.objects.LOOK", 0.05)
    management = Management()
    management.add("prod", "east")
    async with management.running(tmp_path, namespace="prod") as world:
        await eventually(lambda: world.names == {"prod-east"})
        management.secrets.put("prod", "east-kubeconfig", data={"value": "***"})
        await eventually(lambda: "value is no base64" in world.problem("prod-east"))
        management.secrets.gets_broken = True
        management.secrets.put("prod", "east-kubeconfig", data=value("east", "fresh"))
        await eventually(lambda: "cannot be read: " in world.problem("prod-east"))
        assert world.token("prod-east") == "t"
        # It is tried again without another event.
        management.secrets.gets_broken = False
        await eventually(lambda: world.token("prod-east") == "fresh")
        assert world.problems == ""


async def test_cluster_api_may_be_installed_later(tmp_path: Path) -> None:
    management = Management()
    management.installed = False
    management.add("prod", "east")
    async with management.running(tmp_path) as world:
        await eventually(lambda: "Cluster API is not installed there" in world.problems)
        assert not world.registry.hub.complete.is_set()
        management.installed = True
        await eventually(lambda: world.names == {"prod-east"})
