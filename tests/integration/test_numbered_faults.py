"""Faults that users reported of comparable systems, by the number that docs/faults.md gives them: through the front, on
simulated members and a real etcd. Those that are shown elsewhere are listed there too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from copy import deepcopy

import pytest
import pytest_asyncio

from services.aggregator.clock import feed
from services.aggregator.config import Limits
from services.aggregator.front import server as front_server
from services.aggregator.types import Aggregated
from tests.integration.clock_rig import PODS, eventually
from tests.integration.etcd_server import EtcdServer
from tests.integration.sim_rig import STREAM, SimRig, pod

WIDGETS = Aggregated("widgets", "example.com", "v1", "widgets", "Widget", True)
WIDGET_PATH = "/apis/example.com/v1/widgets"
WIDGET_TYPE = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
        "versions": [{
            "name": "v1", "served": True, "storage": True,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        }],
    },
}  # fmt: skip
BIGGEST = 1 << 53
"""JavaScript clients read numbers below it exactly."""


@pytest_asyncio.fixture
async def rig(etcd: EtcdServer) -> AsyncIterator[SimRig]:
    rig = SimRig(etcd, [PODS, WIDGETS])
    try:
        yield await rig.start(["east", "west"])
    finally:
        await rig.close()


async def away(rig: SimRig, name: str, how: str = "refuse") -> None:
    """A member stops answering, and discovery has noticed."""
    rig.misbehave(name, how)
    await rig.fleet.reachable(name, False)


async def back(rig: SimRig, name: str) -> None:
    rig.clusters[name].faults.lift()
    await rig.fleet.reachable(name, True)


def versions(told: list[dict[str, dict[str, str]]]) -> dict[str, str]:
    """name -> fleet version."""
    return {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in told}


async def test_fault_01_open_watches_see_a_cluster_that_recovers(rig: SimRig) -> None:
    east, west = rig.clusters["east"], rig.clusters["west"]
    east.create(pod("e"))
    west.create(pod("w"))
    await rig.settled()
    await away(rig, "west")
    async with rig.watch(**STREAM) as watched:
        await rig.streamed(watched)
        assert watched.names() == ["e"]
        west.create(pod("w2"))
        await back(rig, "west")
        await eventually(lambda: set(watched.names()) == {"e", "w", "w2"})
        assert not watched.ended


@pytest.mark.parametrize("how", ["refuse", "hang"])
async def test_fault_02_an_offline_member_does_not_hold_up_a_new_watch(rig: SimRig, how: str) -> None:
    rig.clusters["east"].create(pod("e"))
    await rig.settled()
    await away(rig, "west", how)
    async with rig.watch() as plain, rig.watch(**STREAM) as streamed:
        await rig.streamed(streamed)
        rig.clusters["east"].create(pod("e2"))
        await eventually(lambda: plain.names() == streamed.names() == ["e", "e2"])


@pytest.mark.parametrize("how", ["refuse", "error", "garbage"])
async def test_fault_03_one_failing_member_does_not_fail_the_list(rig: SimRig, how: str) -> None:
    """Discovery has noticed nothing yet."""
    rig.clusters["east"].create(pod("e"))
    rig.clusters["west"].create(pod("w"))
    await rig.settled()
    rig.misbehave("west", how, "list")
    told = await rig.get()
    assert (told.status, told.names) == (200, ["e"])
    assert "cluster west is left out" in told.warnings


async def test_fault_08_what_did_not_change_keeps_its_version_over_relists(rig: SimRig) -> None:
    east = rig.clusters["east"]
    for i in range(5):
        east.create(pod(f"p{i}"))
    await rig.settled()
    before = versions((await rig.get()).body["items"])
    async with rig.watch(**STREAM) as watched:
        await rig.streamed(watched)
        east.restart()  # its watch cache is empty: the feed must list
        east.create(pod("new"))
        await eventually(lambda: "new" in watched.names())
        after = versions((await rig.get()).body["items"])
        del after["new"]
        assert after == before
        assert sorted(watched.names()) == sorted([*before, "new"]), "clients are told of nothing else"


async def test_fault_09_versions_are_integers_everywhere(rig: SimRig) -> None:
    for name, cluster in rig.clusters.items():
        cluster.create(pod(name))
    await rig.settled()
    listed = await rig.get()
    table = await rig.get(accept="application/json;as=Table;g=meta.k8s.io;v=v1")
    partial = await rig.get(accept="application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")
    page = await rig.get(limit="1")
    one = await rig.get("/api/v1/namespaces/default/pods/east")
    found = [told.version for told in (listed, table, partial, page, one)]
    found += [item["metadata"]["resourceVersion"] for item in [*listed.body["items"], *partial.body["items"]]]
    found += [row["object"]["metadata"]["resourceVersion"] for row in table.body["rows"]]
    async with rig.watch(**STREAM) as watched:
        await rig.streamed(watched)
        rig.clusters["west"].delete("pods", "default", "west")
        await eventually(lambda: watched.names("DELETED"))
    found += [event["object"]["metadata"]["resourceVersion"] for event in watched.events]
    assert len(found) >= 13 and all(text.isdecimal() and 0 < int(text) < BIGGEST for text in found), found


async def test_fault_18_informers_catch_up_after_a_burst(rig: SimRig) -> None:
    """3,000 changes at once: every object's last state comes, and what waits for the clients is bounded."""
    async with rig.watch(**STREAM) as first, rig.watch(labelSelector="app=burst", **STREAM) as second:
        await rig.streamed(first)
        await rig.streamed(second)
        for name, cluster in rig.clusters.items():
            for i in range(500):
                cluster.create(pod(f"{name}-{i}", app="burst"))
            for turn in ("1", "2"):
                for i in range(500):
                    cluster.patch("pods", "default", f"{name}-{i}", {"metadata": {"labels": {"turn": turn}}})
        await rig.settled()
        head = (await rig.get(limit="1")).version
        for watched in (first, second):
            await eventually(lambda w=watched: len(w.names()) == 3000, f"{len(watched.names())} events", 30)
            numbers = [int(one["object"]["metadata"]["resourceVersion"]) for one in watched.events[1:]]
            assert numbers == sorted(set(numbers)) and numbers[-1] <= int(head)
        assert rig.of().sequencer is not None and rig.state("east") == rig.state("west") == ("Live", "")


async def test_fault_20_lists_under_churn_are_states_that_were(rig: SimRig) -> None:
    """Pods come in pairs on one member, the first before the second, and go the other way round: no list may show a
    second without its first, none an object twice; and a watch from a list leads to the present."""
    done = False

    async def churn() -> None:
        for turn in range(40):
            for name, cluster in rig.clusters.items():
                cluster.create(pod(f"{name}-{turn}-a"))
                cluster.create(pod(f"{name}-{turn}-b"))
                if turn > 5:
                    cluster.delete("pods", "default", f"{name}-{turn - 5}-b")
                    cluster.delete("pods", "default", f"{name}-{turn - 5}-a")
            await asyncio.sleep(0.01)

    async def lists() -> list[tuple[int, list[str]]]:
        found = []
        while not done:
            told = await rig.get()
            assert told.status == 200, told.body
            found.append((int(told.version), told.names))
        return found

    readers = [asyncio.create_task(lists()) for _ in range(3)]
    await churn()
    done = True
    for found in await asyncio.gather(*readers):
        assert [v for v, _ in found] == sorted(v for v, _ in found), "versions never run backwards"
        for _, names in found:
            assert len(set(names)) == len(names)
            assert not [name for name in names if name.endswith("-b") and f"{name[:-1]}a" not in names]
    version, names = max(found)
    store = set(names)
    async with rig.watch(resourceVersion=str(version)) as watched:
        want = {name for _, name, _ in rig.truth()}

        def have() -> set[str]:
            out = set(store)
            for event in watched.events:
                name = event["object"]["metadata"]["name"]
                (out.discard if event["type"] == "DELETED" else out.add)(name)
            return out

        await eventually(lambda: have() == want)


async def test_fault_22_a_walk_in_pages_of_one_has_every_object_once(rig: SimRig) -> None:
    for i in range(6):
        for name, cluster in rig.clusters.items():
            cluster.create(pod(f"p{i}-{name}"))
    await rig.settled()
    want = sorted(name for _, name, _ in rig.truth())
    names: list[str] = []
    seen: set[str] = set()
    token = ""
    while True:
        told = await rig.get(limit="1", **{"continue": token} if token else {})
        names += told.names
        seen.add(told.version)
        token = told.body["metadata"].get("continue", "")
        if not token:
            break
        rig.clusters["east"].create(pod(f"p{len(names)}-later"))  # not in the walk: it is of one version
        rig.clusters["west"].patch("pods", "default", "p5-west", {"metadata": {"labels": {"at": str(len(names))}}})
    assert names == want and len(seen) == 1


async def test_fault_26_a_member_without_the_type_does_not_hold_up_informers(
    rig: SimRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has it, then one, then both: one watch sees all of it."""
    monkeypatch.setattr(feed, "NO_TYPE_RETRY", 0.2)
    async with rig.watch(WIDGET_PATH, **STREAM) as watched:
        await rig.streamed(watched)
        assert watched.events[-1]["type"] == "BOOKMARK" and not watched.names()
        for name, cluster in rig.clusters.items():
            cluster.create(deepcopy(WIDGET_TYPE))
            await eventually(lambda c=cluster: c.core.catalog.by_collection("widgets.example.com"))
            meta = {"name": name, "namespace": "default"}
            cluster.create({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": meta})
            await eventually(lambda n=name: n in watched.names("ADDED"))
            told = await rig.get(WIDGET_PATH)
            assert told.names == sorted(watched.names()) and not told.warnings
        assert len(watched.ends) == 1


@pytest.mark.parametrize("how", ["refuse", "hang"])
async def test_fault_27_a_member_dead_from_the_start_does_not_hold_up_informers(rig: SimRig, how: str) -> None:
    rig.clusters["east"].create(pod("e"))
    north = await rig.join("north")
    rig.misbehave("north", how)
    await rig.fleet.reachable("north", False)
    await rig.settled()
    async with rig.watch(**STREAM) as watched:
        await rig.streamed(watched)
        assert watched.names() == ["e"] and len(watched.ends) == 1
        assert (await rig.get()).names == ["e"]
        north.create(pod("n"))
        await back(rig, "north")
        await eventually(lambda: watched.names() == ["e", "n"])


async def test_fault_31_idle_watches_are_not_cut(etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """No limit of a connection is one of a watch's: all of them pass while nothing happens."""
    monkeypatch.setattr(front_server, "KEEPALIVE", 0.2)
    rig = SimRig(etcd, [PODS])
    try:
        await rig.start(["east"], Limits(header_seconds=0.2))
        async with rig.watch(resourceVersion=(await rig.get()).version) as watched:
            await eventually(lambda: watched.status == 200)
            await asyncio.sleep(1)
            rig.clusters["east"].create(pod("at-last"))
            await eventually(lambda: watched.names() == ["at-last"])
            assert not watched.ended
    finally:
        await rig.close()
