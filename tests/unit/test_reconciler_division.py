"""Division of ReplicaSets over clusters: never too many, never moved without need, safe while caches lag."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.reconciler import division
from services.reconciler.division import Limits, Part, divide, duplicate

EVEN = {"east": 2, "west": 2}


def whole(name: str, desired: int, granted: dict[str, int]) -> Part:
    """A part whose members run exactly what was granted."""
    return Part(name, desired, granted, granted, granted)


def test_new_replicaset_follows_the_placement() -> None:
    assert divide([Part("a", 4)], EVEN) == {"a": {"east": 2, "west": 2}}


def test_without_placement_nothing_runs() -> None:
    assert divide([whole("a", 4, EVEN)], {}) == {"a": {}}


def test_scale_down_takes_from_the_furthest_above() -> None:
    assert divide([whole("a", 3, {"east": 3, "west": 1})], {"east": 2, "west": 1}) == {"a": {"east": 2, "west": 1}}


def test_scale_down_takes_what_is_not_available_first() -> None:
    part = Part("a", 3, EVEN, EVEN, {"east": 2, "west": 1})
    assert divide([part], EVEN)["a"] == {"east": 2, "west": 1}


def test_scale_up_gives_to_the_furthest_below_and_moves_nothing() -> None:
    assert divide([whole("a", 6, {"east": 3, "west": 1})], {"east": 3, "west": 3}) == {"a": {"east": 3, "west": 3}}


def test_sums_over_replicasets_follow_the_placement_through_a_rollout() -> None:
    old, new = dict(EVEN), dict[str, int]()
    for step in range(1, 5):
        grants = divide([whole("new", step - 1, new), whole("old", 4 - step, old)], EVEN)
        old, new = grants["old"], grants["new"]
        grants = divide([whole("new", step, new), whole("old", 4 - step, old)], EVEN)
        old, new = grants["old"], grants["new"]
        assert {c: old.get(c, 0) + new.get(c, 0) for c in EVEN} == EVEN
    assert (old, new) == ({}, EVEN)


def test_a_cluster_is_left_only_as_the_new_replicas_become_available() -> None:
    """Surge: what runs on east stays until as much is available on west."""
    at_west = {"west": 4}
    started = divide([whole("a", 4, {"east": 4})], at_west)
    assert started == {"a": {"east": 4, "west": 4}}
    for ready in (0, 1, 3, 4):
        have = {"east": 4, "west": ready}
        part = Part("a", 4, {"east": 4, "west": 4}, {"east": 4, "west": 4}, have)
        left = {"west": 4} if ready == 4 else {"east": 4 - ready, "west": 4}
        assert divide([part], at_west) == {"a": left}


def test_a_surge_that_takes_too_long_ends() -> None:
    part = Part("a", 4, {"east": 4, "west": 4}, {"east": 4, "west": 4}, {"east": 4})
    assert divide([part], {"west": 4}, Limits(overdue={"east"})) == {"a": {"west": 4}}


def test_without_surge_the_old_ones_are_seen_to_go_first() -> None:
    """A Deployment that recreates its pods never has two generations of them, also when it moves."""
    stop = divide([whole("a", 2, {"east": 2})], {"west": 2}, Limits(surge=False))
    assert stop == {"a": {}}
    gone = divide([Part("a", 2, {}, {"east": 1}, {})], {"west": 2}, Limits(surge=False))
    assert gone == {"a": {"west": 1}}


def test_a_scale_down_in_the_middle_of_a_surge_takes_what_is_not_available() -> None:
    part = Part("a", 3, {"east": 2, "west": 4}, {"east": 2, "west": 4}, {"east": 2, "west": 2})
    assert divide([part], {"west": 3}) == {"a": {"east": 1, "west": 3}}


def test_a_rollout_in_the_middle_of_a_surge_keeps_its_own_bounds() -> None:
    """maxSurge 0, maxUnavailable 1: the new ReplicaSet's pod waits for an old one on the clusters that stay."""
    old = Part("old", 3, {"east": 2, "west": 4}, {"east": 2, "west": 4}, {"east": 2, "west": 4})
    grants = divide([Part("new", 1), old], {"west": 4}, Limits(total=4))
    assert grants == {"new": {}, "old": {"west": 3}}, "west still runs four: a fifth there would be one too many"
    seen = Part("old", 3, grants["old"], {"west": 3}, {"west": 3})
    assert divide([Part("new", 1), seen], {"west": 4}, Limits(total=4)) == {"new": {"west": 1}, "old": {"west": 3}}


def test_a_drain_that_is_stopped_keeps_what_has_not_left_yet() -> None:
    """The placement counts what is still on east again: only new ones that are not available go."""
    part = Part("a", 4, {"east": 1, "west": 4}, {"east": 1, "west": 4}, {"east": 1, "west": 3})
    assert divide([part], {"east": 1, "west": 3}) == {"a": {"east": 1, "west": 3}}


def test_moves_stop_while_the_workload_is_short() -> None:
    part = Part("a", 4, {"east": 4}, {"east": 4}, {"east": 3})
    assert divide([part], {"east": 1, "west": 3}, Limits(budget=1)) == {"a": {"east": 3}}, "only the one that is not available"


def test_what_is_not_available_moves_without_budget() -> None:
    part = Part("a", 2, {"east": 2}, {"east": 2}, {})
    assert divide([part], {"west": 2}, Limits(budget=0)) == {"a": {"west": 2}}


def test_a_lost_cluster_no_longer_counts() -> None:
    grants = divide([whole("a", 4, EVEN)], {"west": 4}, Limits(gone={"east"}))
    assert grants == {"a": {"west": 4}}


def test_no_more_than_was_placed_plus_surge() -> None:
    grants = divide([whole("a", 8, EVEN)], EVEN, Limits(total=4))
    assert grants == {"a": EVEN}


def test_settling_moves_nothing_between_placed_clusters() -> None:
    part = whole("a", 4, {"east": 4})
    assert divide([part], EVEN, Limits(settle=True)) == {"a": {"east": 4}}


def test_duplicates_run_all_replicas_on_every_cluster() -> None:
    shares = {"east": 3, "west": 3}
    assert duplicate([Part("a", 3)], shares) == {"a": shares}
    assert duplicate([whole("a", 3, shares)], {"west": 3}) == {"a": {"west": 3}}
    old = Part("old", 2, shares, {"east": 3, "west": 2}, {"east": 3, "west": 2})
    grants = duplicate([Part("new", 1), old], shares)
    assert grants == {"new": {"west": 1}, "old": {"east": 2, "west": 2}}, "each cluster rolls by itself"


counts = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 6))
parts = st.lists(
    st.builds(Part, name=st.just("x"), desired=st.integers(0, 12), granted=counts, used=counts, available=counts),
    min_size=1, max_size=3,
).map(lambda found: [Part(f"p{i}", p.desired, p.granted, p.used, p.available) for i, p in enumerate(found)])  # fmt: skip


@given(parts, counts, st.integers(0, 3), st.integers(0, 30), st.sets(st.sampled_from(["a", "b", "c"])))
def test_never_more_than_asked_for(
    found: list[Part], shares: dict[str, int], budget: int, total: int, gone: set[str]
) -> None:
    grants = divide(found, shares, Limits(total=total, budget=budget, gone=gone))
    for part in found:
        grant = grants[part.name]
        placed = {c: n for c, n in grant.items() if c in shares}
        assert sum(placed.values()) <= max(part.desired, 0)
        assert all(n > 0 for n in grant.values()) and not set(grant) & gone
        raised = [c for c in grant if grant[c] > part.granted.get(c, 0)]
        assert all(shares[c] > 0 for c in raised)
        clusters = ({*grant, *part.used} - gone) & set(shares)
        kept = {c: min(grant.get(c, 0), part.granted.get(c, 0)) for c in clusters}
        before = sum(max(kept[c], part.used.get(c, 0)) for c in clusters)
        after = sum(max(grant.get(c, 0), part.used.get(c, 0)) for c in clusters)
        assert after <= max(part.desired, before)


@given(parts, counts)
def test_a_surge_takes_nothing_that_is_available_and_needed(found: list[Part], shares: dict[str, int]) -> None:
    grants = divide(found, shares, Limits(budget=0))
    for part in found if shares else ():
        before = sum(min(n, part.available.get(c, 0)) for c, n in part.granted.items())
        after = sum(min(n, part.available.get(c, 0)) for c, n in grants[part.name].items())
        assert after >= min(part.desired, before)
        assert all(n <= part.granted.get(c, 0) for c, n in grants[part.name].items() if c not in shares)


def test_a_rollouts_new_pods_wait_for_its_old_ones_on_any_cluster() -> None:
    old = Part("old", 1, {"east": 1}, {"east": 1, "west": 1}, {"east": 1, "west": 1})
    assert divide([Part("new", 1), old], {"east": 1, "west": 1})["new"] == {}
    gone = Part("old", 1, {"east": 1}, {"east": 1}, {"east": 1})
    assert divide([Part("new", 1), gone], {"east": 1, "west": 1})["new"] == {"west": 1}


@given(parts, counts)
def test_settles(found: list[Part], shares: dict[str, int]) -> None:
    """When members follow at once and all is available, repeated division ends and then changes nothing."""
    current = {part.name: {c: n for c, n in part.granted.items() if n} for part in found}
    for _ in range(80):
        step = divide([whole(p.name, p.desired, current[p.name]) for p in found], shares)
        if step == current:
            break
        current = step
    else:
        raise AssertionError(f"does not settle: {current}")
    if sum(shares.values()):
        assert all(sum(current[p.name].values()) == p.desired for p in found)


def test_a_mistyped_scale_is_given_and_taken_back_at_once() -> None:
    """Replica by replica the reconciler would stand still for hours, for everybody."""
    most = 2**31 - 1
    shares = {"east": most - 1_000_000_000, "west": 1_000_000_000}
    up = divide([Part("a", most)], shares, Limits(total=most))
    assert up == {"a": shares}
    assert divide([whole("a", 4, up["a"])], EVEN) == {"a": {"east": 2, "west": 2}}
    idle = Part("a", most, {"east": most}, {"east": most}, {"east": 5})
    moved = divide([idle], shares)["a"]["east"]
    assert moved == shares["east"]


@given(parts, counts, st.integers(0, 3), st.integers(0, 30))
def test_large_steps_end_where_small_ones_do(found: list[Part], shares: dict[str, int], budget: int, total: int) -> None:
    limits = Limits(total=total, budget=budget)
    with pytest.MonkeyPatch.context() as patch:
        small = divide(found, shares, limits)
        patch.setattr(division, "ONE_BY_ONE", 0)
        large = divide(found, shares, limits)
    assert {name: sum(split.values()) for name, split in large.items()} == {
        name: sum(split.values()) for name, split in small.items()
    }
