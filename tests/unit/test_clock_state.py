"""Index, log, cursors, the window, history: what readers see of committed revisions."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import pytest

from _fastpath.marker import EVENT, Marker
from services.aggregator.clock.cursor import Cursor
from services.aggregator.clock.position import Position
from services.aggregator.clock.pulse import Pulse
from services.aggregator.clock.retention import Window
from services.aggregator.clock.state import Change, State
from services.aggregator.clock.vector import vector_of
from services.common.errors import StatusError

LIFE = "00000000-0000-4000-8000-000000000001/0"
BASE = 1000


def put(
    cluster: str, name: str, version: int, *, deleted: bool = False, uid: int = 1, kind: int = EVENT
) -> Marker:
    text = f"00000000-0000-4000-9000-{uid:012d}"
    return Marker(cluster, LIFE, "ns", name, text, version, {}, deleted=deleted, kind=kind)


def commit(state: State, *markers: Marker, **positions: int) -> int:
    """One revision; returns the fleet version of its last marker."""
    for one in markers:
        old = state.index.get(one.cluster, one.namespace, one.name)
        one.keep_since(old.since if old is not None and not old.deleted and not one.deleted else 0)
    moved = {name: Position(LIFE, read, read) for name, read in positions.items()}
    state.apply(Change(state.revision + 1, list(enumerate(markers)), dict(moved)))
    return state.head


def owner(state: State) -> SimpleNamespace:
    return SimpleNamespace(state=state, pulse=Pulse())


def test_history_of_a_key() -> None:
    state = State(BASE, 5)
    first = commit(state, put("east", "a", 1))
    second = commit(state, put("east", "a", 2))
    third = commit(state, put("east", "a", 3, deleted=True))
    assert [state.marker_at("east", "ns", "a", v).version for v in (first, second, third)] == [1, 2, 3]  # type: ignore[union-attr]
    assert state.marker_at("east", "ns", "a", first - 1) is None
    assert state.shown_at("ns", "a", second) is not None and state.shown_at("ns", "a", third) is None
    assert state.index.live == 0 and state.index.size == 1


def test_the_elder_is_shown_as_of_any_version() -> None:
    state = State(BASE, 5)
    first = commit(state, put("west", "a", 1))
    second = commit(state, put("east", "a", 9))
    for version in (first, second):
        shown = state.shown_at("ns", "a", version)
        assert shown is not None and shown.cluster == "west"


def test_a_slow_cursor_is_told_that_it_fell_out_of_the_window() -> None:
    state = State(BASE, 5)
    who = owner(state)
    slow, start = Cursor(who, state.head), state.head
    commit(state, put("east", "a", 1))
    second = commit(state, put("east", "b", 2))
    state.trim(state.revision - 1)
    with pytest.raises(StatusError) as caught:
        slow.take()
    assert caught.value.code == 410
    with pytest.raises(StatusError):
        Cursor(who, start)
    assert [one.fleet for one in Cursor(who, state.floor).take()] == [second]


def test_nothing_newer_dropped_means_nothing_expired() -> None:
    state = State(BASE, 5)
    last = commit(state, put("east", "a", 1))
    for _ in range(5):
        commit(state, east=9)
    state.trim(state.revision)
    cursor = Cursor(owner(state), last)
    assert cursor.take() == [] and cursor.position == state.head


def test_a_cursor_takes_in_slices_and_ends_at_the_head() -> None:
    state = State(BASE, 5)
    cursor = Cursor(owner(state), state.head)
    for number in range(10):
        commit(state, put("east", f"a{number}", number + 1))
    commit(state, east=99)
    taken = []
    while some := cursor.take(3):
        assert len(some) <= 3
        taken += some
    assert [one.version for one in taken] == list(range(1, 11))
    assert cursor.position == state.head


def test_hidden_entries_are_not_taken() -> None:
    state = State(BASE, 5)
    cursor = Cursor(owner(state), state.head)
    commit(state, put("west", "a", 1))
    for version in range(20, 30):
        commit(state, put("east", "a", version))
    commit(state, put("west", "b", 2))
    assert [one.name for one in cursor.take(2)] == ["a"]
    assert [one.name for one in cursor.take(2)] == ["b"]


def test_a_cursor_of_the_future_waits_for_it() -> None:
    state = State(BASE, 5)
    future = state.fleet(8, 0)
    cursor = Cursor(owner(state), future)
    for number in range(6):
        commit(state, put("east", f"a{number}", number + 1))
    assert [one.fleet > future for one in cursor.take()] == [True] * 3


async def test_a_cursor_waits_for_entries_and_moved_heads() -> None:
    state = State(BASE, 5)
    who = owner(state)
    cursor = Cursor(who, state.head)
    assert not await cursor.wait(0.01)
    waiting = asyncio.create_task(cursor.wait(5))
    await asyncio.sleep(0)
    commit(state, put("east", "a", 1))
    who.pulse.beat()
    assert await waiting
    assert cursor.take() and not cursor.take()
    state.pass_revision(state.revision + 1)
    assert await cursor.wait(5) and cursor.take() == [] and cursor.position == state.head


async def test_a_cancelled_waiter_takes_nobody_with_it() -> None:
    pulse = Pulse()
    one, two = asyncio.create_task(pulse.wait()), asyncio.create_task(pulse.wait())
    await asyncio.sleep(0)
    one.cancel()
    await asyncio.sleep(0)
    pulse.beat()
    assert await two is True
    assert one.cancelled()


def test_tombstones_leave_only_behind_the_window_and_never_as_the_newest() -> None:
    state = State(BASE, 5)
    commit(state, put("east", "a", 1))
    commit(state, put("east", "a", 2, deleted=True))
    assert state.purgeable(9) == []
    state.trim(state.revision)
    assert state.purgeable(9) == [], "the newest put tells a restart where the log began"
    commit(state, put("east", "b", 3))
    assert [one.name for one in state.purgeable(9)] == ["a"]
    commit(state, put("east", "a", 4))
    assert state.purgeable(9) == [], "the object is back"


def test_the_state_before_goes_with_its_entry() -> None:
    state = State(BASE, 5)
    commit(state, put("east", "a", 1))
    commit(state, put("east", "a", 2))
    newest = state.index.get("east", "ns", "a")
    assert newest is not None and newest.prev is not None
    state.trim(state.revision)
    assert newest.prev is None


def test_trimming_keeps_what_is_newer_through_all_compactions_of_the_list() -> None:
    state = State(BASE, 5)
    for number in range(20_000):
        commit(state, put("east", f"a{number % 50}", number + 1))
    cursor = Cursor(owner(state), state.fleet(15_005, 127))
    while state.trim(15_005, 777):
        pass
    versions = [one.version for one in cursor.take(100_000)]
    assert versions == list(range(15_001, 20_001)) and len(state.log) == 5_000


def test_index_in_key_order_against_a_plain_model() -> None:
    pick = random.Random(7)
    state, model = State(BASE, 5), {}
    for number in range(3000):
        cluster, name = pick.choice("xyz"), f"n{pick.randrange(40):02d}"
        deleted = pick.random() < 0.4
        if deleted and (cluster, name) not in model:
            continue
        commit(state, put(cluster, name, number, deleted=deleted))
        if deleted:
            del model[cluster, name]
        else:
            model[cluster, name] = number
        if pick.random() < 0.05:
            state.trim(state.revision - 20)
            gone = state.purgeable(5)
            state.apply(Change(state.revision + 1, purged=[(m.cluster, m.namespace, m.name) for m in gone]))
        if number % 50 == 0:
            live = list(state.index.iter_live())
            assert {(m.cluster, m.name): m.version for m in live} == model
            assert [m.name for m in live] == sorted(m.name for m in live)
            names = {name for _, name in model}
            assert state.index.live == len(model) and state.index.hidden == len(model) - len(names)
            assert state.index.size == sum(1 for _ in state.index)
            assert {name for name in names if state.index.is_clash("ns", name)} == {
                name for name in names if sum(1 for _, n in model if n == name) > 1
            }


def test_the_window_goes_back_its_seconds_or_its_revisions() -> None:
    window = Window(30, 1000)
    assert window.sample(0, 10) == 0
    assert window.sample(29, 20) == 0
    assert window.sample(31, 30) == 10
    assert window.sample(60, 40) == 20
    assert window.sample(61, 5000) == 4000, "whichever is less"
    assert window.sample(62, 7) == 0, "another store"


def test_vectors_in_the_middle_of_a_transaction() -> None:
    state = State(BASE, 5)
    commit(state, put("east", "z", 4), east=4, west=4)
    commit(state, put("east", "a", 6), put("west", "b", 5), put("east", "c", 8), east=8, west=5)
    fleet, positions = state.fleet(state.revision), dict(state.positions)
    assert {c: p.read for c, p in vector_of(state, fleet + 2, positions).members.items()} == {
        "east": 8,
        "west": 5,
    }
    assert {c: p.read for c, p in vector_of(state, fleet + 1, positions).members.items()} == {
        "east": 7,
        "west": 5,
    }
    assert {c: p.read for c, p in vector_of(state, fleet, positions).members.items()} == {
        "east": 7,
        "west": 4,
    }


def test_no_vector_between_events_of_one_version_nor_inside_a_diff() -> None:
    state = State(BASE, 5)
    commit(state, put("east", "a", 1), put("east", "b", 2), east=2)
    commit(state, put("east", "a", 6, deleted=True), put("east", "b", 6, deleted=True), east=6)
    fleet = state.fleet(state.revision)
    with pytest.raises(StatusError, match="between events"):
        vector_of(state, fleet, dict(state.positions))
    diffing = {"east": Position(LIFE, 6, 6, True, LIFE)}
    with pytest.raises(StatusError, match="relist"):
        vector_of(state, fleet + 1, diffing)
