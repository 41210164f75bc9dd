"""Members that come, go, come back as others, or lag: what a client with an open watch, and one that lists, see of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from services.aggregator.reads import walk
from tests.integration.clock_rig import PODS, eventually
from tests.integration.etcd_server import EtcdServer
from tests.integration.sim_rig import STREAM, SimRig, Watched, pod

Held = dict[str, tuple[str, str]]


@pytest_asyncio.fixture
async def rig(etcd: EtcdServer) -> AsyncIterator[SimRig]:
    rig = SimRig(etcd, [PODS])
    try:
        await rig.start(["east", "west"])
        for name, cluster in rig.clusters.items():
            for i in range(3):
                cluster.create(pod(f"{name}-{i}"))
        await rig.settled()
        yield rig
    finally:
        await rig.close()


def held(watched: Watched) -> Held:
    """name -> (uid, version) as the watch's events leave it; an event that does not fit what is held is an error."""
    store: Held = {}
    last = 0
    for event in watched.events:
        meta = event["object"]["metadata"]
        version = int(meta["resourceVersion"])
        if event["type"] == "BOOKMARK":
            continue
        if watched.ends and version > int(watched.ends[0]):
            assert version > last, f"{event['type']} at {version} behind {last}"
            last = version
        known = store.get(meta["name"])
        assert (known is None) == (event["type"] == "ADDED"), (event["type"], meta["name"], known)
        assert known is None or known[0] == meta["uid"], "another object of the name without a deletion"
        if event["type"] == "DELETED":
            del store[meta["name"]]
        else:
            store[meta["name"]] = (meta["uid"], meta["resourceVersion"])
    return store


async def listed(rig: SimRig) -> Held:
    told = await rig.get()
    assert told.status == 200 and not told.warnings, told.warnings
    return {one["metadata"]["name"]: (one["metadata"]["uid"], one["metadata"]["resourceVersion"]) for one in told.body["items"]}


async def agree(rig: SimRig, watched: Watched, names: set[str]) -> None:
    """List, watch and members say the same."""
    for _ in range(200):
        if rig.state("west")[0] == "Live" and held(watched) == await listed(rig):
            break
        await asyncio.sleep(0.05)
    assert held(watched) == await listed(rig) and set(held(watched)) == names
    assert not watched.ended and len(watched.ends) == 1


ALL = {f"{name}-{i}" for name in ("east", "west") for i in range(3)}


async def test_a_backup_whose_versions_run_backwards_and_repeat(rig: SimRig) -> None:
    """Restored twice: other objects get the versions that were given already."""
    west = rig.clusters["west"]
    backup = west.backup()
    async with rig.watch(**STREAM) as watched:
        await rig.streamed(watched)
        for turn in ("a", "b"):
            west.create(pod(f"west-{turn}"))
            west.patch("pods", "default", "west-1", {"metadata": {"labels": {"turn": turn}}})
            west.delete("pods", "default", "west-0")
            await eventually(lambda t=turn: "west-0" not in held(watched) and f"west-{t}" in held(watched))
            west.restore(backup)
            west.create(pod(f"west-after-{turn}"))
            await agree(rig, watched, ALL | {f"west-after-{turn}"})


async def test_another_cluster_under_the_name(rig: SimRig) -> None:
    west = rig.clusters["west"]
    async with rig.watch(**STREAM) as watched:
        await rig.streamed(watched)
        before = held(watched)["west-1"]
        west.reincarnate()
        west.create(pod("west-1"))
        rig.fleet.members["west"].uid = west.uid
        await rig.fleet.reachable("west", True)
        await agree(rig, watched, {name for name in ALL if name.startswith("east")} | {"west-1"})
        assert held(watched)["west-1"] != before


async def test_a_clash_of_names_and_its_end(rig: SimRig) -> None:
    """The older one is shown, from the list and on the watch; when it goes, DELETED and ADDED for the other."""
    east, west = rig.clusters["east"], rig.clusters["west"]
    async with rig.watch(**STREAM) as watched:
        await rig.streamed(watched)
        older = west.create(pod("twin"))["metadata"]["uid"]
        await eventually(lambda: "twin" in held(watched))
        younger = east.create(pod("twin"))["metadata"]["uid"]
        east.patch("pods", "default", "twin", {"metadata": {"labels": {"hidden": "yes"}}})
        await rig.settled()
        await agree(rig, watched, {*ALL, "twin"})
        assert held(watched)["twin"][0] == older
        west.delete("pods", "default", "twin")
        await eventually(lambda: held(watched).get("twin", ("", ""))[0] == younger)
        await agree(rig, watched, {*ALL, "twin"})
        types = [e["type"] for e in watched.events if e["object"]["metadata"].get("name") == "twin"]
        assert types == ["ADDED", "DELETED", "ADDED"], "nothing of the hidden one"


async def test_a_gap_that_opens_again_while_it_heals(rig: SimRig) -> None:
    """The member comes and goes while its objects are sent anew; each answer that lacks it is made good."""
    west = rig.clusters["west"]
    for i in range(150):  # more than one transaction
        west.create(pod(f"many-{i:03}"))
    await rig.settled()
    names = ALL | {f"many-{i:03}" for i in range(150)}
    without = {name for name in ALL if name.startswith("east")}
    for turn in range(3):
        rule = rig.misbehave("west", "refuse")
        await rig.fleet.reachable("west", False)
        async with rig.watch(**STREAM) as watched:
            await rig.streamed(watched)
            assert set(held(watched)) <= without
            west.faults.lift(rule)
            await rig.fleet.reachable("west", True)
            await asyncio.sleep(0.05 * turn)  # somewhere on the way
            again = rig.misbehave("west", "refuse")
            await rig.fleet.reachable("west", False)
            assert set((await rig.get()).names) <= names
            west.faults.lift(again)
            await rig.fleet.reachable("west", True)
            await agree(rig, watched, names)


async def test_leaving_and_joining(rig: SimRig) -> None:
    async with rig.watch(**STREAM) as watched:
        await rig.streamed(watched)
        await rig.fleet.disengage("west")
        await eventually(lambda: set(held(watched)) == {name for name in ALL if name.startswith("east")})
        assert sorted(watched.names("DELETED")) == ["west-0", "west-1", "west-2"]
        north = await rig.join("north")
        north.create(pod("north-0"))
        await eventually(lambda: "north-0" in held(watched))
        assert held(watched) == await listed(rig) and not watched.ended


async def test_a_slow_member_holds_up_nobody_elses_events(rig: SimRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers late: it is left out of lists in time, and its own events come late; others' do not."""
    monkeypatch.setattr(walk, "OPEN_TIMEOUT", 0.3)
    async with rig.watch(**STREAM) as watched:
        await rig.streamed(watched)
        rule = rig.misbehave("west", "delay", seconds=0.8)
        rig.clusters["west"].create(pod("late"))
        rig.clusters["east"].create(pod("soon"))
        await eventually(lambda: "soon" in held(watched))
        assert "late" not in held(watched)
        told = await rig.get()
        assert told.status == 200 and "west is left out" in told.warnings and "soon" in told.names
        await eventually(lambda: "late" in held(watched), timeout=30)
        rig.clusters["west"].faults.lift(rule)
        await agree(rig, watched, ALL | {"soon", "late"})
