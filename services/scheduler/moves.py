"""What must leave a cluster: whole shares, pods that find no node, what has to stop before it starts elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from services.scheduler import drains, running, writing
from services.scheduler.departures import (
    CLUSTER_LOST,
    DRAINED,
    UNSCHEDULABLE,
    WORKER_LOST,
    Departure,
    outlook,
)
from services.scheduler.dispatch import Wish
from services.scheduler.policy import Policy
from services.scheduler.store import StaleError
from services.scheduler.verdict import Verdict
from services.scheduler.workload import DIVIDED, DUPLICATED, Placement, Workload

if TYPE_CHECKING:
    from services.scheduler.engine import Engine


class Moved(NamedTuple):
    """Whether it was moved, or evicted; then after how many seconds to look again, else why it stays."""

    done: bool
    wait: float | None = None
    why: str = ""


class Moves:
    """Steps of the engine, which has the state; see Engine for what a step is."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def move(
        self, workload: Workload, policy: Policy, placement: Placement, departures: list[Departure]
    ) -> Moved:
        """Give the shares of what must leave to others; where nothing better is found, it stays."""
        kind = policy.type_for(workload.mode)
        if kind == DIVIDED and any(not item.pods for item in departures):
            # Whole shares first; pods that only lack a node are looked at again after that.
            departures = [item for item in departures if not item.pods]
        if kind == DUPLICATED:
            return await self._leave_duplicates(workload, policy, placement, departures)
        stuck = {item.cluster: item.pods for item in departures if item.pods}
        if kind == DIVIDED and len(stuck) == len(departures):
            return await self._shift(workload, policy, placement, departures, stuck)
        return await self._give_away(workload, policy, placement, departures)

    async def _give_away(
        self, workload: Workload, policy: Policy, placement: Placement, departures: list[Departure]
    ) -> Moved:
        engine, attempt = self._engine, workload.attempts + 1
        leaving = {item.cluster: item for item in departures}
        kept = {name: count for name, count in placement.clusters.items() if name not in leaving}
        base = engine.wish(workload, policy, attempt)
        avoid = {**base.avoid, **{n: Verdict(n, item.reason, item.message) for n, item in leaving.items()}}
        divided = policy.type_for(workload.mode) == DIVIDED
        wish = Wish(attempt, base.limit, current=kept if divided else {}, avoid=avoid)
        found = await engine.find(workload, policy, wish)
        workload = engine.current(workload)
        now = outlook(workload, policy, engine.fleet, engine.timeouts, engine.clock.now()).departures
        if not set(leaving) <= {item.cluster for item in now}:
            # Rule 4: back before a new winner was stored, it is the winner. Members were asked for seconds.
            raise StaleError("what should leave may stay by now")
        if found.clusters is not None and found.clusters != kept:
            if self._stops_first(workload, leaving):
                # The room stays reserved while it stops.
                return await self._evict(workload, placement, departures, keep=found.clusters)
            fresh = Placement(attempt, found.clusters)
            return Moved(True, await engine.place(workload, policy, fresh, found.verdicts, "", departures))
        if kept and all(self._is_removed_for_good(item) for item in departures):
            # Its replicas fit nowhere else now: they are added when they do.
            return Moved(True, await engine.place(workload, policy, Placement(attempt, kept), {}, "", departures))
        if all(item.reason in (DRAINED, UNSCHEDULABLE, WORKER_LOST) for item in departures) or kept:
            # It runs, if badly, or will again when its worker is back: taking it away would make nothing better.
            return Moved(False, why=drains.nowhere(found.verdicts, departures[0].cluster))
        return await self._evict(workload, placement, departures, found.verdicts)

    async def _leave_duplicates(
        self, workload: Workload, policy: Policy, placement: Placement, departures: list[Departure]
    ) -> Moved:
        gone = [item for item in departures if self._leaves_duplicate(item)]
        if not gone:
            return Moved(False, why="its duplicate has nowhere else to go")
        left = {item.cluster for item in gone}
        rest = {name: count for name, count in placement.clusters.items() if name not in left}
        fresh = Placement(placement.attempt, rest)
        return Moved(True, await self._engine.place(workload, policy, fresh, {}, "", gone))

    async def _shift(
        self, workload: Workload, policy: Policy, placement: Placement, departures: list[Departure],
        stuck: Mapping[str, int],
    ) -> Moved:  # fmt: skip
        """Of a divided workload only the pods that find no node move, where others have room for them."""
        engine = self._engine
        wish = engine.wish(workload, policy, placement.attempt)
        wish = Wish(wish.attempt, wish.limit, current=placement.clusters, avoid=wish.avoid)
        found = await engine.dispatcher.shifted(workload, policy, wish, stuck)
        if found.clusters is None:
            return Moved(False, why=drains.nowhere(found.verdicts, departures[0].cluster))
        fresh = Placement(workload.attempts + 1, found.clusters)
        return Moved(True, await engine.place(workload, policy, fresh, found.verdicts, "", departures))

    def _stops_first(self, workload: Workload, leaving: Mapping[str, Departure]) -> bool:
        """Whether its copies have to be gone, or suspended, before it may be placed elsewhere."""
        if workload.owner.kind == "Job" and any(item.reason == DRAINED for item in leaving.values()):
            return True
        return workload.at_most_once and bool(running.still_running(workload, self._engine.fleet) & set(leaving))

    def _is_removed_for_good(self, departure: Departure) -> bool:
        """Whether the cluster was removed from its source, and somebody said not to wait for it."""
        member = self._engine.fleet.members.get(departure.cluster)
        return member is not None and member.leaving_since is not None and member.forgotten

    def _leaves_duplicate(self, departure: Departure) -> bool:
        """A duplicate on a lost cluster has nowhere to go; it stays until the cluster is gone for good, or removed."""
        member = self._engine.fleet.members.get(departure.cluster)
        gone = member is None or member.forgotten or member.leaving_since is not None
        return gone or departure.reason != CLUSTER_LOST

    async def _evict(
        self, workload: Workload, placement: Placement, departures: list[Departure],
        verdicts: Mapping[str, Verdict] | None = None, keep: Iterable[str] = (),
    ) -> Moved:  # fmt: skip
        """Clear the placement and count the attempt; the dispatch is the next step. `keep`: clusters still held."""
        engine = self._engine
        # Rule 5 backs off when the member itself threw it out.
        thrown_out = any(item.reason == UNSCHEDULABLE for item in departures)
        delay = writing.backoff(workload.attempts + 1) if thrown_out else None
        workload = engine.current(workload)
        status = writing.evicted(workload, placement, departures, verdicts or {}, engine.clock.now(), delay)
        workload = await engine.store.patch_status(workload, status)
        engine.observe(workload, departures[0].reason, departures[0].message, False)
        await engine.holds.release(workload.uid, keep=keep)
        engine.waiting.add(workload.key)
        return Moved(True, 0.0 if delay is None else delay.total_seconds())
