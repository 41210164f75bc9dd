"""I9 by itself: one client that does not read, one member that is slow, and everybody else's events on time."""

from __future__ import annotations

from tests.proof.history import Breach, Measure
from tests.proof.virtual.clients import Informer, Seen
from tests.proof.virtual.play import judge
from tests.proof.virtual.world import World

ON_TIME = 1.0
"""Seconds of virtual time from a write on a member to a client that reads."""


def flood(seed: int, rounds: int = 150) -> list[Breach]:
    """Breaches of a history in which the first client stops reading and the second member takes 7 s an answer."""
    world = World(seed, frozenset(), members=2, replicas=1, informers=3, ops=128)
    written: dict[str, float] = {}
    late = [0.0]
    stamp = world.sites[0]._stamp

    def stamped() -> str:
        made = stamp()
        written[made] = world.loop.now
        return made

    def delivered(client: Informer, seen: Seen) -> None:
        if seen.stamp in written:
            late[0] = max(late[0], world.loop.now - written[seen.stamp])

    world.sites[0]._stamp = stamped  # type: ignore[method-assign]
    world.informers[1].delivered = delivered
    try:
        world.act("puts", 0, 4, 4)
        world.informers[0].frozen, world.sites[1].slow = True, 7.0
        for at in range(rounds):
            world.act("puts", 0, at, 3)
            world.act("puts", 1, at, 0)
        most = late[0]
        run = world.finish()
        run.measures.append(Measure("seconds until a client that reads had an event", most, ON_TIME))
        return judge(world, run)
    finally:
        world.close()
