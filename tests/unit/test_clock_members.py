"""The members of one resource's clock: what happens to them when a term ends."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from services.aggregator.clock.members import Members
from services.aggregator.clock.state import State
from services.aggregator.types import Aggregated
from services.common.fleet import Member

PODS = Aggregated("pods", "", "v1", "pods", "Pod", True)


async def test_a_term_may_end_while_a_member_is_on_its_way_out() -> None:
    """Its position is gone, nobody has forgotten it yet: the first report of another member does."""
    fleet = SimpleNamespace(members={}, synced=asyncio.Event(), inaccessible=set())
    context = SimpleNamespace(fleet=fleet, host=None, fleet_id="")
    clock: Any = SimpleNamespace(
        label="pods", sequencer=None, loaded=asyncio.Event(), synced=asyncio.Event(), state=State(1), context=context,
        aggregated=PODS,
    )  # fmt: skip
    clock.synced.set()
    for name in ("east", "west"):
        fleet.members[name] = Member(name, uid=name, reachable=True)
    members = Members(clock)
    members.refresh()
    assert set(members.states) == {"east", "west"}
    members.states["west"].leaving = True
    del fleet.members["west"]
    await members.stop()
    assert set(members.states) == {"east"}
    await members.close()
