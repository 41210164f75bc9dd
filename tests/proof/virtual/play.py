"""Random histories and their judgement."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.proof import checker
from tests.proof.history import Breach, Run
from tests.proof.virtual.actions import WEIGHTS
from tests.proof.virtual.world import World

Action = tuple[str, int, int, int]
SURE = (
    checker.i1_watches, checker.i1_nothing_missing, checker.i4_convergence, checker.i8_no_lost_update,
    checker.i9_nobody_held_up, checker.i10_no_relist,
)  # fmt: skip
BLURRED = (
    checker.i2_member_order, checker.i3_one_to_one, checker.i5_never_backwards, checker.i6_no_older_state,
    checker.i7_own_writes,
)  # fmt: skip


def judge(world: World, run: Run) -> list[Breach]:
    """All breaches. What was read of a member that was set back, before its feed could notice, is set aside where it
    may mean something else."""
    blurred = replace(run, histories=world.blur.clear(run.histories))
    return [breach for one in SURE for breach in one(run)] + [breach for one in BLURRED for breach in one(blurred)]


@dataclass
class Played:
    """One history that was played. `error`: what was raised, where it did not come to its end."""

    seed: int
    actions: list[Action]
    breaches: list[Breach] = field(default_factory=list)
    error: BaseException | None = None
    events: int = 0
    seconds: float = 0.0
    """Of virtual time."""
    run: Run | None = None

    @property
    def failed(self) -> bool:
        return bool(self.breaches or self.error)

    @property
    def found(self) -> set[str]:
        return {one.invariant for one in self.breaches}


def random_actions(world: World, source: random.Random, count: int) -> Iterator[Action]:
    names = [name for name in WEIGHTS if world.allowed(name)]
    weights = [WEIGHTS[name] for name in names]
    for _ in range(count):
        name = source.choices(names, weights)[0]
        # Pauses are mostly short: much happens at once.
        yield name, source.randrange(12), source.randrange(48), source.choice((0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6))


def play(
    seed: int, steps: int = 60, *, actions: Sequence[Action] | None = None, features: frozenset[str] | None = None,
    spoil: Callable[[World], None] | None = None, **sizes: int,
) -> Played:  # fmt: skip
    """Play a seed's random actions, or those given, and judge them."""
    world = World(seed, features, **sizes)
    begin = world.loop.now
    played = Played(seed, [])
    try:
        if spoil is not None:
            spoil(world)
        source = random.Random(f"actions/{seed}")
        for action in actions if actions is not None else random_actions(world, source, steps):
            played.actions.append(action)
            world.act(*action)
        played.run = world.finish()
        played.breaches = judge(world, played.run)
    except Exception as error:
        played.error = error
    finally:
        played.events = sum(len(one.records) for one in world.histories())
        played.seconds = world.loop.now - begin
        world.close()
    return played


def shorter(played: Played, **options: Any) -> Played:
    """The same failure with fewer actions: pieces are left out as long as it still fails in that way."""
    best, size = played, max(len(played.actions) // 2, 1)
    while size:
        at = 0
        while at < len(best.actions):
            tried = play(best.seed, actions=best.actions[:at] + best.actions[at + size :], **options)
            same = tried.found & played.found if played.found else type(tried.error) is type(played.error)
            if tried.failed and same:
                best = tried
            else:
                at += size
        size //= 2
    return best
