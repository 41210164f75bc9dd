"""Links that went dead without a word: new connections work, what was open is silent. Whoever waits for an event of such
a member has its watch opened anew, on every replica; nothing is lost, told twice or listed for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from prometheus_client import REGISTRY

from services.aggregator.clock import overdue, view
from services.aggregator.clock.clock import ResourceClock
from services.common.errors import StatusError
from tests.integration.clock_rig import Client, Rig, eventually
from tests.integration.etcd_server import EtcdServer
from tests.integration.test_clock_replicas import Pair


@pytest_asyncio.fixture
async def pair(etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    monkeypatch.setattr(view, "LATE", 1.0)
    monkeypatch.setattr(overdue, "SILENT", 0.4)  # of the usual two seconds
    one = Pair(etcd)
    try:
        yield one
    finally:
        await one.close()


def renewed() -> float:
    labels = {"resource": "pods", "cluster": "east", "feed": "log"}
    return REGISTRY.get_sample_value("reclock_aggregator_clock_watches_renewed_total", labels) or 0.0


async def written(at: ResourceClock, rig: Rig, name: str, **labels: str) -> None:
    """As a write's handler: the member has answered, its event must come."""
    one = rig.members["east"].put(name, **labels)
    marker = await at.wait_version("east", "default", name, one.uid, one.version)
    assert marker is not None and marker.labels == labels


@pytest.mark.parametrize("where", ["the sequencer", "a follower"])
async def test_a_write_has_the_silent_watch_opened_anew(pair: Pair, where: str) -> None:
    leader, follower = await pair.start("east")
    at = leader if where == "the sequencer" else follower
    east, before = pair.leader.members["east"], renewed()
    await written(at, pair.leader, "a", v="0")
    shown = at.shown("default", "a")
    assert shown is not None
    client = Client(at, at.head, {("default", "a"): shown})
    relists = leader.tally.members["east"].relists
    await eventually(lambda: east.watches, "it is watched")
    east.go_deaf()  # idle connections that are kept for the next request too
    await asyncio.gather(written(at, pair.leader, "a", v="1"), written(at, pair.leader, "b", v="2"))
    assert renewed() == before + 1, "once for all who wait"
    await written(at, pair.leader, "a", v="3")  # by the new watch
    await pair.leader.settled()
    await pair.follower.settled()
    assert renewed() == before + 1
    assert leader.tally.members["east"].relists == relists, "no list"
    assert [(one.type, one.name, one.labels["v"]) for one in client.drain()] == [
        ("MODIFIED", "a", "1"), ("ADDED", "b", "2"), ("MODIFIED", "a", "3"),
    ]  # fmt: skip


async def test_only_a_silent_watch_is_opened_anew_and_not_again_and_again(pair: Pair) -> None:
    leader, _ = await pair.start("east")
    east, before = pair.leader.members["east"], renewed()
    one = east.put("a")

    async def busy() -> None:
        for number in range(10**6):
            east.put("noise", v=str(number))
            await asyncio.sleep(0.05)

    noise = asyncio.create_task(busy())
    with pytest.raises(StatusError) as late:  # it brings something: what is missing is only late
        await leader.wait_version("east", "default", "a", one.uid, one.version + 10_000, timeout=1.8)
    noise.cancel()
    assert late.value.code == 504 and renewed() == before
    east.go_deaf()
    await written(leader, pair.leader, "a")
    east.watch_gate.clear()  # the member itself is what is slow
    one = east.put("a", late="yes")
    waiting = [leader.wait_version("east", "default", "a", one.uid, one.version, timeout=1.6) for _ in range(20)]
    told = await asyncio.gather(*waiting, return_exceptions=True)
    assert [error.code for error in told if isinstance(error, StatusError)] == [504] * 20
    assert renewed() == before + 1
    east.watch_gate.set()
    await pair.leader.settled()
