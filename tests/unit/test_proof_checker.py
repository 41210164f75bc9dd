"""The history checker finds each kind of breach, and none in a history that is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.proof.checker import INVARIANTS, check
from tests.proof.history import (
    Bookmark,
    Counter,
    Ended,
    Event,
    Got,
    History,
    Listed,
    Measure,
    MemberRecord,
    MemberState,
    Opened,
    Run,
    Seen,
    Wrote,
)

A, B = ("ns", "a"), ("ns", "b")


def seen(name: str, fleet: int, stamp: str, uid: str = "") -> Seen:
    return Seen("ns", name, uid or f"uid-{name}", "east", fleet, stamp)


def good() -> Run:
    """Two watchers, a writer and a member: a is changed twice and deleted, b is made and changed."""
    member = MemberRecord(
        "east",
        [
            MemberState(1, *A, "uid-a", "a1"), MemberState(2, *A, "uid-a", "a2"), MemberState(3, *B, "uid-b", "b1"),
            MemberState(4, *B, "uid-b", "b2"), MemberState(5, *A, "uid-a", "a2", deleted=True),
        ],
    )  # fmt: skip
    first = History("first", "all", [
        Listed(0.0, 0.1, 100, (seen("a", 100, "a1"),)),
        Opened(0.2, 100),
        Event(1.0, "MODIFIED", seen("a", 110, "a2")),
        Event(2.0, "ADDED", seen("b", 120, "b1")),
        Ended(2.1, 0),
        Opened(2.2, 120, "other"),
        Event(3.0, "MODIFIED", seen("b", 130, "b2")),
        Event(4.0, "DELETED", seen("a", 140, "a2")),
        Bookmark(5.0, 150),
    ])  # fmt: skip
    second = History("second", "all", [
        Listed(1.1, 1.2, 115, (seen("a", 110, "a2"),)),
        Opened(1.3, 115),
        Event(2.0, "ADDED", seen("b", 120, "b1")),
        Event(3.0, "MODIFIED", seen("b", 130, "b2")),
        Event(4.0, "DELETED", seen("a", 140, "a2")),
        Bookmark(5.0, 150),
    ])  # fmt: skip
    writer = History("writer", "all", [
        Wrote(1.8, 1.9, "create", B, 201, seen("b", 120, "b1")),
        Got(2.0, 2.1, B, seen("b", 120, "b1")),
        Wrote(2.8, 2.9, "update", B, 200, seen("b", 130, "b2")),
        Got(3.0, 3.1, B, seen("b", 130, "b2"), "other"),
        Wrote(3.8, 3.9, "delete", A, 200, None, "uid-a"),
        Got(4.0, 4.1, A, None),
        Listed(4.2, 4.3, 140, (seen("b", 130, "b2"),), follows=False),
    ])  # fmt: skip
    counter = Counter(B, 0, 5, {"x": (1, 3), "y": (2, 4)}, 1)
    return Run([first, second, writer], [member], {"all": {B: ("uid-b", "b2")}}, [counter])


def put(run: Run, client: int, place: int, *records: object) -> None:
    """Replace one record."""
    run.histories[client].records[place : place + 1] = records  # type: ignore[assignment]


def at(run: Run, client: int, place: int) -> object:
    return run.histories[client].records[place]


def i1_versions_go_back(run: Run) -> None:
    put(run, 0, 2, Event(1.0, "MODIFIED", seen("a", 100, "a2")))


def i1_repeated(run: Run) -> None:
    put(run, 0, 2, at(run, 0, 2), at(run, 0, 2))


def i1_added_twice(run: Run) -> None:
    put(run, 0, 2, Event(1.0, "ADDED", seen("a", 110, "a2")))


def i1_modified_unknown(run: Run) -> None:
    put(run, 0, 3, Event(2.0, "MODIFIED", seen("b", 120, "b1")))


def i1_other_object(run: Run) -> None:
    put(run, 0, 2, Event(1.0, "MODIFIED", seen("a", 110, "a2", uid="another")))


def i1_bookmark_goes_back(run: Run) -> None:
    put(run, 0, 8, Bookmark(5.0, 135))


def i1_listed_from_the_future(run: Run) -> None:
    put(run, 0, 0, Listed(0.0, 0.1, 100, (seen("a", 101, "a1"),)))


def i1_missing(run: Run) -> None:
    put(run, 1, 3)


def i1_missing_at_the_end(run: Run) -> None:
    run.gaps = True
    put(run, 1, 4)


def i2_object_out_of_order(run: Run) -> None:
    states = run.members[0].states
    states[2], states[3] = replace(states[2], version=4), replace(states[3], version=3)


def i2_member_out_of_order(run: Run) -> None:
    states = run.members[0].states
    states[1], states[3] = replace(states[1], version=4), replace(states[3], version=2)


def i3_one_version_two_states(run: Run) -> None:
    put(run, 2, 1, Got(2.0, 2.1, B, seen("b", 120, "other")))


def i3_one_state_two_versions(run: Run) -> None:
    put(run, 2, 3, Got(3.0, 3.1, B, seen("b", 131, "b2")))


def i4_final_state_is_missing(run: Run) -> None:
    run.final["all"][A] = ("uid-a", "a3")


def i4_final_state_is_another(run: Run) -> None:
    run.final["all"][B] = ("uid-b", "b3")


def i5_list_runs_back(run: Run) -> None:
    put(run, 2, 6, Listed(4.2, 4.3, 125, (), follows=False))


def i6_older_from_another_replica(run: Run) -> None:
    put(run, 2, 3, Got(3.0, 3.1, B, seen("b", 120, "b1"), "other"))


def i6_seen_after_its_deletion(run: Run) -> None:
    put(run, 0, 8, Got(4.5, 4.6, A, seen("a", 145, "a2")))


def i7_own_create_is_not_read(run: Run) -> None:
    put(run, 2, 1, Got(2.0, 2.1, B, None))


def i7_own_update_is_not_listed(run: Run) -> None:
    put(run, 2, 6, Listed(4.2, 4.3, 140, (), follows=False))


def i7_own_deletion_is_not_read(run: Run) -> None:
    put(run, 2, 5, Got(4.0, 4.1, A, seen("a", 141, "a3")))


def i8_one_value_won_twice(run: Run) -> None:
    run.counters[0] = Counter(B, 0, 4, {"x": (1, 2), "y": (2, 3)}, 0)


def i8_sum_too_small(run: Run) -> None:
    run.counters[0] = replace(run.counters[0], final=3)


def i8_sum_too_large(run: Run) -> None:
    run.counters[0] = replace(run.counters[0], final=6)


def i9_more_than_its_limit(run: Run) -> None:
    run.measures.append(Measure("bytes kept for first", 101, 100))


def i10_relist_inside_the_window(run: Run) -> None:
    put(run, 0, 4, Ended(2.1, 410, "too old"), Listed(2.2, 2.3, 125, (seen("a", 110, "a2"), seen("b", 120, "b1"))))


BROKEN = [
    i1_versions_go_back, i1_repeated, i1_added_twice, i1_modified_unknown, i1_other_object, i1_bookmark_goes_back,
    i1_listed_from_the_future, i1_missing, i1_missing_at_the_end, i2_object_out_of_order, i2_member_out_of_order,
    i3_one_version_two_states, i3_one_state_two_versions, i4_final_state_is_missing, i4_final_state_is_another,
    i5_list_runs_back, i6_older_from_another_replica, i6_seen_after_its_deletion, i7_own_create_is_not_read,
    i7_own_update_is_not_listed, i7_own_deletion_is_not_read, i8_one_value_won_twice, i8_sum_too_small,
    i8_sum_too_large, i9_more_than_its_limit, i10_relist_inside_the_window,
]  # fmt: skip


def test_a_right_history_has_no_breach() -> None:
    assert [str(one) for one in check(good())] == []


@pytest.mark.parametrize("spoil", BROKEN, ids=lambda one: one.__name__)
def test_a_broken_history_is_caught_by_its_invariant(spoil: Callable[[Run], None]) -> None:
    run = good()
    spoil(run)
    found = check(run)
    invariant = spoil.__name__.partition("_")[0].upper()
    assert invariant in {one.invariant for one in found}, [str(one) for one in found]
    one = next(one for one in found if one.invariant == invariant)
    assert one.client and (one.excerpt or invariant in ("I8", "I9"))


def test_every_invariant_of_a_history_has_a_broken_one() -> None:
    caught = {one.__name__.partition("_")[0] for one in BROKEN}
    assert {one.__name__.partition("_")[0] for one in INVARIANTS} == caught


def test_superseded_states_may_be_missing_after_a_member_was_listed_anew() -> None:
    run = good()
    run.members[0].disturbed = True
    put(run, 1, 2)
    put(run, 1, 2, Event(3.0, "ADDED", seen("b", 130, "b2")))
    assert check(run) == []


def test_an_object_that_came_and_went_unseen_is_none_missing() -> None:
    run = good()
    run.gaps = True
    run.histories[0].records[8:8] = [Event(4.4, "ADDED", seen("c", 142, "c")), Event(4.5, "DELETED", seen("c", 143, "c"))]
    assert check(run) == []


def test_live_objects_may_be_numbered_anew_after_a_gap() -> None:
    run = good()
    run.gaps = True
    for client, place in ((0, 8), (1, 5)):
        put(run, client, place, Event(4.5, "MODIFIED", seen("b", 145, "b2")), Bookmark(5.0, 150))
    assert check(run) == []
    run.gaps = False
    assert {one.invariant for one in check(run)} == {"I3"}


def test_a_list_that_says_that_a_member_is_left_out_may_lack_own_writes() -> None:
    run = good()
    put(run, 2, 6, Listed(4.2, 4.3, 140, (), follows=False, partial=True))
    assert check(run) == []


def test_after_a_partial_list_events_may_be_of_objects_that_it_lacked() -> None:
    run = good()
    run.gaps = True
    put(run, 0, 0, Listed(0.0, 0.1, 100, (), partial=True))
    assert check(run) == []
    put(run, 0, 0, Listed(0.0, 0.1, 100, ()))
    assert {one.invariant for one in check(run)} == {"I1"}


def test_a_watch_that_resumes_behind_a_superseded_state_shows_the_next_as_it_is() -> None:
    run = good()
    run.members[0].disturbed = True
    put(run, 0, 3)  # b's ADDED was passed over, and the watch ended before b's next state
    put(run, 0, 3, Bookmark(2.05, 125), Ended(2.1, 0))
    put(run, 0, 5, Opened(2.2, 125, "other"))
    assert check(run) == []
    put(run, 0, 5)
    assert {one.invariant for one in check(run)} == {"I1"}, "the same watch knows what it passed over"


def test_answers_to_version_0_may_be_older() -> None:
    run = good()
    put(run, 2, 3, at(run, 2, 3), Got(3.2, 3.3, B, seen("b", 120, "b1"), "other", consistent=False))
    assert check(run) == []
