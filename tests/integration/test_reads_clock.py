"""Lists and watches on the real clock: list at L, then watch from L, ends in the members' state, whatever happens."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator

import pytest

from tests.integration.clock_rig import eventually
from tests.integration.etcd_server import EtcdServer
from tests.integration.reads_rig import Informer, ReadsRig, truth


@pytest.fixture
async def rig(etcd: EtcdServer) -> AsyncIterator[ReadsRig]:
    rig = ReadsRig(etcd)
    await rig.add("east", "west")
    await rig.up()
    try:
        yield rig
    finally:
        await rig.down(kill=False)


async def agree(rig: ReadsRig, *informers: Informer) -> None:
    """Wait until markers are the members' state and every client has what the markers say."""
    await rig.settled(40)
    for informer in informers:
        try:
            await eventually(lambda i=informer: i.version and i.have() == truth(rig), timeout=30)
        except AssertionError:
            missing = {k: v for k, v in truth(rig).items() if informer.have().get(k) != v}
            extra = {k: v for k, v in informer.have().items() if k not in truth(rig)}
            raise AssertionError(f"client lacks {missing}, has {extra} (version {informer.version})") from None
        assert not informer.problems, informer.problems


async def test_clients_follow_without_a_relist_over_restarts_of_all(rig: ReadsRig) -> None:
    east, west = rig.members["east"], rig.members["west"]
    informers = [Informer(rig, watch_list=False), Informer(rig, watch_list=True)]
    try:
        for i in range(20):
            (east if i % 2 else west).put(f"p{i}", app="web")
        await agree(rig, *informers)
        before = [i.relists for i in informers]
        east.restart()
        east.put("p1", app="changed")
        await agree(rig, *informers)
        await rig.down(kill=True)
        west.put("p2", app="while-away")
        west.delete("p4")
        east.put("new")
        await rig.up()
        await agree(rig, *informers)
        assert [i.relists for i in informers] == before
    finally:
        for informer in informers:
            await informer.close()


async def test_one_watch_at_a_member_serves_clock_and_watchers(rig: ReadsRig) -> None:
    east = rig.members["east"]
    east.put("first")
    await rig.settled()
    assert len(east.watches) == 1 and "PartialObjectMetadata" in east.watches[0]  # nobody looks: metadata will do
    informers = [Informer(rig, watch_list=on) for on in (False, True, False)]
    try:
        await agree(rig, *informers)
        await eventually(lambda: east.watches == ["application/json"])
        for i in range(50):
            east.put(f"p{i}")
        east.delete("p1", "p2")  # two events of one version
        await agree(rig, *informers)
        assert east.watches == ["application/json"]
        east.break_connections()
        east.put("p1")
        await agree(rig, *informers)
        await eventually(lambda: east.watches == ["application/json"])
        east.restart()
        east.put("p2")
        await agree(rig, *informers)
        await eventually(lambda: east.watches == ["application/json"])
        assert [i.relists for i in informers] == [1, 1, 1]
    finally:
        for informer in informers:
            await informer.close()


async def test_a_member_away_is_left_out_and_heals_on_the_open_watch(rig: ReadsRig) -> None:
    east, west = rig.members["east"], rig.members["west"]
    for i in range(6):
        (east if i % 2 else west).put(f"p{i}")
    await rig.settled()
    west.refuse = True
    west.break_connections()
    await rig.fleet.reachable("west", False)
    listed, streamed = Informer(rig, watch_list=False), Informer(rig, watch_list=True)
    try:
        await eventually(lambda: listed.version and streamed.version)
        assert {c for c, _, _ in listed.have().values()} == {"east"} == {c for c, _, _ in streamed.have().values()}
        east.put("p9")
        await eventually(lambda: ("default", "p9") in listed.store and ("default", "p9") in streamed.store)
        west.refuse = False
        await rig.fleet.reachable("west", True)
        await agree(rig, listed, streamed)
        assert listed.relists == streamed.relists == 1
    finally:
        await listed.close()
        await streamed.close()


async def test_members_join_and_leave_on_open_watches(rig: ReadsRig) -> None:
    informer = Informer(rig, watch_list=True)
    try:
        rig.members["east"].put("a")
        await agree(rig, informer)
        (north,) = await rig.add("north")
        for i in range(5):
            north.put(f"n{i}")
        await agree(rig, informer)
        await rig.fleet.disengage("west")
        await rig.fleet.disengage("north")
        await agree(rig, informer)
        assert set(informer.store) == {("default", "a")} and informer.relists == 1
    finally:
        await informer.close()


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_random_histories_end_alike(rig: ReadsRig, seed: int) -> None:
    rng = random.Random(seed)
    informers = [Informer(rig, watch_list=False), Informer(rig, watch_list=True),
                 Informer(rig, watch_list=False, query="&labelSelector=")]  # fmt: skip
    saved: dict[str, int] = {}
    try:
        for step in range(120):
            name = rng.choice(["east", "west"])
            member = rig.members[name]
            what = rng.random()
            if what < 0.55:
                member.put(f"p{rng.randrange(12)}", app=str(step))
            elif what < 0.75 and member.objects:
                member.delete(rng.choice([n for _, n in member.objects]))
            elif what < 0.80:
                member.restart()
            elif what < 0.83:
                member.compact()
            elif what < 0.86:
                saved[name] = len(member.snapshots) - 1
            elif what < 0.88 and name in saved:
                member.restore(saved.pop(name))
            elif what < 0.91:
                member.refuse = True
                member.break_connections()
                await rig.fleet.reachable(name, False)
            elif what < 0.95:
                member.refuse = False
                await rig.fleet.reachable(name, True)
            elif what < 0.96:
                await rig.down(kill=True)
                await rig.up()
            else:
                await asyncio.sleep(rng.random() * 0.2)
            if rng.random() < 0.4:
                await asyncio.sleep(0.01)
        for name, member in rig.members.items():
            member.refuse = False
            await rig.fleet.reachable(name, True)
        await agree(rig, *informers)
    finally:
        for informer in informers:
            await informer.close()


async def test_no_client_lists_again_when_all_replicas_restart_at_once(rig: ReadsRig) -> None:
    """I10, over HTTP; RECLOCK_INFORMERS says how many clients (1,000 take 17 s)."""
    other = rig.replica()
    await other.up()
    east, west = rig.members["east"], rig.members["west"]
    for i in range(20):
        (east if i % 2 else west).put(f"p{i}", app="web")
    await rig.settled()
    count = int(os.environ.get("RECLOCK_INFORMERS", "120"))
    informers = [
        Informer(
            other if i % 2 else rig, watch_list=i % 3 == 0, query="" if i % 4 else "&labelSelector=app",
            retry=max(0.02, count / 2000),  # they share the replicas' event loop: that of a thousand must leave these room to start
        )
        for i in range(count)
    ]  # fmt: skip
    try:
        await agree(rig, *informers)
        assert all(one.relists == 1 for one in informers)
        await rig.down(kill=True)
        await other.down(kill=True)
        for i in range(20):
            (east if i % 2 else west).put(f"p{i}", app="while-away")
        west.delete("p4")
        # They come back in another order, and clients of one go to the other.
        rig.port, other.port = other.port, rig.port
        await other.up()
        await rig.up()
        await agree(rig, *informers)
        assert all(one.relists == 1 for one in informers), "nobody lists again"
    finally:
        for informer in informers:
            await informer.close()
        await other.down(kill=True)
