"""Several replicas over one etcd: the same log everywhere, reads and writes at each, and one of them the sequencer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from services.aggregator.clock import answers
from services.aggregator.clock.clock import Marker, ResourceClock
from services.aggregator.clock.election import LeaseKeeper
from services.common.errors import StatusError
from tests.integration.clock_rig import Client, Rig, eventually
from tests.integration.etcd_server import EtcdServer


class Pair:
    """Two replicas; `leader` was started first, so that it is the sequencer."""

    def __init__(self, etcd: EtcdServer, **options: Any) -> None:
        self.leader = Rig(etcd, **options)
        self.follower = self.leader

    async def start(self, *members: str) -> tuple[ResourceClock, ResourceClock]:
        await self.leader.add(*members)
        self.follower = self.leader.replica()
        pods = await self.leader.ready()
        await eventually(lambda: pods.term, "the first one leads")
        return pods, await self.follower.ready()

    async def close(self) -> None:
        if self.follower is not self.leader:
            await self.follower.stop()
        await self.leader.close()


@pytest_asyncio.fixture
async def pair(etcd: EtcdServer) -> AsyncIterator[Pair]:
    one = Pair(etcd)
    try:
        yield one
    finally:
        await one.close()


def told(entries: list[Marker]) -> list[tuple[Any, ...]]:
    """What a watch is told, and under which number."""
    return [
        (one.fleet, one.type, one.cluster, one.name, one.uid, one.version, dict(one.labels),
         one.before and (one.before.fleet, dict(one.before.labels)))
        for one in entries
    ]  # fmt: skip


async def same_log(a: ResourceClock, b: ResourceClock) -> None:
    """Wait until both have the same log."""
    await a.snapshot()
    await b.snapshot()
    await eventually(lambda: told(a.state.log.entries) == told(b.state.log.entries), "one log")
    assert a.state.positions == b.state.positions


async def test_every_replica_has_the_same_log_and_answers_from_it(pair: Pair) -> None:
    leader, follower = await pair.start("east", "west")
    east, west = pair.leader.members["east"], pair.leader.members["west"]
    for number in range(20):
        (east if number % 2 else west).put(f"p{number}", app="web")
    one = east.put("p1", app="db")
    marker = await follower.wait_version("east", "default", "p1", one.uid, one.version)
    assert marker is not None and marker.labels == {"app": "db"}
    west.delete("p2", "p4")
    await pair.leader.settled()
    await pair.follower.settled()
    await same_log(leader, follower)
    assert leader.term and not follower.term
    assert follower.members["east"].state == follower.members["west"].state == "Live"
    assert follower.ready() is None
    vectors = [(await clock.vector_at(marker.fleet)).members for clock in (leader, follower)]
    assert vectors[0] == vectors[1]


async def test_what_one_replica_showed_every_other_knows(pair: Pair) -> None:
    leader, follower = await pair.start("east")
    east = pair.leader.members["east"]
    for number in range(40):
        one = east.put("a", v=str(number))
        at, other = (leader, follower) if number % 2 else (follower, leader)
        shown = await at.wait_version("east", "default", "a", one.uid, one.version)
        assert shown is not None
        snapshot = await other.snapshot()
        assert snapshot.version >= shown.fleet, "I6, I7"
        there = other.shown("default", "a")
        assert there is not None and there.fleet == shown.fleet, "I3"


async def test_fault_34_a_client_moves_between_replicas_with_its_version(pair: Pair) -> None:
    leader, follower = await pair.start("east", "west")
    east = pair.leader.members["east"]
    clocks = [leader, follower]
    entries: list[Marker] = []
    version = (await follower.snapshot()).version
    for number in range(30):
        east.put(f"p{number % 7}", v=str(number))
        if number % 3 == 0:
            east.delete(f"p{number % 7}")
        clock = clocks[number % 2]
        await clock.snapshot()
        cursor = clock.cursor(version)  # 410 would be raised here
        while some := cursor.take(3):
            entries += some
        version = cursor.position
    await pair.leader.settled()
    await pair.follower.settled()
    await same_log(leader, follower)
    cursor = follower.cursor(version)
    while some := cursor.take():
        entries += some
    fleets = [one.fleet for one in entries]
    assert fleets == sorted(set(fleets)), "I1: nothing twice, nothing back"
    first = entries[0].fleet
    assert fleets == [one.fleet for one in leader.state.log.entries if one.fleet >= first], "I1: nothing missing"


async def test_a_version_of_the_future_is_waited_for(pair: Pair) -> None:
    leader, follower = await pair.start("east")
    one = pair.leader.members["east"].put("a")
    shown = await leader.wait_version("east", "default", "a", one.uid, one.version)
    assert shown is not None
    snapshot = await follower.snapshot(linearizable=False, minimum=shown.fleet)
    assert snapshot.version >= shown.fleet


async def test_a_sequencer_that_stops_in_order_is_followed_at_once(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LeaseKeeper.__init__, "__defaults__", (60,))  # nobody waits for that
    _, follower = await pair.start("east")
    client = await watching(pair.follower)
    east = pair.leader.members["east"]
    await pair.leader.stop()
    await eventually(lambda: follower.term, "the other one leads")
    east.put("b")
    await pair.follower.settled()
    await eventually(lambda: client.drain() or client.entries)
    assert [(one.type, one.name) for one in client.entries] == [("ADDED", "b")]


async def test_a_killed_sequencer_is_followed_when_its_lease_ends(pair: Pair) -> None:
    leader, follower = await pair.start("east", "west")
    east = pair.leader.members["east"]
    client = await watching(pair.follower)
    head = leader.head
    await pair.leader.kill(found_dead=False)
    east.put("b")
    await eventually(lambda: follower.term, "the other one leads")
    await pair.follower.settled()
    await eventually(lambda: client.drain() or client.entries)
    assert [(one.type, one.name) for one in client.entries] == [("ADDED", "b")]
    assert client.entries[0].fleet > head, "I5"
    # It comes back as a follower, and its clients go on there.
    again = await pair.leader.ready()
    assert not again.term and told(again.cursor(head).take()) == told(client.entries)


async def watching(rig: Rig) -> Client:
    """A client that listed at a replica and watches there."""
    pods = rig.pods
    await pods.snapshot()
    return Client(pods, pods.head, {(one.namespace, one.name): one for one in pods.iter_markers()})


async def test_a_follower_that_lags_answers_late_and_never_old(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "LAG", 0.2)
    leader, follower = await pair.start("east")
    east = pair.leader.members["east"]
    east.put("a")
    await pair.follower.settled()
    release = hold_back(pair.follower)
    one = east.put("a", v="new")
    shown = await leader.wait_version("east", "default", "a", one.uid, one.version)
    old = follower.shown("default", "a")
    assert shown is not None and old is not None and old.fleet < shown.fleet
    with pytest.raises(StatusError) as caught:
        await follower.snapshot(timeout=1)
    assert caught.value.code == 503
    assert (await follower.snapshot(linearizable=False)).version < shown.fleet, "version 0 may be old"
    release()
    assert (await follower.snapshot()).version >= shown.fleet
    assert follower.shown("default", "a") == follower.marker_at("east", "default", "a", shown.fleet)


def hold_back(rig: Rig) -> Any:
    """Keep from a replica what etcd tells; call what is returned to let it come."""
    assert rig.clock is not None
    follower = rig.clock.context.follower
    gate, real = asyncio.Event(), follower._dispatch

    async def later(events: Any) -> None:
        await gate.wait()
        await real(events)

    follower._dispatch = later  # type: ignore[method-assign]
    return gate.set


async def test_a_follower_whose_history_is_gone_reads_anew_and_its_clients_go_on(pair: Pair) -> None:
    leader, follower = await pair.start("east")
    east = pair.leader.members["east"]
    for number in range(10):
        east.put(f"p{number}")
    await pair.follower.settled()
    release = hold_back(pair.follower)
    for number in range(5):
        east.put(f"p{number}", v="missed")
        await leader.snapshot()
        await pair.leader.settled()
    at = leader.head  # a client of the other replica, which is ahead
    store = leader.context.store
    revision = leader.state.revision
    for number in range(5):
        east.put(f"q{number}")
        await pair.leader.settled()
    await store.etcd.compact(revision)
    assert pair.follower.clock is not None
    before = follower.state
    pair.follower.clock.context.follower.kick()
    await eventually(lambda: follower._coming is not None, "it reads anew")
    await asyncio.sleep(0.2)
    assert follower.state is before, "readers keep their log until the new one has come as far"
    release()
    await eventually(lambda: follower.state is not before)
    await pair.follower.settled()
    assert told(follower.cursor(at).take()) == told(leader.cursor(at).take())
    assert len(follower.cursor(at).take()) == 5
    with pytest.raises(StatusError) as caught:
        follower.cursor(follower.floor - 1)
    assert caught.value.code == 410


async def test_a_gap_that_a_follower_opened_is_healed_by_the_sequencer(pair: Pair) -> None:
    leader, follower = await pair.start("east")
    east = pair.leader.members["east"]
    east.put("a")
    await pair.follower.settled()
    client = await watching(pair.follower)
    await follower.open_gap("east")
    await eventually(lambda: client.drain() or client.entries)
    await eventually(lambda: not leader.state.gaps and not follower.state.gaps)
    assert [(one.type, one.name) for one in client.entries] == [("MODIFIED", "a")]
    await same_log(leader, follower)


async def test_a_follower_has_a_compacted_member_listed_by_the_sequencer(pair: Pair) -> None:
    _, follower = await pair.start("east")
    east = pair.leader.members["east"]
    east.put("a")
    await pair.follower.settled()
    before = follower.state.positions["east"]
    east.rev += 50  # no bookmark comes
    east.compact()
    await follower.refresh("east")
    assert follower.state.positions["east"].read >= before.read + 50


async def test_a_member_without_the_type_is_in_nobodys_way_on_a_follower(pair: Pair) -> None:
    await pair.leader.add("bare")
    bare = pair.leader.members["bare"]
    bare.has_type = False
    leader, follower = await pair.start("east")
    await eventually(lambda: leader.members["bare"].state == follower.members["bare"].state == "NoType")
    snapshot = await follower.snapshot()
    assert snapshot.left_out == [] and set(snapshot.members) == {"east"}
    bare.has_type = True
    bare.put("new")
    pair.leader.pods.kick("bare")
    await pair.leader.settled()
    await pair.follower.settled()
    assert set((await follower.snapshot()).members) == {"east", "bare"}


async def test_members_that_a_replica_hears_of_first_or_last(pair: Pair) -> None:
    leader, follower = await pair.start("east")
    fleet = pair.leader.fleet
    (west,) = await pair.leader.add("west")
    west.put("w")
    await pair.follower.settled()
    # The follower alone hears that it leaves: answers without it, nothing deleted.
    member = pair.follower.fleet.members["west"]
    await pair.follower.fleet.disengage("west")
    assert (await follower.snapshot()).left_out == ["west"]
    assert follower.shown("default", "w") is not None
    await pair.follower.fleet.engage(member)
    assert set((await follower.snapshot()).members) == {"east", "west"}
    # All hear of it.
    await fleet.disengage("west")
    await eventually(lambda: "west" not in follower.members and "west" not in leader.members)
    assert (await follower.snapshot()).left_out == [] and follower.shown("default", "w") is None
    await fleet.engage(member)
    await pair.follower.settled()


async def test_a_claim_of_another_replica_is_taken_over(pair: Pair) -> None:
    leader, follower = await pair.start("east", "west")
    first = await follower.claim("default", "new", "west")
    second = await leader.claim("default", "new", "east")
    assert second.cluster == "west" and second.earlier, "a repeated POST goes where the first one went"
    await first.release()
    pair.leader.members["west"].put("new")
    await pair.leader.settled()
    with pytest.raises(StatusError) as caught:
        await follower.claim("default", "new", "east")
    assert caught.value.code == 409


async def test_a_rebuilt_store_is_read_anew_by_all(pair: Pair) -> None:
    leader, follower = await pair.start("east")
    pair.leader.members["east"].put("a")
    await pair.follower.settled()
    old = leader.head
    await follower.context.store.rebuild()
    await eventually(lambda: leader.floor > old and follower.floor > old)
    await pair.leader.settled()
    await pair.follower.settled()
    await same_log(leader, follower)
    assert leader.state.base == follower.state.base
    assert min(one.fleet for one in follower.iter_markers()) > old, "I5"


async def test_an_emptied_etcd_is_noticed_by_a_follower(pair: Pair, etcd: EtcdServer) -> None:
    leader, follower = await pair.start("east")
    pair.leader.members["east"].put("a")
    await pair.follower.settled()
    old = follower.head
    etcd.kill()
    etcd.empty()
    await etcd.start()
    await eventually(lambda: leader.floor > old and follower.floor > old, timeout=30)
    await pair.follower.settled()
    assert leader.state.base == follower.state.base
    assert (await follower.snapshot()).version > old
