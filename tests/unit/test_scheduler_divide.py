"""Division of replicas: Webster's method, stickiness, caps and overflow."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler import divide
from services.scheduler.divide import BULK, grow, resize, shrink

names = st.sampled_from(["a", "b", "c", "d", "e"])
counts = st.dictionaries(names, st.integers(0, 40), max_size=5)
votes_of = st.dictionaries(names, st.integers(0, 1000), min_size=1, max_size=5)


def test_example_of_the_design() -> None:
    assert resize({}, {"a": 10, "b": 5, "c": 5}, 12, {"a": 10, "b": 5, "c": 5}) == {"a": 6, "b": 3, "c": 3}


@pytest.mark.parametrize(
    ("votes", "seats", "expected"),
    [
        ({"a": 1, "b": 1}, 4, {"a": 2, "b": 2}),
        ({"a": 1, "b": 1}, 5, {"a": 3, "b": 2}),
        ({"a": 3, "b": 1}, 4, {"a": 3, "b": 1}),
        ({"a": 53, "b": 24, "c": 23}, 7, {"a": 3, "b": 2, "c": 2}),
        ({"a": 1, "b": 0}, 3, {"a": 3}),
    ],
)
def test_known_apportionments(votes: dict[str, int], seats: int, expected: dict[str, int]) -> None:
    assert resize({}, votes, seats) == expected


def webster(votes: dict[str, int], seats: int) -> dict[str, int]:
    """The definition, seat by seat, in exact arithmetic."""
    result = dict.fromkeys(votes, 0)
    for _ in range(seats):
        best = max(sorted(votes), key=lambda name: Fraction(votes[name], 2 * result[name] + 1))
        result[best] += 1
    return {name: count for name, count in result.items() if count}


@given(votes_of.filter(lambda v: any(v.values())), st.integers(0, 60))
def test_equals_the_definition(votes: dict[str, int], seats: int) -> None:
    positive = {name: count for name, count in votes.items() if count}
    assert resize({}, votes, seats) == webster(positive, seats)


@given(counts, votes_of, st.integers(0, 100))
def test_growing_takes_nothing_and_shrinking_gives_nothing(
    current: dict[str, int], votes: dict[str, int], total: int
) -> None:
    result = resize(current, votes, total)
    have = sum(current.values())
    if total >= have:
        assert all(result.get(name, 0) >= count for name, count in current.items())
    else:
        assert all(count <= current[name] for name, count in result.items())
    expected = total if total <= have or any(votes.values()) else have
    assert sum(result.values()) == expected
    assert all(count > 0 for count in result.values())


@given(votes_of, st.integers(0, 100), st.dictionaries(names, st.integers(0, 30)))
def test_caps_hold_until_nothing_else_is_left(votes: dict[str, int], seats: int, caps: dict[str, int]) -> None:
    result = grow({}, votes, seats, caps)
    assert all(count <= caps.get(name, 0) for name, count in result.items())
    room = sum(caps.get(name, 0) for name, count in votes.items() if count > 0)
    assert sum(result.values()) == min(seats, room)


@given(votes_of, st.integers(0, 100), st.dictionaries(names, st.integers(0, 30)))
def test_overflow_is_placed_all_the_same(votes: dict[str, int], seats: int, caps: dict[str, int]) -> None:
    assert sum(resize({}, votes, seats, caps).values()) == seats


def test_shrinking_empties_clusters_without_a_vote_first() -> None:
    assert shrink({"gone": 3, "a": 2}, {"a": 1}, 3) == {"a": 2}


def test_large_growth_is_proportional() -> None:
    result = resize({}, {"a": 3, "b": 1}, 1_000_000)
    assert sum(result.values()) == 1_000_000
    assert abs(result["a"] - 750_000) <= BULK


@given(counts, votes_of, st.integers(0, 200))
def test_shrinking_at_once_takes_the_same_seats(current: dict[str, int], votes: dict[str, int], seats: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        one_by_one = shrink(current, votes, seats)
        patch.setattr(divide, "BULK", 0)
        assert shrink(current, votes, seats) == one_by_one


def test_a_mistyped_scale_is_taken_back_at_once() -> None:
    """Seat by seat the manager's loop would stand still for a quarter of an hour, each time that somebody leads."""
    huge = resize({}, {"a": 3, "b": 1, "c": 0}, 2**31 - 1)
    assert resize(huge, {"a": 3, "b": 1}, 4) == {"a": 3, "b": 1}
    assert shrink({**huge, "gone": 2**31 - 1}, {"a": 3, "b": 1}, 2**31 - 1) == huge
