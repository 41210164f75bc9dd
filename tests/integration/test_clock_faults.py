"""What may happen to members, etcd and the clock itself: each fault on its own, with what must follow."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from services.aggregator.clock import answers, resource
from services.aggregator.clock.clock import StartRefused
from services.aggregator.clock.keys import Layout
from services.common.errors import StatusError
from services.common.etcd import Etcd
from tests.integration.clock_rig import Client, Rig, eventually
from tests.integration.etcd_server import EtcdServer

KEYS = Layout("/reclock/v1/")


@pytest_asyncio.fixture
async def rig(etcd: EtcdServer) -> AsyncIterator[Rig]:
    one = Rig(etcd)
    try:
        yield one
    finally:
        await one.close()


@pytest_asyncio.fixture
async def client(etcd: EtcdServer) -> AsyncIterator[Etcd]:
    one = Etcd.connect([etcd.endpoint])
    try:
        yield one
    finally:
        await one.close()


def shown(rig: Rig) -> dict[tuple[str, str], object]:
    """What a client holds that listed now."""
    pods = rig.pods
    keys = {(one.namespace, one.name) for one in pods.iter_markers()}
    return {key: pods.shown(*key) for key in keys}


def watcher(rig: Rig) -> Client:
    """A client that listed now and watches from there."""
    return Client(rig.pods, rig.pods.head, shown(rig))  # type: ignore[arg-type]


async def test_a_restarted_member_is_listed_and_clients_notice_nothing(rig: Rig) -> None:
    (east,) = await rig.add("east")
    for number in range(30):
        east.put(f"a{number}")
    await rig.ready()
    await rig.settled()
    client = watcher(rig)
    east.refuse = True
    east.put("a1")
    east.delete("a2", "a3")
    east.put("new")
    east.restart()
    east.refuse = False
    await rig.settled()
    client.drain()
    assert sorted((one.type, one.name) for one in client.entries) == [
        ("ADDED", "new"), ("DELETED", "a2"), ("DELETED", "a3"), ("MODIFIED", "a1"),
    ]  # fmt: skip


async def test_a_restored_member_is_another_life_and_all_its_objects_change(rig: Rig) -> None:
    (east,) = await rig.add("east")
    east.put("a")
    east.put("b")
    back = len(east.snapshots) - 1
    await rig.ready()
    await rig.settled()
    client = watcher(rig)
    east.put("c")
    east.put("a")
    await rig.settled()
    client.drain()
    # The same number of events as before the restore, so that versions come a second time with other contents.
    east.restore(back)
    east.put("b")
    east.put("d")
    await rig.settled()
    client.drain()
    assert {one.incarnation for one in rig.pods.iter_markers()} == {f"{east.uid}/1"}
    assert {name for _, name in client.store} == {"a", "b", "d"}
    assert all(one.incarnation == f"{east.uid}/1" for one in client.store.values())


async def test_another_cluster_under_the_same_name(rig: Rig) -> None:
    (east,) = await rig.add("east")
    one = east.put("a")
    await rig.ready()
    await rig.settled()
    client = watcher(rig)
    await east.stop()
    east.uid = str(uuid.uuid4())
    east.delete("a")
    east.put("a", uid=one.uid)
    east.put("b")
    east.restart()
    await east.start()
    await rig.settled()
    client.drain()
    assert {m.incarnation for m in rig.pods.iter_markers()} == {f"{east.uid}/0"}
    assert set(client.store) == {("default", "a"), ("default", "b")}


async def test_an_unreachable_member_keeps_its_objects_and_a_gap_sends_them_anew(rig: Rig) -> None:
    east, west = await rig.add("east", "west")
    east.put("a")
    west.put("b")
    pods = await rig.ready()
    await rig.settled()
    await rig.fleet.reachable("west", False)
    west.refuse = True
    west.break_connections()
    await eventually(lambda: pods.members["west"].state == "Unreachable")
    east.put("c")
    await eventually(lambda: pods.shown("default", "c"))
    assert pods.shown("default", "b") is not None, "nothing is deleted"
    snapshot = await pods.snapshot()
    assert snapshot.left_out == ["west"] and set(snapshot.members) == {"east"}
    await pods.open_gap("west")
    assert snapshot.version < pods.state.fleet(pods.state.gaps["west"])
    client = Client(pods, snapshot.version, {k: v for k, v in shown(rig).items() if k[1] != "b"})  # type: ignore[misc]
    west.refuse = False
    await rig.fleet.reachable("west", True)
    await eventually(lambda: not pods.state.gaps)
    sent = client.cursor.take()
    assert [(one.type, one.name, one.version) for one in sent] == [
        ("MODIFIED", "b", west.objects["default", "b"].version)
    ]


async def test_a_member_that_leaves_and_comes_back(rig: Rig) -> None:
    east, west = await rig.add("east", "west")
    east.put("a")
    for number in range(300):
        west.put(f"b{number}")
    pods = await rig.ready()
    await rig.settled()
    client = watcher(rig)
    await rig.fleet.disengage("west")
    assert pods.members["west"].state == "Disengaging"
    # Not linearizable: nothing may pass meanwhile, or it has left before the answer.
    assert "west" in (await pods.snapshot(linearizable=False)).left_out
    await eventually(lambda: "west" not in pods.members)
    client.drain()
    assert set(client.store) == {("default", "a")}
    assert "west" not in pods.state.positions
    await rig.fleet.engage(west.member)
    await rig.settled()
    client.drain()
    assert len(client.store) == 301


async def test_a_member_that_left_while_the_clock_was_down(rig: Rig) -> None:
    east, west = await rig.add("east", "west")
    east.put("a")
    west.put("b")
    await rig.ready()
    await rig.settled()
    before = watcher(rig)
    await rig.kill()
    await rig.fleet.disengage("west")
    pods = await rig.ready()
    await eventually(lambda: pods.shown("default", "b") is None)
    client = Client(pods, before.cursor.position, before.store)
    client.drain()
    assert set(client.store) == {("default", "a")}


async def test_a_member_without_usable_credentials_keeps_its_objects_over_a_restart(rig: Rig) -> None:
    east, west = await rig.add("east", "west")
    east.put("a")
    west.put("b")
    await rig.ready()
    await rig.settled()
    await rig.kill()
    # Discovery names it still, but its kubeconfig cannot be read now: it is away, it has not left.
    member = rig.fleet.members.pop("west")
    rig.fleet.inaccessible.add("west")
    pods = await rig.ready()
    snapshot = await pods.snapshot()
    assert snapshot.left_out == ["west"]
    await pods.open_gap("west")
    west.put("c")
    east.put("d")
    await eventually(lambda: pods.shown("default", "d"))
    assert pods.shown("default", "b") is not None
    rig.fleet.inaccessible.discard("west")
    await rig.fleet.engage(member)
    await eventually(lambda: pods.shown("default", "c"))
    await eventually(lambda: not pods.state.gaps)
    assert pods.shown("default", "b") is not None


async def test_objects_of_one_key_on_two_members(rig: Rig) -> None:
    east, west = await rig.add("east", "west")
    pods = await rig.ready()
    client = watcher(rig)
    west.put("a")
    await rig.settled()
    east.put("a")
    await rig.settled()
    assert pods.is_clash("default", "a")
    assert [one.cluster for one in pods.iter_markers("default")] == ["west", "east"]
    west.delete("a")
    await rig.settled()
    client.drain()
    assert [(one.type, one.cluster) for one in client.entries] == [
        ("ADDED", "west"), ("DELETED", "west"), ("ADDED", "east"),
    ]  # fmt: skip
    first, second = client.entries[1:]
    assert second.fleet == first.fleet + 1, "one transaction"
    assert not pods.is_clash("default", "a")


async def test_a_type_that_a_member_lacks_and_gets_and_loses(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.aggregator.clock.feed.NO_TYPE_RETRY", 0.1)
    _east, west = await rig.add("east", "west")
    west.has_type = False
    pods = await rig.ready()
    assert pods.members["west"].state == "NoType" and not pods.members["west"].serves
    snapshot = await pods.snapshot()
    assert set(snapshot.members) == {"east"} and snapshot.left_out == []
    west.has_type = True
    west.put("b")
    await rig.settled()
    west.has_type = False
    west.break_connections()
    await eventually(lambda: pods.shown("default", "b") is None)
    assert "west" not in pods.state.positions


async def test_a_proxy_that_answers_404_deletes_nothing(rig: Rig) -> None:
    (east,) = await rig.add("east")
    east.put("a")
    pods = await rig.ready()
    await rig.settled()
    east.has_type = False
    east._discovery_says = True  # its discovery still names the type
    east.break_connections()
    await eventually(lambda: pods.members["east"].state == "Unreachable")
    assert pods.shown("default", "a") is not None


async def test_etcd_is_killed_and_comes_back(rig: Rig, etcd: EtcdServer) -> None:
    (east,) = await rig.add("east")
    east.put("a")
    pods = await rig.ready()
    await rig.settled()
    client = watcher(rig)
    etcd.kill()
    east.put("b")
    east.put("a")
    with pytest.raises(StatusError) as caught:
        await pods.snapshot(timeout=1)
    assert caught.value.code == 503
    await asyncio.sleep(0.3)
    await etcd.start()
    await rig.settled(30)
    client.drain()
    assert [(one.type, one.name) for one in client.entries] == [("ADDED", "b"), ("MODIFIED", "a")]


async def test_etcd_hangs_and_what_was_sent_succeeds_late(
    rig: Rig, etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.aggregator.clock.store.COMMIT_TIMEOUT", 0.3)
    (east,) = await rig.add("east")
    east.put("a")
    await rig.ready()
    await rig.settled()
    client = watcher(rig)
    etcd.pause()
    east.put("b")
    await asyncio.sleep(0.8)
    etcd.resume()
    east.put("c")
    await rig.settled(30)
    client.drain()
    assert [(one.type, one.name) for one in client.entries] == [("ADDED", "b"), ("ADDED", "c")]


async def test_etcd_is_emptied(rig: Rig, etcd: EtcdServer) -> None:
    (east,) = await rig.add("east")
    east.put("a")
    pods = await rig.ready()
    await rig.settled()
    old, cursor = pods.head, pods.cursor(pods.head)
    etcd.kill()
    etcd.empty()
    await etcd.start()
    east.put("b")
    await eventually(lambda: pods.head > old and rig.have() == rig.want(), timeout=30)
    assert pods.floor > old, "versions of the lost etcd are expired"
    assert min(one.fleet for one in pods.iter_markers()) > old
    with pytest.raises(StatusError) as caught:
        cursor.take()
    assert caught.value.code == 410


async def test_an_idle_clock_notices_that_its_etcd_was_emptied(rig: Rig, etcd: EtcdServer) -> None:
    await rig.add("east")
    pods = await rig.ready()
    old = pods.head
    etcd.kill()
    etcd.empty()
    await etcd.start()
    await eventually(lambda: pods.floor > old, timeout=30)


async def test_another_process_takes_the_lease(rig: Rig, client: Etcd) -> None:
    (east,) = await rig.add("east")
    east.put("a")
    pods = await rig.ready()
    await rig.settled()
    watch = watcher(rig)
    term = pods.term
    key = KEYS.leader("", "pods")
    await client.delete(key)
    lease = await client.lease_grant(60)
    await client.put(key, b"another", lease)
    east.put("b")
    await eventually(lambda: not pods.term, "we stop leading")
    await pods.snapshot(timeout=2)
    assert pods.shown("default", "b") is None, "a deposed sequencer commits nothing, and goes on to answer"
    await client.lease_revoke(lease)
    await rig.settled()
    assert pods.term > term
    watch.drain()
    assert [(one.type, one.name) for one in watch.entries] == [("ADDED", "b")]


async def test_a_term_ends_that_lost_its_lease_before_it_began(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another resource's term may find the lease dead while this one's key is being granted. But a lease that was found
    dead before the key was asked for under another one says nothing of it."""
    terms: list[int] = []
    campaign = resource.campaign

    async def hearing(store: Any, group: str, name: str, leases: Any, *rest: Any, **more: Any) -> int:
        if terms:
            leases._lease = 12345
        terms.append(await campaign(store, group, name, leases, *rest, **more))
        if len(terms) == 1:
            rig.pods.depose()
        return terms[-1]

    monkeypatch.setattr(resource, "campaign", hearing)
    await rig.add("east")
    pods = await rig.start()
    await eventually(lambda: len(terms) == 2 and pods.term == terms[1], "the first term ends, another begins")
    await asyncio.wait_for(pods.synced.wait(), 20)
    await pods.snapshot(timeout=5)
    assert len(terms) == 2 and pods.term == terms[1]


async def test_two_clocks_on_one_etcd(rig: Rig, etcd: EtcdServer) -> None:
    (east,) = await rig.add("east")
    pods = await rig.ready()
    other = Rig(etcd)
    other.members, other.fleet.members = rig.members, rig.fleet.members
    await other.start()
    try:
        east.put("a")
        await rig.settled()
        assert pods.term and not other.pods.term
        version = pods.head
        await rig.stop()
        await asyncio.wait_for(other.pods.synced.wait(), 20)
        east.put("b")
        await other.settled()
        entries = other.pods.cursor(version).take()
        assert [(one.type, one.name) for one in entries] == [("ADDED", "b")]
    finally:
        await other.stop()


async def test_the_store_of_another_fleet_is_refused(rig: Rig, client: Etcd) -> None:
    await rig.add("east")
    await rig.ready()
    await rig.stop()
    await rig.start()
    assert rig.clock is not None
    rig.clock.context.store.fleet_id = "another"
    with pytest.raises(
        StartRefused, match=r"holds the markers of fleet .*`etcdctl del --prefix /reclock/v1/"
    ):
        assert rig.task is not None
        await rig.task


async def test_a_newer_layout_is_refused(rig: Rig, client: Etcd) -> None:
    await rig.add("east")
    await client.put(KEYS.base, b"\x02whatever")
    await rig.start()
    with pytest.raises(StartRefused, match="newer Reclock"):
        assert rig.task is not None
        await rig.task


async def test_a_compacted_member_is_listed_anew_on_request(rig: Rig) -> None:
    (east,) = await rig.add("east")
    east.put("a")
    pods = await rig.ready()
    await rig.settled()
    await eventually(lambda: pods.members["east"].state == "Live")
    before = pods.state.positions["east"]
    east.rev += 50  # no bookmark comes
    east.compact()
    await pods.refresh("east")
    after = pods.state.positions["east"]
    assert after.read == east.rev and after.incarnation == before.incarnation


async def test_claims(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    (east,) = await rig.add("east")
    pods = await rig.ready()
    claim = await pods.claim("default", "a", "east")
    monkeypatch.setattr(answers, "CLAIM_PATIENCE", 0.05)
    with pytest.raises(StatusError) as caught:
        await pods.claim("default", "a", "west")
    assert caught.value.code == 503, "nobody knows yet whether there will be such an object"
    monkeypatch.undo()
    second = asyncio.ensure_future(pods.claim("default", "a", "west"))
    await asyncio.sleep(0.05)
    claim.leave()  # its outcome is not known: the next one goes to the same member
    claim = await second
    assert (claim.cluster, claim.earlier) == ("east", True)
    await claim.move("west")  # east is known not to have it
    claim.leave()
    claim = await pods.claim("default", "a", "east")
    assert (claim.cluster, claim.earlier) == ("west", True)
    await claim.release()
    claim = await pods.claim("default", "a", "west")
    assert claim.cluster == "west"
    await claim.release()
    east.put("a")
    await rig.settled()
    with pytest.raises(StatusError) as caught:
        await pods.claim("default", "a", "east")
    assert caught.value.reason == "AlreadyExists"
    again = await pods.claim("default", "b", "east")
    await rig.kill()
    del again
    pods = await rig.ready()
    assert (await pods.claim("default", "b", "west")).cluster == "east", "claims outlive the process"


async def test_historic_vectors(rig: Rig) -> None:
    (east,) = await rig.add("east")
    pods = await rig.ready()
    seen = []
    for number in range(4):
        one = east.put(f"a{number}")
        marker = await pods.wait_version("east", "default", one.name, one.uid, one.version)
        assert marker is not None
        seen.append((marker.fleet, one.version))
    await rig.kill()
    pods = await rig.ready()
    for fleet, version in seen:
        vector = await pods.vector_at(fleet)
        assert east.at(vector.members["east"].read) == east.at(version)
    with pytest.raises(StatusError) as caught:
        await pods.vector_at(pods.floor - 1)
    assert caught.value.code == 410


async def test_the_window(etcd: EtcdServer, client: Etcd) -> None:
    rig = Rig(etcd, window_seconds=1.0)
    try:
        (east,) = await rig.add("east")
        pods = await rig.ready()
        east.put("a")
        east.put("gone")
        await rig.settled()
        cursor = pods.cursor(pods.head)
        east.delete("gone")
        await rig.settled()
        east.put("b")
        await rig.settled()
        await eventually(lambda: len(pods.state.log) == 0, "the log is trimmed")
        with pytest.raises(StatusError) as caught:
            cursor.take()
        assert caught.value.code == 410
        assert pods.cursor(pods.floor).take() == [], "nothing newer was dropped"
        key = KEYS.marker("", "pods", "default", "gone", "east")

        async def purged() -> bool:
            return await client.get(key) is None

        for _ in range(200):
            if await purged():
                break
            await asyncio.sleep(0.05)
        assert await purged(), "the tombstone leaves etcd"
        assert pods.marker("east", "default", "gone") is None
        floor = pods.floor
        with pytest.raises(Exception, match="compacted"):
            await client.range(KEYS.prefix, prefix=True, revision=2)
        await rig.kill()
        pods = await rig.ready()
        await rig.settled()
        assert pods.floor == floor, "a restart expires nothing"
        east.put("c")
        await rig.settled()
        assert [one.name for one in pods.cursor(floor).take()] == ["c"]
    finally:
        await rig.close()
