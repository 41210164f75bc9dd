"""The clock on a real etcd: events in, log out, restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.integration.clock_rig import Client, Rig, eventually
from tests.integration.etcd_server import EtcdServer


@pytest_asyncio.fixture
async def rig(etcd: EtcdServer) -> AsyncIterator[Rig]:
    one = Rig(etcd)
    try:
        yield one
    finally:
        await one.close()


async def test_events_of_two_members_become_one_log(rig: Rig) -> None:
    east, west = await rig.add("east", "west")
    east.put("a", app="web")
    west.put("b")
    pods = await rig.ready()
    await rig.settled()
    client = Client(pods, pods.head, {(m.namespace, m.name): m for m in pods.iter_markers()})
    east.put("a", app="db")
    west.delete("b")
    east.put("c")
    await rig.settled()
    await eventually(lambda: client.drain() or len(client.entries) >= 3)
    assert sorted((one.type, one.name) for one in client.entries) == [
        ("ADDED", "c"), ("DELETED", "b"), ("MODIFIED", "a"),
    ]  # fmt: skip
    changed = next(one for one in client.entries if one.name == "a")
    assert changed.labels == {"app": "db"} and changed.before is not None
    assert changed.before.labels == {"app": "web"}


async def test_a_killed_clock_resumes_with_the_same_versions_and_log(rig: Rig) -> None:
    east, west = await rig.add("east", "west")
    for number in range(20):
        east.put(f"a{number}")
    pods = await rig.ready()
    await rig.settled()
    start = pods.head
    west.put("b1", app="x")
    west.put("b1", app="y")
    east.delete("a3", "a4")
    await rig.settled()
    taken = pods.cursor(start).take()
    entries = [(one.fleet, one.type, one.name, one.version, dict(one.labels)) for one in taken]
    olds = [one.before and (one.before.fleet, dict(one.before.labels)) for one in taken]
    lists = east.lists
    await rig.kill()
    west.put("b2")
    pods = await rig.ready()
    await rig.settled()
    again = pods.cursor(start).take()
    assert [(o.fleet, o.type, o.name, o.version, dict(o.labels)) for o in again[: len(entries)]] == entries
    assert [o.before and (o.before.fleet, dict(o.before.labels)) for o in again[: len(entries)]] == olds
    assert [one.name for one in again[len(entries) :]] == ["b2"]
    # The two deletions at one version leave a run open: the check for a restore asks at `read` and `resume`.
    assert east.lists == lists + 2


async def test_snapshot_and_wait(rig: Rig) -> None:
    (east,) = await rig.add("east")
    pods = await rig.ready()
    one = east.put("a")
    marker = await pods.wait_version("east", "default", "a", one.uid, one.version)
    assert marker is not None and marker.version == one.version
    snapshot = await pods.snapshot()
    assert snapshot.version >= marker.fleet
    assert snapshot.members["east"].read >= one.version
    assert snapshot.left_out == []
    east.begin_delete("a")
    await pods.wait_deleted("east", "default", "a", one.uid)
    with pytest.raises(Exception, match="Too large resource version"):
        await pods.snapshot(minimum=pods.head + 10**6, timeout=0.3)
    await asyncio.sleep(0)
