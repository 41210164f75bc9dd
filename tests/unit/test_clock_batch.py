"""One transaction: what is taken, what is dropped, what is guarded. Each rule closes a hole of the protocol."""

from __future__ import annotations

from collections import deque

import pytest

from _fastpath.marker import CLASH, DIFF, GAP, LEAVE, Marker
from services.aggregator.clock.batch import MAX_OPS, Batch, Builder, Queues
from services.aggregator.clock.position import Position
from services.aggregator.clock.state import State
from services.aggregator.clock.work import Bookmark, DiffRun, GapRun, LeaveRun, Work

BASE = 1000
LIFE = {
    name: f"00000000-0000-4000-8000-{number:012d}/0" for number, name in enumerate(("east", "west", "north"))
}


def uid(number: int) -> str:
    return f"00000000-0000-4000-9000-{number:012d}"


def event(
    cluster: str, name: str, number: int, version: int, *, deleted: bool = False, life: str = ""
) -> Marker:
    return Marker(
        cluster, life or LIFE[cluster], "ns", name, uid(number), version, {"v": str(version)}, deleted=deleted
    )


class Bench:
    """A state that commits by itself: revision by revision."""

    def __init__(self, *clusters: str, limit: int = MAX_OPS) -> None:
        self.state = State(BASE, 1)
        self.limit = limit
        self.queues: Queues = {}
        self.order: deque[str] = deque()
        self.batches: list[Batch] = []
        for cluster in clusters:
            self.push(cluster, DiffRun(cluster, 10, LIFE[cluster], []))
        self.drain()
        self.batches.clear()

    def push(self, cluster: str, *work: Work) -> None:
        if cluster not in self.queues:
            self.queues[cluster] = deque()
            self.order.append(cluster)
        self.queues[cluster].extend(work)

    def one(self) -> Batch:
        batch = Builder(self.state, self.limit).build(self.queues, self.order)
        size = len(batch.markers) + len(batch.positions) + len(batch.gaps_left) + bool(batch.gap)
        assert size <= max(self.limit, 4), "etcd's limit of operations"
        keys = [(m.cluster, m.namespace, m.name) for m in batch.markers]
        assert len(set(keys)) == len(keys), "no key twice"
        assert {m.cluster for m in batch.markers} <= set(batch.positions), (
            "every position is written and guarded"
        )
        if batch:
            self.state.apply(batch.change(self.state.revision + 1))
            self.batches.append(batch)
        return batch

    def drain(self) -> list[Batch]:
        for _ in range(1000):
            if not any(self.queues.values()):
                return self.batches
            self.one()
        raise AssertionError("never done")

    def entries(self) -> list[tuple[str, str, str]]:
        log = self.state.log
        return [(m.type, m.cluster, m.name) for m in log.entries[log.start :]]


def test_events_move_the_position_behind_all_but_the_open_run() -> None:
    bench = Bench("east")
    bench.push("east", event("east", "a", 1, 12), event("east", "b", 2, 15))
    bench.drain()
    assert bench.state.positions["east"] == Position(LIFE["east"], 15, 14)
    assert len(bench.batches) == 1


def test_a_batch_ends_before_the_second_event_of_a_key() -> None:
    bench = Bench("east", "west")
    bench.push("east", event("east", "a", 1, 12), event("east", "a", 1, 13), event("east", "b", 2, 14))
    bench.push("west", event("west", "c", 3, 12))
    first = bench.one()
    assert sorted((m.name, m.version) for m in first.markers) == [("a", 12), ("c", 12)]
    bench.drain()
    assert [m.version for m in bench.state.log.entries if m.cluster == "east"] == [12, 13, 14]


def test_what_the_log_has_is_dropped_and_moves_nothing_back() -> None:
    bench = Bench("east")
    bench.push("east", event("east", "a", 1, 12), event("east", "b", 2, 15))
    bench.drain()
    builder_state = bench.state.positions["east"]
    bench.push(
        "east", event("east", "a", 1, 12), event("east", "b", 2, 15), event("east", "zz", 9, 16, deleted=True)
    )
    bench.drain()
    assert len(bench.batches) == 1
    assert bench.state.positions["east"] == builder_state


def test_a_run_of_one_version_goes_on_after_a_crash() -> None:
    bench = Bench("east")
    bench.push("east", *(event("east", n, i, 11 + i) for i, n in enumerate("abc")))
    bench.push("east", event("east", "a", 0, 20, deleted=True), event("east", "b", 1, 20, deleted=True))
    bench.drain()
    assert bench.state.positions["east"] == Position(LIFE["east"], 20, 19)
    # The watch starts again above 19: all of the run comes once more.
    bench.push("east", *(event("east", n, i, 20, deleted=True) for i, n in enumerate("abc")))
    bench.drain()
    assert [m.name for m in bench.state.log.entries if m.deleted] == ["a", "b", "c"]


def test_an_older_state_at_the_same_version_is_not_put_again() -> None:
    bench = Bench("east")
    bench.push("east", event("east", "a", 1, 12))
    bench.drain()
    bench.push("east", event("east", "a", 7, 12))
    bench.drain()
    assert len(bench.batches) == 1, "another uid at `read` cannot be newer than what is marked there"


def test_a_bookmark_moves_the_position_only_above_read() -> None:
    bench = Bench("east")
    bench.push("east", event("east", "a", 1, 12), Bookmark(12))
    bench.drain()
    assert bench.state.positions["east"].resume == 11, "between two events of one version the run is open"
    bench.push("east", Bookmark(14))
    bench.drain()
    assert bench.state.positions["east"] == Position(LIFE["east"], 14, 14)
    before = len(bench.batches)
    bench.push("east", Bookmark(13))
    bench.drain()
    assert len(bench.batches) == before
    bench.push("east", Bookmark(0, forced=True))
    bench.drain()
    assert len(bench.batches) == before + 1
    assert bench.state.positions["east"] == Position(LIFE["east"], 14, 14)


def test_a_diff_of_one_transaction_sets_no_flag() -> None:
    bench = Bench("east")
    bench.push(
        "east", DiffRun("east", 30, LIFE["east"], [event("east", "a", 1, 12), event("east", "b", 2, 25)])
    )
    batch = bench.one()
    assert batch.positions["east"] == Position(LIFE["east"], 30, 30)
    assert bench.entries() == [("ADDED", "east", "a"), ("ADDED", "east", "b")]


def test_a_diff_of_many_keeps_the_old_position_until_its_last() -> None:
    bench = Bench("east", limit=4)
    life = LIFE["east"][:-1] + "1"
    bench.push(
        "east", DiffRun("east", 30, life, [event("east", f"a{i}", i, 12 + i, life=life) for i in range(5)])
    )
    seen = []
    while any(bench.queues.values()):
        seen.append(bench.one().positions["east"])
    assert all(p is not None and p.diff and p.read == 10 and p.target == life for p in seen[:-1])
    assert seen[-1] == Position(life, 30, 30)
    assert len(seen) > 1


def test_a_diff_puts_exactly_what_is_missing() -> None:
    bench = Bench("east")
    bench.push("east", *(event("east", n, i, 11 + i) for i, n in enumerate("abcd")))
    bench.drain()
    same = event("east", "a", 0, 11)
    changed = event("east", "b", 1, 25)
    reborn = event("east", "c", 77, 24)
    start = len(bench.state.log)
    bench.push("east", DiffRun("east", 30, LIFE["east"], [same, changed, reborn, event("east", "e", 5, 23)]))
    bench.drain()
    assert bench.entries()[start:] == [
        ("DELETED", "east", "c"), ("DELETED", "east", "d"), ("ADDED", "east", "e"), ("ADDED", "east", "c"),
        ("MODIFIED", "east", "b"),
    ]  # fmt: skip
    gone = [m for m in bench.state.log.entries if m.deleted]
    assert {m.version for m in gone} == {30}, "a deletion made up carries the list's version"


def test_a_diff_of_another_life_takes_everything_as_changed() -> None:
    bench = Bench("east")
    bench.push("east", event("east", "a", 1, 12))
    bench.drain()
    life = LIFE["east"][:-1] + "1"
    bench.push("east", DiffRun("east", 30, life, [event("east", "a", 1, 12, life=life)]))
    bench.drain()
    newest = bench.state.index.get("east", "ns", "a")
    assert newest is not None and newest.incarnation == life and newest.type == "MODIFIED"


def test_a_diff_waits_until_its_members_events_are_committed() -> None:
    bench = Bench("east")
    bench.push(
        "east", event("east", "a", 1, 12), DiffRun("east", 30, LIFE["east"], [event("east", "a", 1, 12)])
    )
    assert [m.kind for m in bench.one().markers] == [0]
    bench.drain()
    assert [m.name for m in bench.state.log.entries] == ["a"], "the diff saw the committed event"


def test_the_elder_is_shown_and_the_next_follows_in_the_same_transaction() -> None:
    bench = Bench("east", "west")
    bench.push("west", event("west", "a", 1, 12))
    bench.drain()
    bench.push("east", event("east", "a", 2, 12))
    bench.drain()
    assert bench.entries() == [("ADDED", "west", "a"), ("HIDDEN", "east", "a")]
    assert bench.state.index.is_clash("ns", "a") and bench.state.index.hidden == 1
    bench.push("east", event("east", "a", 2, 13))
    bench.drain()
    assert bench.entries()[-1] == ("HIDDEN", "east", "a")
    bench.push("west", event("west", "a", 1, 14, deleted=True))
    batch = bench.one()
    assert bench.entries()[-2:] == [("DELETED", "west", "a"), ("ADDED", "east", "a")]
    assert set(batch.positions) == {"east", "west"}, "both positions are written and guarded"
    assert batch.positions["east"] == bench.state.positions["east"]
    assert batch.markers[1].kind == CLASH and bench.state.index.hidden == 0


def test_the_age_of_an_object_outlives_rewrites_and_ends_with_it() -> None:
    bench = Bench("east", "west")
    bench.push("west", event("west", "a", 1, 12))
    bench.drain()
    bench.push("east", event("east", "a", 2, 12))
    bench.drain()
    bench.push("west", event("west", "a", 1, 13), event("west", "a", 1, 14))
    bench.drain()
    shown = bench.state.index.shown("ns", "a")
    assert shown is not None and shown.cluster == "west"
    bench.push("west", event("west", "a", 1, 15, deleted=True), event("west", "a", 3, 16))
    bench.drain()
    shown = bench.state.index.shown("ns", "a")
    assert shown is not None and shown.cluster == "east", "made anew it is the younger one"
    assert bench.entries()[-1] == ("HIDDEN", "west", "a")


def test_an_object_replaced_without_its_deletion_is_deleted_first() -> None:
    bench = Bench("east")
    bench.push("east", event("east", "a", 1, 12))
    bench.drain()
    bench.push("east", event("east", "a", 2, 15))
    bench.drain()
    assert bench.entries() == [("ADDED", "east", "a"), ("DELETED", "east", "a"), ("ADDED", "east", "a")]


def test_a_gap_puts_every_live_object_anew_and_closes_alone() -> None:
    bench = Bench("east", "west")
    bench.push("east", event("east", "a", 1, 12), event("east", "b", 2, 13), event("east", "c", 3, 14))
    bench.push("east", event("east", "b", 2, 15, deleted=True))
    bench.drain()
    revision = bench.state.revision
    bench.state.see_gap("east", revision)
    bench.push("east", GapRun("east", revision))
    bench.push("west", event("west", "x", 4, 12))
    rewrite, close = bench.one(), bench.one()
    assert {(m.name, m.version) for m in rewrite.markers if m.kind == GAP} == {("a", 12), ("c", 14)}
    assert rewrite.positions["east"] == Position(LIFE["east"], 15, 14)
    assert close.gap == ("east", revision) and not close.markers and not close.positions
    assert bench.state.gaps == {}
    assert [e for e in bench.entries() if e[1] == "east"][-2:] == [
        ("MODIFIED", "east", "a"),
        ("MODIFIED", "east", "c"),
    ]


def test_what_was_numbered_after_the_gap_needs_no_rewrite() -> None:
    bench = Bench("east")
    bench.push("east", event("east", "a", 1, 12))
    bench.drain()
    gap = bench.state.revision
    bench.state.see_gap("east", gap)
    bench.push("east", event("east", "b", 2, 13))
    bench.drain()
    bench.push("east", GapRun("east", gap))
    assert [m.name for m in bench.one().markers] == ["a"]


def test_leaving_deletes_everything_then_the_position_and_the_gap() -> None:
    bench = Bench("east", limit=4)
    bench.push("east", *(event("east", f"a{i}", i, 12 + i) for i in range(5)))
    bench.drain()
    bench.state.see_gap("east", bench.state.revision)
    bench.batches.clear()
    bench.push("east", LeaveRun("east"))
    bench.drain()
    assert all(m.kind == LEAVE and m.deleted for b in bench.batches for m in b.markers)
    assert sum(len(b.markers) for b in bench.batches) == 5
    flags = [b.positions["east"] for b in bench.batches]
    assert all(p is not None and p.diff for p in flags[:-1]) and flags[-1] is None
    assert bench.batches[-1].gaps_left == ["east"]
    assert bench.state.positions == {} and bench.state.gaps == {} and bench.state.index.live == 0


def test_a_gap_that_outlived_its_member_goes_with_it() -> None:
    """An answer that came while the member was leaving put the gap behind its last transaction."""
    bench = Bench("east")
    bench.state.see_gap("west", 7)
    bench.push("west", LeaveRun("west"))
    batch = bench.one()
    assert batch and batch.gaps_left == ["west"] and batch.clusters == {"west"}
    assert batch.left, "the gap key may be gone: the transaction has to write something"
    bench.state.apply(batch.change(bench.state.revision + 1))
    assert not bench.state.clusters() - {"east"}


def test_leaving_uncovers_the_next_of_a_clash() -> None:
    bench = Bench("east", "west")
    bench.push("east", event("east", "a", 1, 12))
    bench.drain()
    bench.push("west", event("west", "a", 2, 12))
    bench.drain()
    bench.push("east", LeaveRun("east"))
    bench.drain()
    assert bench.entries()[-2:] == [("DELETED", "east", "a"), ("ADDED", "west", "a")]


def test_one_busy_member_does_not_starve_the_others() -> None:
    bench = Bench("east", "west")
    bench.push("east", *(event("east", f"a{i}", i, 12 + i) for i in range(500)))
    bench.push("west", event("west", "x", 999, 12))
    first = bench.one()
    assert any(m.cluster == "west" for m in first.markers)
    assert len(first.markers) + len(first.positions) == MAX_OPS


def test_an_event_without_a_position_is_a_bug() -> None:
    bench = Bench()
    bench.push("east", event("east", "a", 1, 12))
    with pytest.raises(AssertionError, match="without a position"):
        bench.one()


def test_a_diffs_deletions_are_of_its_list_and_kind() -> None:
    bench = Bench("east")
    bench.push("east", event("east", "a", 1, 12))
    bench.drain()
    bench.push("east", DiffRun("east", 30, LIFE["east"], []))
    bench.drain()
    last = bench.state.log.last
    assert last is not None and (last.kind, last.version, last.type) == (DIFF, 30, "DELETED")
