"""Tombstones leave etcd also under load, as fast as objects are deleted."""

from __future__ import annotations

import asyncio
from typing import Any

from _fastpath.marker import EVENT, Marker
from services.aggregator.clock.position import Position
from services.aggregator.clock.retention import PURGE_AT_ONCE
from services.aggregator.clock.sequencer import Sequencer
from services.aggregator.clock.state import Change, State

BASE = 1_700_000_000_000
LIFE = "uid/0"


def put(name: str, version: int, *, deleted: bool = False) -> Marker:
    uid = "11111111-2222-4333-8444-555555555555"
    return Marker("east", LIFE, "ns", name, uid, version, {}, deleted=deleted, kind=EVENT)


class FakeStore:
    """Commits at once; a feed that never pauses puts the next event meanwhile."""

    def __init__(self) -> None:
        self.revision = 1
        self.purged = 0
        self.sequencer: Any = None

    async def commit(self, *_: Any) -> int:
        await asyncio.sleep(0)
        self.sequencer.put_nowait("east", put("busy", self.revision + 10_000))
        self.revision += 1
        return self.revision

    async def purge(self, _group: str, _resource: str, _term: int, revisions: list[Any], *_: Any) -> int:
        await asyncio.sleep(0)
        self.purged += len(revisions)
        self.revision += 1
        return self.revision


async def test_tombstones_go_though_events_never_pause() -> None:
    state, store = State(BASE, 1), FakeStore()
    state.apply(Change(2, [], {"east": Position(LIFE, 1, 1)}))
    for number in range(100):
        state.apply(Change(3 + number, [(0, put(f"a{number}", 10 + number, deleted=True))], {}))
    store.revision = state.revision
    state.trim(state.revision)
    sequencer = Sequencer(store, "", "pods", state=state, term=1, committed=lambda *_: None)  # type: ignore[arg-type]
    store.sequencer = sequencer
    sequencer.put_nowait("east", put("busy", 10_000))
    task = asyncio.create_task(sequencer.run())
    sequencer.purge(state.purgeable(PURGE_AT_ONCE))
    sequencer.purge(state.purgeable(PURGE_AT_ONCE))
    for _ in range(2000):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert store.purged == 99, "all but the newest"


def test_a_long_row_of_tombstones_is_taken_from_its_front() -> None:
    state = State(BASE, 1)
    for number in range(2000):
        state.apply(Change(2 + number, [(0, put(f"a{number}", number + 1, deleted=True))], {}))
    while state.trim(state.revision):
        pass
    names = [one.name for one in state.purgeable(10)]
    assert names == [f"a{number}" for number in range(10)]
    assert [one.name for one in state.purgeable(10)] == names, "until they are purged"
    state.apply(Change(state.revision + 1, purged=[("east", "ns", name) for name in names]))
    assert [one.name for one in state.purgeable(3)] == ["a10", "a11", "a12"]
    assert len(state.purgeable(5000)) == 1989
