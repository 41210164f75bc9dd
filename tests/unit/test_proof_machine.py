"""The clock's invariants over random histories in virtual time: hypothesis chooses what happens, and makes what fails small.

A failing example prints its steps; `python -m tests.proof --steps N --seed S` plays as many histories as you like.
RECLOCK_PROOF_EXAMPLES makes more of them here.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from services.aggregator.clock.overdue import Hearing
from tests.proof.virtual.actions import WEIGHTS
from tests.proof.virtual.play import judge, play
from tests.proof.virtual.world import World

EXAMPLES = int(os.environ.get("RECLOCK_PROOF_EXAMPLES", "40"))
STEPS = 50

TYPE_IS_LOST: list[tuple[str, int, int, int]] = [
    ("put", 9, 13, 3), ("lease", 2, 44, 0), ("write", 8, 32, 2), ("etcd", 1, 47, 1),
    ("join", 1, 25, 4), ("forget", 4, 28, 2), ("put", 2, 9, 3), ("type", 5, 30, 2),
    ("write", 8, 17, 0), ("write", 8, 23, 3), ("put", 5, 39, 5), ("join", 7, 5, 6),
    ("move", 4, 19, 1), ("reincarnate", 9, 42, 4), ("join", 7, 20, 0), ("expire", 4, 33, 6),
    ("look", 3, 28, 6),
]  # fmt: skip
EXPIRED_IN_PART: list[tuple[str, int, int, int]] = [
    ("crash", 6, 24, 3), ("puts", 10, 30, 5), ("restart", 1, 0, 6), ("put", 3, 21, 1), ("put", 10, 24, 3),
    ("crash", 5, 23, 2), ("kill", 10, 22, 4), ("put", 9, 32, 1), ("pause", 11, 28, 6), ("put", 2, 36, 2),
    ("down", 3, 24, 1), ("start", 3, 9, 3), ("write", 8, 4, 4), ("expire", 10, 31, 0), ("restart", 4, 26, 2),
    ("etcd", 10, 42, 6),
]  # fmt: skip
ANOTHER_LIFE: list[tuple[str, int, int, int]] = [
    ("reincarnate", 10, 46, 1), ("put", 7, 40, 2), ("reincarnate", 10, 0, 2), ("put", 11, 38, 2),
]  # fmt: skip
ECHO: list[tuple[str, int, int, int]] = [
    ("put", 9, 2, 4), ("look", 11, 3, 2), ("put", 11, 36, 4), ("start", 11, 35, 1), ("expire", 9, 16, 2),
    ("start", 9, 38, 3), ("write", 7, 18, 4), ("put", 1, 8, 1), ("down", 3, 34, 2), ("stop", 6, 29, 6), ("pause", 9, 1, 4),
    ("pause", 3, 29, 3), ("lease", 8, 31, 6), ("forget", 1, 29, 6), ("start", 5, 8, 0), ("detach", 2, 6, 1),
    ("puts", 0, 40, 3),
]  # fmt: skip
SET_BACK: list[tuple[str, int, int, int]] = [
    ("join", 7, 45, 1), ("put", 10, 12, 1), ("look", 2, 20, 5), ("backup", 10, 22, 6), ("write", 9, 33, 6),
    ("delete", 2, 3, 6), ("put", 1, 46, 1), ("kill", 5, 0, 3), ("steal", 8, 38, 0), ("forget", 10, 46, 1),
    ("pause", 9, 41, 0), ("kill", 7, 39, 2), ("restore", 8, 27, 0), ("delete", 7, 18, 0),
]  # fmt: skip
SWAPPED: list[tuple[str, int, int, int]] = [
    ("look", 1, 5, 5), ("look", 5, 31, 4), ("put", 6, 5, 2), ("put", 7, 6, 5), ("start", 6, 0, 0),
    ("crash", 2, 44, 1), ("puts", 5, 7, 6), ("crash", 10, 36, 4), ("stop", 7, 17, 0), ("kill", 1, 38, 5),
    ("put", 4, 30, 0), ("drop", 8, 36, 1), ("backup", 3, 25, 1), ("pause", 2, 42, 0), ("cut", 6, 12, 0),
    ("down", 3, 40, 2), ("expire", 6, 39, 5), ("start", 0, 33, 1), ("look", 7, 32, 3), ("crash", 9, 35, 5),
    ("crash", 8, 33, 6), ("count", 0, 39, 3), ("crash", 2, 16, 1), ("restart", 11, 7, 2), ("write", 7, 24, 0),
    ("expire", 9, 21, 2), ("restart", 8, 34, 4), ("tick", 3, 20, 5), ("crash", 5, 33, 4), ("cut", 4, 40, 2),
    ("delete", 3, 12, 6), ("down", 9, 43, 2), ("reincarnate", 6, 3, 2),
]  # fmt: skip
SET_BACK_UNSEEN: list[tuple[str, int, int, int]] = [
    ("put", 7, 33, 1), ("look", 3, 22, 5), ("detach", 8, 3, 5), ("backup", 10, 26, 1), ("restore", 10, 26, 3),
    ("compact", 3, 35, 6), ("put", 5, 36, 6), ("cut", 7, 5, 0), ("put", 7, 1, 0), ("look", 3, 37, 6), ("put", 7, 46, 6),
    ("etcd", 11, 3, 3), ("restore", 10, 29, 3),
]  # fmt: skip


class Histories(RuleBasedStateMachine):
    """One world; the rules are its actions, made below. It is judged when it ends."""

    world: World

    @initialize(seed=st.integers(0, 10_000))
    def begin(self, seed: int) -> None:
        self.world = World(seed)

    def teardown(self) -> None:
        world = getattr(self, "world", None)
        if world is None:
            return
        try:
            breaches = judge(world, world.finish())
        finally:
            world.close()
        assert not breaches, f"seed {world.seed}: " + "\n".join(map(str, breaches[:5]))


def _rule(name: str) -> Any:
    def act(self: Histories, a: int, b: int, c: int) -> None:
        self.world.act(name, a, b, c)

    act.__name__ = name
    act.__doc__ = getattr(World, f"do_{name}").__doc__
    made = rule(a=st.integers(0, 11), b=st.integers(0, 47), c=st.integers(0, 6))(act)
    return precondition(lambda self: self.world.allowed(name))(made)


for _name in WEIGHTS:
    setattr(Histories, _name, _rule(_name))


def test_histories_that_hypothesis_chooses() -> None:
    run_state_machine_as_test(Histories, settings=settings(
        max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, derandomize="RECLOCK_PROOF_EXAMPLES" not in os.environ,
        suppress_health_check=list(HealthCheck), print_blob=True, database=None,
    ))  # fmt: skip


@pytest.mark.parametrize("seed", range(100))
def test_weighted_random_histories(seed: int) -> None:
    played = play(seed, 100)
    if played.error is not None:
        raise played.error
    assert not played.breaches, "\n".join(map(str, played.breaches[:5]))


def hanging(world: World) -> None:
    """Watches hang where they would break: nobody is told, and who waits for their events has them opened anew."""

    async def hang(a: int, b: int) -> None:
        for path in world._site(a).paths:
            path.hang_streams()

    async def heal() -> None:
        for site in world.sites:
            for path in site.paths:
                path.break_streams()  # where nobody waits only a bookmark is missed, minutes later
        await healed()

    async def nothing(a: int, b: int) -> None:
        """A client that counts besides does two things at once, which nobody can put in order where they take seconds."""

    healed, world.do_count = world.heal, nothing  # type: ignore[method-assign]
    world.do_drop, world.heal = hang, heal  # type: ignore[method-assign]


HANGING: list[tuple[str, int, int, int]] = [
    one for at in range(9)
    for one in [
        ("drop", 0, 0, 0), ("drop", 1, 0, 0), ("drop", 2, 0, 0), ("write", at, at % 3, 5), ("puts", at, at, 4), ("write", at + 1, 3 + at % 6, 5),
        ("look", at, at, 5), ("restore" if at == 5 else "backup", 1, 0, 0), ("expire", at, at, 4), ("pause", 0, 2, 0),
    ]
]  # fmt: skip
"""Writes and reads of members whose watches hang, again and again; one is set back meanwhile."""


def test_histories_with_watches_that_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[bool] = []
    renews = Hearing.renews
    monkeypatch.setattr(Hearing, "renews", lambda self: opened.append(renews(self)) or opened[-1])  # type: ignore[func-returns-value]
    for seed in range(3):
        played = play(seed, actions=HANGING, spoil=hanging)
        if played.error is not None:
            raise played.error
        assert not played.breaches, f"seed {seed}: " + "\n".join(map(str, played.breaches[:5]))
    assert sum(opened) >= 12, "they were opened anew"


def test_a_seed_is_one_history() -> None:
    first, again = (play(7, 60) for _ in range(2))
    assert first.run is not None and again.run is not None
    assert first.actions == again.actions
    assert [one.records for one in first.run.histories] == [one.records for one in again.run.histories]


@pytest.mark.parametrize(("seed", "actions"), [
    # The member that lost the type said that it had had nothing, and the deletions were kept back from a field watch.
    (5078, TYPE_IS_LOST),
    # Objects expired at one version, of which the log had some: the member's list lacked the others, which the client had.
    (20180, EXPIRED_IN_PART),
    # Another cluster took a member's place twice, unnoticed: its object was shown under the number of the one before.
    (30157, ANOTHER_LIFE),
    # A replica that had read nothing of etcd yet sent bookmarks of what its clients had told it: they went out of the window.
    (30312, ECHO),
    # A member that had been set back, unnoticed, was asked what had matched before: it knew of another past.
    (31270, SET_BACK),
    # Another cluster took a member's place between the questions who it is and its watch, which said nothing for ever.
    (870017, SWAPPED),
    # A follower passed a state over for a newer one; then the member, out of the sequencer's reach, was set back to the former.
    (506, SET_BACK_UNSEEN),
])  # fmt: skip
def test_histories_that_dice_found(seed: int, actions: list[tuple[str, int, int, int]]) -> None:
    played = play(seed, actions=actions)
    assert played.error is None and not played.breaches, "\n".join(map(str, played.breaches[:5]))
