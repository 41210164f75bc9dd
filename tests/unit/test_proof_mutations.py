"""Each invariant of docs/clock.md by its name: it holds over histories, and the checker finds it broken when the clock is.

A mutation is tried on its seeds until it is found: sets of names are walked in an order that differs by process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from tests.proof import mutations
from tests.proof.floods import flood
from tests.proof.mutations import Patch
from tests.proof.virtual.play import Action, play
from tests.proof.virtual.world import World

STEPS = 100
LISTS: Sequence[Action] = [("puts", 0, 1, 1), ("look", 0, 3, 2)] * 25
COUNTS: Sequence[Action] = [("count", 0, 0, 1), ("put", 0, 0, 0), ("count", 0, 0, 2)] * 15


def lag(world: World) -> None:
    """Followers hear of etcd's revisions late."""
    for one in world.replicas:
        one.link.watch_delay = 0.05


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
    "i2_out_of_order": ALL,
    "i3_numbers_by_itself": ALL,
    "i3_recommits_what_it_has": Course((1, 3, 5, 7, 8)),
    "i4_gap_is_not_noted": Course((6, 7, 8, 9, 10, 11), GAPS),
    "i4_gap_is_not_healed": Course((6, 7, 8, 9, 10, 11), GAPS),
    "i4_restore_is_not_noticed": Course((1, 3, 7, 8), RESTORES),
    "i5_follower_does_not_wait": LAGGING,
    "i6_get_of_a_lagging_follower": Course((1, 2, 3), QUIET, LISTS, lag, {"replicas": 3}),
    "i7_write_does_not_wait": LAGGING,
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


def test_every_mutation_has_its_course() -> None:
    assert {*COURSES, "i9_everything_is_made_ahead"} == set(mutations.__all__)


def holds(course: Course) -> None:
    for seed in course.seeds[:2]:
        played = play(seed, 60, actions=course.actions, features=course.features, spoil=course.spoil, **course.sizes)
        if played.error is not None:
            raise played.error
        assert not played.breaches, "\n".join(map(str, played.breaches[:3]))


@pytest.mark.parametrize("name", COURSES)
def test_unbroken_its_invariant_holds_there(name: str) -> None:
    holds(COURSES[name])


def test_i9_nobody_is_held_up_by_the_slow_and_what_waits_is_bounded() -> None:
    assert flood(1) == []


def test_i9_a_client_that_is_written_to_without_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    patch: Patch = monkeypatch.setattr
    mutations.i9_everything_is_made_ahead(patch)
    assert {one.invariant for one in flood(1)} == {"I9"}
