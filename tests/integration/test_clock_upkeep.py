"""Verification and rebuild of the markers, a full etcd, an etcd of three whose leader dies, several etcds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from services.aggregator.clock.clock import Clock
from services.aggregator.clock.clocks import Clocks
from services.aggregator.clock.rebuild import rebuild
from services.aggregator.clock.verify import Compared, Difference, verify
from services.aggregator.types import Aggregated
from services.common.errors import StatusError
from services.common.etcd import Etcd, EtcdCompacted
from tests.integration.clock_rig import FLEET, PODS, Client, Rig, eventually
from tests.integration.etcd_cluster import EtcdCluster
from tests.integration.etcd_server import EtcdServer, find_etcd


@pytest_asyncio.fixture
async def rig(etcd: EtcdServer) -> AsyncIterator[Rig]:
    one = Rig(etcd)
    try:
        yield one
    finally:
        await one.close()


@pytest_asyncio.fixture
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EtcdCluster]:
    binary = find_etcd()
    if binary is None:
        pytest.skip("no etcd binary: run `make kube`")
    one = EtcdCluster(binary, tmp_path / "cluster", *request.param)
    await one.start()
    try:
        yield one
    finally:
        one.close()


async def findings(rig: Rig) -> tuple[list[Difference], list[Compared]]:
    found = [one async for one in verify(rig.pods)]
    return [one for one in found if isinstance(one, Difference)], [one for one in found if isinstance(one, Compared)]


async def test_verify_finds_each_kind_of_difference_and_nothing_else(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.aggregator.clock.verify.PATIENCE", 0.3)
    east, west = await rig.add("east", "west")
    for number in range(5):
        east.put(f"e{number}", app="web")
        west.put(f"w{number}")
    pods = await rig.ready()
    await rig.settled()
    differences, compared = await findings(rig)
    assert not differences
    assert [(one.cluster, one.objects) for one in compared] == [("east", 5), ("west", 5), ("(etcd)", 10)]
    assert pods.sequencer is not None

    def lose(cluster: str, work: object) -> None:
        """As if the feed had lost events."""

    monkeypatch.setattr(pods.sequencer, "put_nowait", lose)
    east.delete("e0")
    east.put("e1", app="db")
    west.put("w5")
    await asyncio.sleep(0.2)
    differences, _ = await findings(rig)
    assert {(one.cluster, one.name, one.what) for one in differences} == {
        ("east", "e0", "Gone"), ("east", "e1", "Stale"), ("west", "w5", "Missing")
    }  # fmt: skip
    key = pods.context.store.keys.marker("", "pods", "default", "w3", "west")
    await pods.context.store.etcd.delete(key)
    pods.state.pass_revision((await pods.context.store.etcd.range(key)).revision)
    differences, _ = await findings(rig)
    assert ("west", "w3", "Stored") in {(one.cluster, one.name, one.what) for one in differences}


async def test_verify_tells_all_differences_though_it_holds_few(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """More differ than wait for the log at once, over several pages of lists and of etcd."""
    for name, value in {"PATIENCE": 0.1, "OPEN": 3, "AT_ONCE": 1, "PAGE": 7, "SLICE": 5, "KEYS": 4}.items():
        monkeypatch.setattr(f"services.aggregator.clock.verify.{name}", value)
    monkeypatch.setattr("services.aggregator.clock.metadata.PAGE", 8)
    east, west = await rig.add("east", "west")
    for number in range(20):
        east.put(f"e{number}")
        west.put(f"w{number}")
    pods = await rig.ready()
    await rig.settled()
    assert pods.sequencer is not None
    monkeypatch.setattr(pods.sequencer, "put_nowait", lambda cluster, work: None)
    for number in range(10):
        east.delete(f"e{number}")
        east.put(f"e{10 + number}", app="db")
        west.put(f"new{number}")
    store = pods.context.store
    for number in range(10):
        await store.etcd.delete(store.keys.marker("", "pods", "default", f"w{number}", "west"))
    pods.state.pass_revision((await store.etcd.range(store.keys.base)).revision)
    await asyncio.sleep(0.2)
    differences, compared = await findings(rig)
    assert {(one.name, one.what) for one in differences} == {
        *((f"e{number}", "Gone") for number in range(10)), *((f"e{10 + number}", "Stale") for number in range(10)),
        *((f"new{number}", "Missing") for number in range(10)), *((f"w{number}", "Stored") for number in range(10)),
    }  # fmt: skip
    assert len(differences) == 40 and [one.objects for one in compared] == [10, 30, 30]


async def test_verify_names_a_cluster_that_cannot_be_asked(rig: Rig) -> None:
    east, _ = await rig.add("east", "west")
    await rig.ready()
    east.refuse = True
    _, compared = await findings(rig)
    assert {one.cluster: bool(one.problem) for one in compared} == {"east": True, "west": False, "(etcd)": False}


async def test_a_rebuild_gives_clients_410_once_and_versions_go_on(rig: Rig) -> None:
    east, west = await rig.add("east", "west")
    for number in range(20):
        east.put(f"e{number}")
        west.put(f"w{number}")
    pods = await rig.ready()
    await rig.settled()
    old, cursor = pods.head, pods.cursor(pods.head)
    assert rig.clock is not None
    progress = [one async for one in rebuild(Clocks(rig.clock))]
    assert progress[-1].markers == 40 and not progress[-1].waiting
    await rig.settled()
    assert pods.floor > old and min(one.fleet for one in pods.iter_markers()) > old
    with pytest.raises(StatusError) as caught:
        cursor.take()
    assert caught.value.code == 410
    client = Client(pods, pods.head, {(one.namespace, one.name): one for one in pods.iter_markers()})
    east.put("after")
    await eventually(lambda: client.drain())
    # A restart reads the rebuilt history, and nothing of what lies before it.
    await rig.stop()
    again = await rig.ready()
    assert again.floor > old and rig.have() == rig.want()
    assert not (await findings(rig))[0]


@pytest.mark.parametrize("cluster", [(1, ["--quota-backend-bytes", "2500000"])], indirect=True)
async def test_a_full_etcd_is_said_and_waited_out(cluster: EtcdCluster) -> None:
    rig = Rig(cluster)  # type: ignore[arg-type]
    cluster.endpoint = cluster.endpoints[0]  # type: ignore[attr-defined]
    etcd = Etcd.connect(cluster.endpoints)
    try:
        (east,) = await rig.add("east")
        east.put("a")
        pods = await rig.ready()
        client = Client(pods, pods.head, {("default", "a"): pods.shown("default", "a")})  # type: ignore[dict-item]
        with pytest.raises(Exception, match="space exceeded"):
            for number in range(1000):
                await etcd.put(b"junk/%d" % number, bytes(20_000))
        assert rig.clock is not None
        term = pods.term
        east.put("b")
        await eventually(lambda: pods.sequencer is not None and pods.sequencer.full, "the refusal is noticed")
        await rig.clock.upkeep.look()
        assert "defragment" in (rig.clock.upkeep.ready() or "")
        snapshot = await pods.snapshot()  # reads go on, linearizable ones too
        assert snapshot.version == pods.head and client.drain() == []
        await etcd.delete(b"junk/", prefix=True)
        await etcd.compact((await etcd.range(b"junk/")).revision, physical=True)
        from services.common.etcd_admin import defragment, disarm

        assert [pair async for pair in defragment(etcd)] and await disarm(etcd)
        await rig.settled()
        assert pods.term == term, "a refusal for certain does not end the term"
        assert [one.name for one in client.drain()] == ["b"]
        await rig.clock.upkeep.look()
        assert rig.clock.upkeep.ready() is None
    finally:
        await etcd.close()
        await rig.close()


@pytest.mark.parametrize("cluster", [()], indirect=True)
async def test_three_members_whose_leader_is_killed_again_and_again(cluster: EtcdCluster) -> None:
    rig = Rig(cluster)  # type: ignore[arg-type]
    etcd = Etcd.connect(cluster.endpoints)
    try:
        (east,) = await rig.add("east")
        east.put("first")
        pods = await rig.start_with(etcd)
        await asyncio.wait_for(pods.synced.wait(), 20)
        client = Client(pods, pods.head, {("default", "first"): pods.shown("default", "first")})  # type: ignore[dict-item]
        stop = asyncio.Event()

        async def change() -> None:
            number = 0
            while not stop.is_set():
                east.put(f"o{number % 40}")
                number += 1
                await asyncio.sleep(0.005)

        load = asyncio.create_task(change())
        for _ in range(3):
            leader = await cluster.leader()
            cluster.kill(leader)
            await asyncio.sleep(1.0)
            client.drain()
            cluster.run(leader)
            await cluster.healthy()
        stop.set()
        await load
        await rig.settled(60)
        client.drain()
        assert {key: (one.uid, one.version) for key, one in client.store.items()} == {
            key[1:]: value for key, value in rig.want().items()
        }
    finally:
        await rig.close()
        await etcd.close()


async def test_resources_on_two_etcds(etcd: EtcdServer, tmp_path: Path) -> None:
    second = EtcdServer(etcd.binary, tmp_path / "second")
    await second.start()
    rig = Rig(etcd)
    clients = [Etcd.connect([one.endpoint]) for one in (etcd, second)]
    try:
        (east,) = await rig.add("east")
        east.put("a")
        secrets = Aggregated("secrets", "", "v1", "secrets", "Secret", True)
        main, other = (
            Clock(
                etcd=one, prefix="/reclock/v1/", fleet_id=FLEET, fleet=rig.fleet, host=east.member.client,  # type: ignore[arg-type]
                window_seconds=900, window_revisions=1000,
            )
            for one in clients
        )  # fmt: skip
        clocks = Clocks(main, {"pods": other})
        clocks.apply([PODS, secrets])
        rig.fleet.synced.set()
        task = asyncio.create_task(clocks.run())
        pods = clocks.get("", "pods")
        assert pods is not None and set(clocks.resources) == {"pods", "secrets"}
        await asyncio.wait_for(pods.synced.wait(), 20)
        assert (await clients[1].range(b"/reclock/v1/markers//pods/", prefix=True)).count == 1
        assert (await clients[0].range(b"/reclock/v1/markers/", prefix=True)).count == 0
        # One etcd away: the other's resources are served on.
        etcd.kill()
        east.put("b")
        await eventually(lambda: pods.shown("default", "b"))
        assert (await pods.snapshot()).version == pods.head
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    finally:
        second.kill()
        await rig.close()
        for one in clients:
            await one.close()


async def test_etcd_is_compacted_to_the_window_and_never_younger(etcd: EtcdServer) -> None:
    window = 1.5
    rig = Rig(etcd, window_seconds=window)
    client = Etcd.connect([etcd.endpoint])
    loop = asyncio.get_running_loop()
    made: list[tuple[float, int, int]] = []
    try:
        (east,) = await rig.add("east")
        east.put("first")
        pods = await rig.ready()
        await rig.settled()
        begin = loop.time()
        while loop.time() - begin < 4 * window:
            east.put("a")
            await rig.settled()
            made.append((loop.time(), pods.state.revision, pods.head))
            young = [one for one in made if one[0] >= loop.time() - window]
            # What was numbered within the window can be read in etcd's history, and resumed.
            await client.range(b"/reclock/v1/base", revision=young[0][1])
            pods.cursor(young[0][2])
            await asyncio.sleep(0.02)

        async def expired() -> bool:
            try:
                await client.range(b"/reclock/v1/base", revision=made[0][1])
            except EtcdCompacted:
                return True
            return False

        assert await expired(), "the oldest are gone from etcd"
        with pytest.raises(StatusError) as caught:
            pods.cursor(made[0][2])
        assert caught.value.code == 410
    finally:
        await client.close()
        await rig.close()
