"""What may be written, and by whom: each guard of a transaction on a real etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from _fastpath.marker import Marker
from services.aggregator.clock import history
from services.aggregator.clock.batch import Batch
from services.aggregator.clock.election import LeaseKeeper, campaign
from services.aggregator.clock.follower import Follower
from services.aggregator.clock.position import Position
from services.aggregator.clock.state import Change, State
from services.aggregator.clock.store import Deposed, GapReopened, Holder, StartRefused, StorageChanged, Store
from services.common.etcd import Etcd
from tests.integration.clock_rig import eventually
from tests.integration.etcd_server import EtcdServer

LIFE = "00000000-0000-4000-8000-000000000001/0"
UID = "00000000-0000-4000-9000-000000000001"


@pytest_asyncio.fixture
async def store(etcd: EtcdServer) -> AsyncIterator[Store]:
    client = Etcd.connect([etcd.endpoint])
    one = Store(client, "/reclock/v1/", "fleet")
    await one.open()
    try:
        yield one
    finally:
        await client.close()


async def lead(store: Store, who: str = "me") -> tuple[int, State]:
    """A term, and the state that it begins with."""
    term = await campaign(
        store, "", "pods", LeaseKeeper(store, 60), who, vacancy=asyncio.sleep, known=lambda: 0
    )  # type: ignore[arg-type]
    return term, await read(store)


async def read(store: Store) -> State:
    """The state of now, as a replica reads and follows it."""
    tail = Tail(await history.load(store, "", "pods", 1000))
    follower = Follower(store, lambda: [tail], lambda base, *, rewound: store.open(rewound=rewound))
    follower.join(tail)
    task = asyncio.create_task(follower.run())
    try:
        _, newest = await store.committed("", "pods", 0)
        await eventually(lambda: tail.seen >= newest)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return tail.state


class Tail:
    """A resource that is followed, with nothing around it."""

    group, resource = "", "pods"

    def __init__(self, state: State) -> None:
        self.state = state
        self.seen = state.revision

    def observe(self, change: Change) -> None:
        self.state.apply(change)

    def passed(self, revision: int) -> None:
        self.seen = revision
        self.state.pass_revision(revision)

    def lost(self) -> None:
        raise AssertionError("nothing was compacted")

    def leader_changed(self, create_revision: int, mod_revision: int) -> None:
        """Of no interest here."""

    def leader_missing(self, revision: int) -> None:
        """Of no interest here."""

    def gap_changed(self, cluster: str, revision: int, there: bool) -> None:
        """Of no interest here."""

    def list_asked(self, cluster: str, read: int) -> None:
        """Of no interest here."""

    def watch_doubted(self, cluster: str, read: int) -> None:
        """Of no interest here."""


def batch(version: int) -> Batch:
    """One marker and its position."""
    marker = Marker("east", LIFE, "ns", "a", UID, version)
    return Batch([marker], {"east": Position(LIFE, version, version)})


async def test_a_term_that_is_over_writes_nothing(store: Store) -> None:
    term, state = await lead(store)
    await store.resign("", "pods", term)
    with pytest.raises(Deposed):
        await store.commit("", "pods", term, state, batch(1))
    newer, state = await lead(store)
    assert newer > term
    with pytest.raises(Deposed):
        # The positions are as they were: the term alone tells the two apart.
        await store.commit("", "pods", term, state, batch(1))
    with pytest.raises(Deposed):
        await store.commit("", "pods", term, state, Batch(gap=("east", 0)))
    with pytest.raises(Deposed):
        await store.purge("", "pods", term, [])
    await store.commit("", "pods", newer, state, batch(1))


async def test_resigning_from_an_older_term_leaves_the_newer_one(store: Store) -> None:
    term, _ = await lead(store)
    await store.resign("", "pods", term)
    newer, state = await lead(store)
    await store.resign("", "pods", term)
    await store.commit("", "pods", newer, state, batch(1))


async def test_a_position_that_somebody_moved_refuses_the_batch(store: Store) -> None:
    term, state = await lead(store)
    key = store.keys.position("", "pods", "east")
    await store.etcd.put(key, Position(LIFE, 9, 9).encode())
    with pytest.raises(Deposed):
        await store.commit("", "pods", term, state, batch(1))
    assert await store.etcd.get(store.keys.marker("", "pods", "ns", "a", "east")) is None


async def test_a_rebuilt_base_refuses_the_batch_and_the_election(store: Store) -> None:
    term, state = await lead(store)
    await store.etcd.delete(store.keys.base)
    with pytest.raises(Deposed):
        await store.commit("", "pods", term, state, batch(1))
    with pytest.raises(StorageChanged):
        await store.elect("", "other", "me", 0)


async def test_a_gap_that_was_put_again_is_not_closed(store: Store) -> None:
    term, state = await lead(store)
    first = await store.put_gap("", "pods", "east")
    second = await store.put_gap("", "pods", "east")
    with pytest.raises(GapReopened):
        await store.commit("", "pods", term, state, Batch(gap=("east", first)))
    await store.commit("", "pods", term, state, Batch(gap=("east", second)))
    assert await store.etcd.get(store.keys.gap("", "pods", "east")) is None


async def test_a_tombstone_that_changed_is_not_purged(store: Store) -> None:
    term, state = await lead(store)
    revision = await store.commit("", "pods", term, state, batch(1))
    marker = Marker("east", LIFE, "ns", "a", UID, 1)
    with pytest.raises(Deposed):
        await store.purge("", "pods", term, [(marker, revision - 1)])
    await store.purge("", "pods", term, [(marker, revision)])
    assert await store.etcd.get(store.keys.marker("", "pods", "ns", "a", "east")) is None


async def test_only_one_leads(store: Store) -> None:
    term, _ = await lead(store)
    held = await store.elect("", "pods", "another", 0)
    assert isinstance(held, Holder) and (held.identity, held.create_revision) == ("me", term)
    revision, leaders = await store.leaders()
    assert leaders == {("", "pods"): term} and revision >= term


async def test_the_base_is_made_once_and_is_the_fleets(store: Store, etcd: EtcdServer) -> None:
    again = Store(store.etcd, "/reclock/v1", "fleet")
    await again.open()
    assert again.base == store.base
    with pytest.raises(StartRefused):
        await Store(store.etcd, "/reclock/v1/", "other").open()
    elsewhere = Store(store.etcd, "/elsewhere/", "other")
    await elsewhere.open()


async def test_a_store_that_was_set_back_gets_a_base_above_the_old_one(store: Store) -> None:
    old = store.base
    await store.open(rewound=True)
    assert store.base > old
    new = store.base
    await store.open()
    assert store.base == new


async def test_a_whole_batch_of_the_largest_size_is_taken(store: Store) -> None:
    term, state = await lead(store)
    markers = [Marker("east", LIFE, "ns", f"a{number}", UID, number + 1) for number in range(127)]
    revision = await store.commit("", "pods", term, state, Batch(markers, {"east": Position(LIFE, 127, 127)}))
    loaded = await read(store)
    assert [one.name for one in loaded.log.entries] == [f"a{number}" for number in range(127)]
    assert [one.fleet for one in loaded.log.entries] == [loaded.fleet(revision, number) for number in range(127)]
