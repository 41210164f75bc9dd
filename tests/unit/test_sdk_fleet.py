"""Clients of any cluster, caches and indexes over clusters that come and go, against a fleet in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml
from sdk_tools import until

import reclock
from reclock import AlreadyExists, ApiError, Conflict, Fleet, NotFound, ReclockError, Unreachable
from reclock.testing import FakeFleet


def configmap(name: str, namespace: str = "n", data: str = "v", **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"k": data}}


def by_data(obj: dict[str, Any]) -> list[str]:
    return list(obj["data"].values())


@pytest.fixture
async def fake() -> AsyncIterator[FakeFleet]:
    async with FakeFleet("east", "west") as fleet:
        yield fleet


@pytest.fixture
async def fleet(fake: FakeFleet) -> AsyncIterator[Fleet]:
    async with Fleet.connect(fake.kubeconfig) as one:
        yield one


async def test_one_client_for_each_cluster_and_the_host(fake: FakeFleet, fleet: Fleet) -> None:
    east, host = fleet.cluster("east"), fleet.cluster("")
    made = await east.create(configmap("a"))
    assert made["metadata"]["uid"]
    await host.create(configmap("a", data="host"))
    assert (await east.get("v1/configmaps", "a", "n"))["data"] == {"k": "v"}
    assert (await fleet.host.get("v1/configmaps", "a", "n"))["data"] == {"k": "host"}
    assert await fleet.cluster("west").find("v1/configmaps", "a", "n") is None
    assert fleet.cluster("east") is east
    assert fake["east"].get("v1/configmaps", "a", "n") is not None


async def test_writes(fake: FakeFleet, fleet: Fleet) -> None:
    east = fleet.cluster("east")
    first = await east.create(configmap("a"))
    with pytest.raises(AlreadyExists) as caught:
        await east.create(configmap("a"))
    assert caught.value.code == 409 and caught.value.reason == "AlreadyExists"
    second = await east.apply(configmap("a", data="two"))
    assert second["data"] == {"k": "two"}
    with pytest.raises(Conflict):
        await east.update({**first, "data": {"k": "three"}})
    assert (await east.update({**second, "data": {"k": "three"}}))["data"] == {"k": "three"}
    await east.patch("v1/configmaps", "a", {"data": {"k": None, "l": "4"}}, "n")
    await east.patch("v1/configmaps", "a", [{"op": "add", "path": "/data/m", "value": "5"}], "n", type="json")
    await east.patch("v1/configmaps", "a", {"status": {"x": 1}}, "n", subresource="status")
    stored = await east.get("v1/configmaps", "a", "n")
    assert stored["data"] == {"l": "4", "m": "5"} and stored["status"] == {"x": 1}
    with pytest.raises(Conflict):
        await east.delete("v1/configmaps", "a", "n", uid="another")
    await east.delete("v1/configmaps", "a", "n", uid=stored["metadata"]["uid"])
    await east.delete("v1/configmaps", "a", "n")
    with pytest.raises(NotFound):
        await east.delete("v1/configmaps", "a", "n", missing_ok=False)
    managers = [path for method, path in fake.requests if method in ("POST", "PATCH", "PUT")]
    assert all("fieldManager=reclock-sdk" in path for path in managers)


async def test_lists_with_selectors_name_their_types(fake: FakeFleet, fleet: Fleet) -> None:
    for name, tier in (("a", "web"), ("b", "db"), ("c", "")):
        fake["east"].put(configmap(name, tier=tier) if tier else configmap(name))
    east = fleet.cluster("east")
    found = await east.list("v1/configmaps", labels="tier in (web, db),tier!=db")
    assert [(one["kind"], one["metadata"]["name"]) for one in found] == [("ConfigMap", "a")]
    assert len(await east.list("v1/configmaps", "n", fields="metadata.name=b")) == 1
    assert [one["metadata"]["name"] for one in await east.list("v1/configmaps", labels="!tier")] == ["c"]
    assert await east.list("v1/configmaps", "elsewhere") == []


async def test_errors_say_what_was_asked(fake: FakeFleet, fleet: Fleet) -> None:
    with pytest.raises(NotFound, match=r"GET /clusters/nowhere/api/v1/pods/a: clusters.*not found"):
        await fleet.cluster("nowhere").get("v1/pods", "a")
    fake["east"].broken = 503
    with pytest.raises(Unreachable, match="does not answer"):
        await fleet.cluster("east").list("v1/pods")
    fake["east"].broken = 418
    with pytest.raises(ApiError) as caught:
        await fleet.cluster("east").list("v1/pods")
    assert caught.value.code == 418
    with pytest.raises(ValueError, match="names no resource"):
        await fleet.cluster("east").list("pods")


async def test_a_front_that_is_away_is_unreachable() -> None:
    async with FakeFleet() as fake:
        kubeconfig = fake.kubeconfig
    async with Fleet.connect(kubeconfig) as fleet:
        with pytest.raises(Unreachable, match=r"GET /apis/reclock.dev"):
            await fleet.clusters()


async def test_kubeconfigs_that_cannot_be_used(tmp_path: Any) -> None:
    with pytest.raises(ReclockError, match="name one by KUBECONFIG"):
        await Fleet.connect(tmp_path / "none")
    path = tmp_path / "broken"
    path.write_text("apiVersion: v1\n")
    with pytest.raises(ReclockError, match="cannot be used"):
        await Fleet.connect(path)


async def test_a_kubeconfig_file_and_the_environment(fake: FakeFleet, tmp_path: Any, monkeypatch: Any) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(fake.kubeconfig))
    monkeypatch.setenv("KUBECONFIG", str(path))
    async with Fleet.connect() as fleet:
        assert [one.name for one in await fleet.clusters()] == ["east", "west"]
    monkeypatch.setenv("RECLOCK_FRONT", fake.url)
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")
    async with Fleet.connect() as fleet:
        assert [one.name for one in await fleet.clusters()] == ["east", "west"]


async def test_what_discovery_knows(fake: FakeFleet, fleet: Fleet) -> None:
    fake.join("north", provider="kind", ready=False, region="eu")
    north = await fleet.provider("north")
    assert (north.provider, north.labels, north.reachable) == ("kind", {"region": "eu"}, False)
    assert north.kube_version == "v1.34.4" and north.uid == "uid-of-north"
    assert [one.name for one in await fleet.clusters("region=eu")] == ["north"]
    with pytest.raises(NotFound):
        await fleet.provider("nowhere")


async def test_clusters_are_watched(fake: FakeFleet, fleet: Fleet) -> None:
    seen: list[tuple[str, str]] = []

    async def follow() -> None:
        async for change in fleet.watch_clusters():
            seen.append((change.type, change.cluster.name))

    task = asyncio.create_task(follow())
    await until(lambda: len(seen) == 2)
    fake.join("north")
    fake.join("north", region="eu")
    fake.leave("east")
    await until(lambda: len(seen) == 5)
    assert seen[2:] == [("JOINED", "north"), ("CHANGED", "north"), ("LEFT", "east")]
    task.cancel()
    await asyncio.wait({task})


async def test_a_watch_bridges_breaks_and_lost_history(fake: FakeFleet, fleet: Fleet) -> None:
    fake["east"].put(configmap("a"))
    fake["east"].put(configmap("b"))
    seen: list[tuple[str, str]] = []

    async def follow() -> None:
        async for change in fleet.cluster("east").watch("v1/configmaps"):
            seen.append((change.type, change.object["metadata"]["name"]))

    task = asyncio.create_task(follow())
    await until(lambda: len(seen) == 2)
    fake["east"].break_watches()
    fake["east"].put(configmap("a", data="changed"))
    await until(lambda: len(seen) == 3)
    fake["east"].broken = 503
    fake["east"].break_watches()
    fake["east"].delete("v1/configmaps", "b", "n")
    fake["east"].delete("v1/configmaps", "a", "n")
    fake["east"].put(configmap("a", data="another"))
    fake["east"].forget_history()
    fake["east"].broken = 0
    await until(lambda: len(seen) == 6)
    assert seen == [
        ("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a"),
        ("DELETED", "b"), ("DELETED", "a"), ("ADDED", "a"),
    ]  # fmt: skip
    task.cancel()
    await asyncio.wait({task})


async def test_a_cache_follows_clusters_that_join_and_leave(fake: FakeFleet, fleet: Fleet) -> None:
    fake["east"].put(configmap("a", data="x"))
    cache = fleet.cache("v1/configmaps", indexes={"by-data": by_data})
    await cache.synced()
    assert [(one.cluster, one.object["data"]["k"]) for one in fleet.query("by-data", "x")] == [("east", "x")]
    assert cache.get("east", "a", "n") is not None and cache.get("west", "a", "n") is None

    fake["west"].put(configmap("b", data="x"))
    await until(lambda: len(fleet.query("by-data", "x")) == 2)
    fake.join("north").put(configmap("c", data="x"))
    await until(lambda: [one.cluster for one in fleet.query("by-data", "x")] == ["east", "north", "west"])
    fake["west"].put(configmap("b", data="y"))
    await until(lambda: [one.cluster for one in fleet.query("by-data", "y")] == ["west"])
    fake.leave("east")
    await until(lambda: [one.cluster for one in fleet.query("by-data", "x")] == ["north"])
    assert {one.cluster for one in cache.list()} == {"north", "west"} and cache.list("east") == []


async def test_a_later_index_covers_what_is_there(fake: FakeFleet, fleet: Fleet) -> None:
    fake["east"].put(configmap("a", data="x"))
    cache = fleet.cache("v1/configmaps")
    await cache.synced()
    assert fleet.cache("v1/configmaps", indexes={"by-data": by_data}) is cache
    assert len(fleet.query("by-data", "x")) == 1
    with pytest.raises(ValueError, match="another function"):
        fleet.cache("v1/configmaps", indexes={"by-data": lambda obj: []})
    with pytest.raises(ValueError, match="index 'by-data' is of v1/configmaps"):
        fleet.cache("v1/secrets", indexes={"by-data": by_data})
    with pytest.raises(ValueError, match="other selectors"):
        fleet.cache("v1/configmaps", labels="a=b")
    with pytest.raises(KeyError, match="there are: by-data"):
        fleet.query("none", "x")


async def test_a_cluster_that_does_not_answer_delays_no_other(fake: FakeFleet, fleet: Fleet) -> None:
    fake["west"].broken = 503
    fake["east"].put(configmap("a"))
    cache = fleet.cache("v1/configmaps")
    await asyncio.wait_for(cache.synced(), 20)
    assert [one.cluster for one in cache.list()] == ["east"]
    assert set(cache.problems) == {"west"} and "does not answer" in cache.problems["west"]
    fake["west"].put(configmap("b"))
    fake["west"].broken = 0
    await until(lambda: len(cache.list()) == 2)
    assert not cache.problems


async def test_an_index_function_that_fails_hides_one_object_only(fake: FakeFleet, fleet: Fleet) -> None:
    broken = configmap("broken")
    del broken["data"]
    fake["east"].put(broken)
    fake["east"].put(configmap("fine", data="x"))
    cache = fleet.cache("v1/configmaps", indexes={"by-data": by_data})
    await cache.synced()
    assert len(cache.list()) == 2 and len(fleet.query("by-data", "x")) == 1


async def test_a_listener_that_fails_is_reported_and_the_cache_goes_on(
    fake: FakeFleet, fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    cache = fleet.cache("v1/configmaps")
    await cache.synced()
    seen: list[tuple[str, str, str]] = []

    def broken(cluster: str, change: object) -> None:
        raise KeyError("a bug")

    cache.listen(broken)
    cache.listen(lambda cluster, change: seen.append((cluster, change.type, change.object["metadata"]["name"])))
    fake["east"].put(configmap("a"))
    fake["east"].put(configmap("b"))
    fake["west"].put(configmap("c"))
    await until(lambda: len(seen) == 3 and len(cache.list()) == 3)
    fake.leave("east")
    await until(lambda: len(seen) == 5 and len(cache.list()) == 1)
    assert sum("a listener failed" in one.message for one in caplog.records) == 5
    assert not cache.problems


async def test_a_choice_of_clusters_that_fails_is_reported_and_leaves_them_as_they_are(
    fake: FakeFleet, fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    fake["east"].put(configmap("a"))

    def choose(info: reclock.ClusterInfo) -> bool:
        return bool(info.labels["region"]) if info.name != "east" or info.labels else True

    cache = fleet.cache("v1/configmaps", clusters=choose)
    await cache.synced()
    fake.join("north", region="eu").put(configmap("c"))
    await until(lambda: {one.cluster for one in cache.list()} == {"east", "north"})
    assert any("choosing clusters failed of west" in one.message for one in caplog.records)


async def test_a_cache_of_some_clusters(fake: FakeFleet, fleet: Fleet) -> None:
    fake.join("north", region="eu").put(configmap("c"))
    fake["east"].put(configmap("a"))

    def european(info: reclock.ClusterInfo) -> bool:
        return info.labels.get("region") == "eu"

    cache = fleet.cache("v1/configmaps", clusters=european)
    await cache.synced()
    assert [one.cluster for one in cache.list()] == ["north"]
    fake.join("east", region="eu")
    await until(lambda: {one.cluster for one in cache.list()} == {"east", "north"})
    fake.join("north")
    await until(lambda: {one.cluster for one in cache.list()} == {"east"})


async def test_typed_calls(fake: FakeFleet, fleet: Fleet) -> None:
    from kubernetes_asyncio.client import CoreV1Api

    fake["east"].put(configmap("a"))
    async with fleet.cluster("east").typed() as api:
        found = await CoreV1Api(api).read_namespaced_config_map("a", "n")
    assert found.data == {"k": "v"}


async def test_finalizers_of_the_fake(fake: FakeFleet, fleet: Fleet) -> None:
    east = fleet.cluster("east")
    held = configmap("a")
    held["metadata"]["finalizers"] = ["x/y"]
    fake["east"].put(held)
    await east.delete("v1/configmaps", "a", "n")
    marked = await east.get("v1/configmaps", "a", "n")
    assert marked["metadata"]["deletionTimestamp"]
    await east.patch("v1/configmaps", "a", {"metadata": {"finalizers": None}}, "n")
    assert await east.find("v1/configmaps", "a", "n") is None


async def test_nothing_is_left_behind(fake: FakeFleet) -> None:
    async with Fleet.connect(fake.kubeconfig) as fleet:
        await fleet.cache("v1/configmaps").synced()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("reclock")]
    with pytest.raises(ReclockError, match="closed"):
        fleet.cache("v1/secrets")
