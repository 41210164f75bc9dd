"""Members that answer what no API server answers, through the front: they count as away, with the reason; the others go
on; nothing of it reaches a client as data, and memory is bounded."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from services.aggregator.reads import walk
from services.common.kube.client import MAX_OBJECT
from tests.integration.clock_rig import PODS, eventually
from tests.integration.etcd_server import EtcdServer
from tests.integration.sim_rig import STREAM, SimRig, Watched, pod

WHY = {
    "html": "a watch that sends no frames", "half": "", "version": "is no integer", "huge": "longer than",
    "endless": "",
}  # fmt: skip
"""Of a watch: the reason that is said; the connection's own words where that breaks."""


@pytest_asyncio.fixture
async def rig(etcd: EtcdServer) -> AsyncIterator[SimRig]:
    rig = SimRig(etcd, [PODS])
    try:
        await rig.start(["east", "west"])
        for name, cluster in rig.clusters.items():
            cluster.create(pod(f"{name}-1"))
        await rig.settled()
        yield rig
    finally:
        await rig.close()


def clean(watched: Watched) -> bool:
    """Is all that a client was told of objects as members have them?"""
    for event in watched.events:
        meta = event["object"]["metadata"]
        assert meta["resourceVersion"].isdecimal() and "huge" not in meta.get("annotations", {}), event["type"]
    return True


@pytest.mark.parametrize("garbage", sorted(WHY))
async def test_lists(rig: SimRig, garbage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a member that is listed for the first time: it is away from the start, with the reason."""
    monkeypatch.setattr(walk, "OPEN_TIMEOUT", 1.0)
    rig.misbehave("west", "garbage", "list", garbage=garbage)
    tracemalloc.start()
    try:
        told = await rig.get()
        assert (told.status, told.names) == (200, ["east-1"])
        assert "cluster west is left out" in told.warnings
        north = await rig.join("north")
        north.create(pod("north-1"))
        rig.misbehave("north", "garbage", "list", garbage=garbage)
        if garbage != "endless":  # it may go on for as long as a list may take
            state, reason = await eventually(lambda: rig.state("north")[1] and rig.state("north"), timeout=30)
            assert state == "Unreachable" and "north" in reason
        told = await rig.get()
        assert (told.status, told.names) == (200, ["east-1"])
        _, peak = tracemalloc.get_traced_memory()
        # Two members' answers, each by the feed and by a list; the sim's own are in this process too.
        assert peak < 16 * MAX_OBJECT, peak
    finally:
        tracemalloc.stop()
    for name in ("west", "north"):
        rig.clusters[name].faults.lift()
        await rig.fleet.reachable(name, True)
    if garbage != "endless":
        await rig.settled()
        assert (await rig.get()).names == ["east-1", "north-1", "west-1"]


@pytest.mark.parametrize("garbage", sorted(WHY))
async def test_watches(rig: SimRig, garbage: str) -> None:
    async with rig.watch(**STREAM) as watched:
        await rig.streamed(watched)
        rig.misbehave("west", "garbage", "watch", garbage=garbage)
        rig.clusters["west"].create(pod("west-2"))
        rig.clusters["east"].create(pod("east-2"))
        await eventually(lambda: "east-2" in watched.names())
        if WHY[garbage]:
            await eventually(lambda: WHY[garbage] in rig.state("west")[1])
            assert rig.state("west")[0] == "Unreachable"
            told = await rig.get()
            assert told.names == ["east-1", "east-2"] and WHY[garbage] in told.warnings
        assert "west-2" not in watched.names() and clean(watched)
        rig.clusters["west"].faults.lift()
        rig.clusters["west"].drop_watches()
        await rig.fleet.reachable("west", True)
        await eventually(lambda: "west-2" in watched.names(), timeout=30)
        rig.clusters["west"].create(pod("west-3"))
        await eventually(lambda: "west-3" in watched.names(), timeout=30)
        assert clean(watched) and not watched.ended


@pytest.mark.parametrize("garbage", ["html", "half", "version", "huge", "endless"])
async def test_single_objects(rig: SimRig, garbage: str) -> None:
    rig.misbehave("west", "garbage", "get", garbage=garbage)
    told = await rig.get("/api/v1/namespaces/default/pods/west-1")
    assert (told.status, told.body["kind"], told.body["reason"]) == (503, "Status", "ServiceUnavailable"), told.body
    assert "cluster west" in told.body["message"] and len(told.body["message"]) < 1000
    assert "Bad Gateway" not in told.body["message"]
    assert (await rig.get("/api/v1/namespaces/default/pods/east-1")).status == 200


async def test_a_member_with_garbage_is_not_asked_again_and_again(rig: SimRig) -> None:
    rig.misbehave("west", "garbage", "watch", garbage="version")
    rig.clusters["west"].create(pod("west-2"))
    await eventually(lambda: rig.state("west")[0] == "Unreachable")
    before = rig.clusters["west"].requests
    async with rig.watch() as watched:  # watchers ask no more often
        await eventually(lambda: "east-1" in watched.names())
        await eventually(lambda: rig.clusters["west"].faults.met >= 4, timeout=30)
    asked = rig.clusters["west"].requests - before
    assert asked < 40, asked
