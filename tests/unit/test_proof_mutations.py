"""Each invariant of docs/clock.md by its name: it holds over histories, and the checker finds it broken when the clock is.

A mutation is tried on its seeds until it is found: sets of names are walked in an order that differs by process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from test_proof_machine import SET_BACK_UNSEEN

from tests.proof import mutations
from tests.proof.floods import flood
from tests.proof.mutations import Patch
from tests.proof.virtual.clients import Informer
from tests.proof.virtual.play import Action, play, shorter
from tests.proof.virtual.world import World

STEPS = 100
REWRITES: Sequence[Action] = [
    ("puts", 0, 0, 4), *([("down", 0, 0, 4), ("look", 0, 3, 6), ("down", 0, 1, 1), ("pause", 0, 0, 0)] + [("look", 0, 0, 3)] * 50) * 2
]  # fmt: skip
"""A member is left out of a list and comes back: its objects get new numbers while somebody reads one of them."""
ANEW: Sequence[Action] = [
    one for at in range(12)
    for one in [("puts", 0, 0, 5), ("move", 0, 0, at % 2), ("delete", 0, 0, 1), ("delete", 0, 1, 2), ("delete", 0, 2, 5)]
]  # fmt: skip
"""Objects come and go while clients list anew."""
RETRIES: Sequence[Action] = [
    ("puts", 0, 0, 4), ("puts", 1, 0, 4), ("slow", 0, 1, 4),
    *([("fault", 0, 2, 0), ("put", 0, 0, 1)] + [("put", 1, 0, 4), ("put", 1, 1, 4)] * 10) * 4,
]  # fmt: skip
"""Commits are answered with an error, and done some time later."""
DELETES: Sequence[Action] = [("write", 0, at, 4) for _ in range(12) for at in (0, 6)]
"""An object is created and deleted, and its writer lists."""
COUNTS: Sequence[Action] = [("count", 0, 0, 1), ("put", 0, 0, 0), ("count", 0, 0, 2)] * 15


def lag(world: World) -> None:
    """Followers hear of etcd's revisions late."""
    for one in world.replicas:
        one.link.watch_delay = 0.05


def slow_answers(world: World) -> None:
    """A sequencer hears late of what its transactions did: followers have it first."""
    for one in world.replicas:
        one.link.answer_delay = 0.05


def forgetful(world: World) -> None:
    """Clients whose connection breaks list anew; the log is behind the members."""
    slow_answers(world)
    for one in world.informers:
        real = one.disconnect

        def disconnect(one: Informer = one, real: Callable[[], None] = real) -> None:
            one.version = 0
            real()

        one.disconnect = disconnect  # type: ignore[method-assign]


@dataclass(frozen=True)
class Course:
    """Histories in which a broken rule shows."""

    seeds: Sequence[int]
    features: frozenset[str] | None = None
    actions: Sequence[Action] | None = None
    spoil: Callable[[World], None] | None = None
    sizes: dict[str, int] = field(default_factory=dict)


ALL = Course((0, 1, 2, 3))
QUIET, GAPS, RESTORES, KILLS = frozenset[str](), frozenset({"gaps"}), frozenset({"restore"}), frozenset({"kills"})
LAGGING = Course((2, 3, 4, 5), QUIET, None, lag, {"replicas": 3})
COURSES: dict[str, Course] = {
    "i1_watch_skips_ahead": ALL,
    "i1_half_a_revision": ALL,
    "i1_selector_forgets_before": Course((2, 1, 3, 8, 9)),
    "i1_newer_is_taken_for_granted": Course((506,), actions=SET_BACK_UNSEEN),
    "i2_out_of_order": ALL,
    "i3_numbers_by_itself": ALL,
    "i3_recommits_what_it_has": Course((1, 3, 5, 7, 8)),
    "i4_gap_is_not_noted": Course((6, 7, 8, 9, 10, 11), GAPS),
    "i4_gap_is_not_healed": Course((6, 7, 8, 9, 10, 11), GAPS),
    "i1_list_is_not_exact": Course((0, 1, 2), QUIET, ANEW, forgetful),
    "i4_old_sequencer_does_not_resign": Course((1, 2, 3, 5, 7), QUIET, RETRIES, lag, {"replicas": 1}),
    "i4_restore_is_not_noticed": Course((1, 3, 7, 8), RESTORES),
    "i5_follower_does_not_wait": LAGGING,
    "i5_sequencer_asks_nobody": Course((2, 4, 7, 8, 13, 14), QUIET, None, slow_answers, {"replicas": 2}),
    "i6_get_of_a_lagging_follower": Course((7, 8, 12, 13, 14, 20, 24), GAPS, REWRITES, lag, {"replicas": 3}),
    "i6_get_passes_the_commit_under_way": Course((0, 2, 7, 1, 3, 4), GAPS, REWRITES, slow_answers, {"replicas": 2}),
    "i7_delete_does_not_wait": Course((2, 6, 8, 9, 17, 19), QUIET, DELETES, None, {"replicas": 2}),
    "i8_any_version_will_do": Course((0, 1, 2), QUIET, COUNTS, None, {"replicas": 2}),
    "i8_translated_to_the_newest": Course((0, 1, 2), QUIET, COUNTS, None, {"replicas": 2}),
    "i10_restart_forgets": Course((3, 5, 6, 7, 8), KILLS, None, None, {"replicas": 1}),
}


def found(course: Course, invariant: str) -> bool:
    for seed in course.seeds:
        played = play(
            seed, STEPS, actions=course.actions, features=course.features, spoil=course.spoil, **course.sizes
        )
        if invariant in played.found:
            return True
    return False


@pytest.mark.parametrize("name", COURSES)
def test_a_broken_rule_is_found_by_its_invariant(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    getattr(mutations, name)(monkeypatch.setattr)
    assert found(COURSES[name], name.partition("_")[0].upper()), f"{name} was not noticed"


def test_a_failing_history_is_made_shorter_and_plays_again(monkeypatch: pytest.MonkeyPatch) -> None:
    mutations.i1_watch_skips_ahead(monkeypatch.setattr)
    whole = next(played for seed in range(12) if "I1" in (played := play(seed, 40)).found)
    least = shorter(whole)
    assert 0 < len(least.actions) < len(whole.actions) and "I1" in least.found
    assert least.found & play(least.seed, actions=least.actions).found
    monkeypatch.undo()
    assert not play(least.seed, actions=least.actions).failed, "it was the rule that was broken"


def test_every_mutation_has_its_course() -> None:
    assert {*COURSES, "i9_everything_is_made_ahead"} == set(mutations.__all__)


def test_the_table_in_the_docs_is_complete() -> None:
    """docs/clock.md names each invariant's test and everything that is broken on purpose."""
    text = (Path(__file__).parents[2] / "docs" / "clock.md").read_text()
    tests = [name for name in globals() if re.match(r"test_i\d+_", name)]
    assert {re.match(r"test_(i\d+)_", name)[1] for name in tests} == {f"i{number}" for number in range(1, 11)}  # type: ignore[index]
    assert [name for name in [*tests, *mutations.__all__] if f"`{name}`" not in text] == []


def holds(invariant: str) -> None:
    """Unbroken, no invariant is breached on the courses on which this one's broken rules are found."""
    courses = [course for name, course in COURSES.items() if name.startswith(f"{invariant}_")]
    assert courses
    for course in courses:
        for seed in course.seeds[:2]:
            played = play(seed, 60, actions=course.actions, features=course.features, spoil=course.spoil, **course.sizes)
            if played.error is not None:
                raise played.error
            assert not played.breaches, "\n".join(map(str, played.breaches[:3]))


def test_i1_on_one_watch_versions_grow_and_nothing_is_missing_or_repeated() -> None:
    holds("i1")


def test_i2_events_of_one_member_come_in_its_order() -> None:
    holds("i2")


def test_i3_one_number_for_one_state_everywhere() -> None:
    holds("i3")


def test_i4_a_list_and_its_watch_end_in_the_members_state() -> None:
    holds("i4")


def test_i5_versions_never_run_backwards() -> None:
    holds("i5")


def test_i6_nobody_sees_an_older_state_after_a_newer_one() -> None:
    holds("i6")


def test_i7_a_write_is_in_its_writers_next_read() -> None:
    holds("i7")


def test_i8_no_update_is_lost() -> None:
    holds("i8")


def test_i10_a_restart_of_all_makes_nobody_list_anew() -> None:
    holds("i10")


def test_i9_nobody_is_held_up_by_the_slow_and_what_waits_is_bounded() -> None:
    assert flood(1) == []


def test_i9_a_client_that_is_written_to_without_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    patch: Patch = monkeypatch.setattr
    mutations.i9_everything_is_made_ahead(patch)
    assert {one.invariant for one in flood(1)} == {"I9"}
