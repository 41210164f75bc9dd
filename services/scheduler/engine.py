"""The state machine of a workload: nominate, reserve, admitted, store the winner, confirm it, release the others.

`reconcile(key)` may be called at any time and as often as one likes: it looks at the stored object and does the
next step. Every step that counts is a compare-and-swap of the object's status, so a manager that died, or one
that no longer leads, leaves nothing half done. One key is never worked on twice at once (the queue's promise).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime

from services.scheduler import drains, room, running, writing
from services.scheduler import policy as policies
from services.scheduler.clock import Clock
from services.scheduler.departures import (
    CLUSTER_LOST,
    CONFLICT,
    DRAINED,
    GONE,
    Departure,
    Stay,
    Timeouts,
    outlook,
)
from services.scheduler.dispatch import Dispatcher, Outcome, Wish
from services.scheduler.fleet import Fleet
from services.scheduler.holds import Holds
from services.scheduler.moves import Moves
from services.scheduler.policy import Policy
from services.scheduler.store import Remaining, StaleError, WorkloadStore, forever
from services.scheduler.verdict import Verdict
from services.scheduler.workload import DIVIDED, DUPLICATED, SINGLE, Key, Placement, Workload

log = logging.getLogger(__name__)

RETRIES = 8
"""Times that a decision is made anew because the object changed under it, before the key is queued again."""
SOON = 1.0
WAITING = 30.0
"""Seconds after which a workload that fits nowhere is tried again, beside the events that wake it."""
RECHECK = 5.0
DUE = 0.05
BEING_READ = 0.1

Observer = Callable[[Workload, str, str, bool], None]
"""Told what happened to a workload: it, reason, message, whether it is good news."""


def _ignore(workload: Workload, reason: str, message: str, good: bool) -> None:
    """An observer that does not care."""


class Engine:
    """Decides for all workloads; has no task of its own. `policies` may be replaced at any time."""

    def __init__(
        self, store: WorkloadStore, fleet: Fleet, clock: Clock, *, timeouts: Timeouts | None = None,
        probe: writing.Probe | None = None, observe: Observer = _ignore, patience: float = 0.3,
        remaining: Remaining = forever,
    ) -> None:  # fmt: skip
        self.store, self.fleet, self.clock = store, fleet, clock
        self.timeouts = timeouts or Timeouts()
        self.policies: tuple[Policy, ...] = ()
        self.holds = Holds(fleet, remaining)
        self.waiting: set[Key] = set()
        self.dispatcher = Dispatcher(fleet, self.holds, patience=patience)
        self._probe = probe
        self.observe = observe
        self._moves = Moves(self)
        self._uids: dict[Key, str] = {}
        self._said: dict[Key, tuple[object, float]] = {}

    # Entry.

    async def reconcile(self, key: Key) -> float | None:
        """Take the next step; returns after how many seconds to look again, or None."""
        for _ in range(RETRIES):
            workload = self.store.get(key)
            try:
                return await self._step(key, workload)
            except StaleError:
                continue
        return SOON

    async def _step(self, key: Key, workload: Workload | None) -> float | None:
        known = self._uids.get(key)
        if known is not None and (workload is None or workload.uid != known):
            await self.holds.release(self._uids.pop(key))
        if workload is None:
            self.waiting.discard(key)
            self._said.pop(key, None)
            return None
        self._uids[key] = workload.uid
        if workload.deleting or workload.finished:
            self.waiting.discard(key)
            await self.holds.release(workload.uid)
            return None
        if workload.suspended:
            return await self._suspend(workload)
        if workload.invalid:
            return await self._refuse(workload, "Invalid", workload.invalid)
        policy = self.policy_for(workload)
        if workload.placement is None:
            return await self._dispatch(workload, policy)
        return await self._keep(workload, policy, workload.placement)

    def policy_for(self, workload: Workload) -> Policy:
        """Return the policy that applies."""
        ref = workload.owner_ref
        target = policies.Target(
            ref.get("apiVersion") or "", workload.owner.kind, workload.key.namespace, workload.owner.name,
            workload.labels,
        )  # fmt: skip
        return policies.choose(self.policies, target)

    # Suspended: the reservation is given back, the placement remembered.

    async def _suspend(self, workload: Workload) -> float | None:
        self.waiting.discard(workload.key)
        if workload.placement is not None or not writing.says(workload, "Admitted", "Suspended"):
            await self.store.patch_status(workload, writing.suspended(workload, self.clock.now()))
        await self.holds.release(workload.uid)
        return None

    # Waiting: find a place.

    async def _dispatch(self, workload: Workload, policy: Policy) -> float | None:
        now = self.clock.now()
        if workload.requeue_at is not None and now < workload.requeue_at:
            await self.holds.release(workload.uid)
            return (workload.requeue_at - now).total_seconds()
        returned = drains.returned(workload, policy, self.fleet, now)
        if returned is not None:
            return await self.place(workload, policy, returned, {}, "its cluster may be used again")
        if blocked := self._blocked(workload, policy):
            text = f"waits until its copy on {', '.join(sorted(blocked))} is gone: it must not run twice"
            return await self._refuse(workload, "CopyRunning", text)
        if self.fleet.joining(policy, self.clock.monotonic()):
            return BEING_READ
        wish = self.wish(workload, policy, workload.attempts)
        found = await self.find(workload, policy, wish)
        if found.clusters is None:
            await self.holds.release(workload.uid)
            return await self._refuse(workload, "NoClusterFits", writing.nowhere(found.verdicts), found.verdicts)
        workload = self.current(workload)
        if drains.returned(workload, policy, self.fleet, now) is not None or self._blocked(workload, policy):
            # Rule 4: back before a new winner was stored, it is the winner. Members were asked for seconds.
            raise StaleError("what keeps it changed while members were asked")
        placement = Placement(workload.attempts, found.clusters)
        return await self.place(workload, policy, placement, found.verdicts)

    def wish(self, workload: Workload, policy: Policy, attempt: int) -> Wish:
        """What a dispatch has to take into account, by what happened to the workload so far."""
        conflicts = writing.conflicts(workload, self.clock.now())
        avoid = {name: Verdict(name, CONFLICT, item.message) for name, item in conflicts.items()}
        remembered = workload.last_placement.clusters if workload.last_placement else {}
        evicted = workload.condition("Evicted") if workload.is_true("Evicted") else None
        by_member = evicted is not None and evicted.get("reason") not in GONE
        return Wish(
            attempt, policy.admit_timeout or self.timeouts.admit, avoid=avoid,
            last=tuple(remembered) if by_member else (), remembered={} if evicted else remembered,
        )  # fmt: skip

    def _blocked(self, workload: Workload, policy: Policy) -> set[str]:
        """Clusters where a copy of what must not run twice may run, or of a Job that a drain stops."""
        blocked = running.still_running(workload, self.fleet) if workload.is_true("Evicted") else set()
        limit = policy.worker_lost_timeout or self.timeouts.worker_lost
        return blocked | running.out_of_sight(workload, self.fleet, limit)

    async def find(self, workload: Workload, policy: Policy, wish: Wish) -> Outcome:
        """Ask the members for room, as the policy says. What it finds is held, and stored by `place` only."""
        kind = policy.type_for(workload.mode)
        if kind == DUPLICATED:
            return await self.dispatcher.duplicated(workload, policy, wish, self._replicas(workload))
        if kind == DIVIDED:
            return await self.dispatcher.divided(workload, policy, wish)

        async def nominated(clusters: Iterable[str]) -> None:
            await self.store.patch_status(workload, writing.nominated(workload, clusters, self.clock.now()))

        return await self.dispatcher.single(workload, policy, wish, nominated)

    @staticmethod
    def _replicas(workload: Workload) -> int:
        """Replicas of each duplicate; a kind that counts by itself (DaemonSet) has none."""
        return 0 if workload.mode == DUPLICATED else workload.count

    async def _refuse(
        self, workload: Workload, reason: str, message: str, verdicts: Mapping[str, Verdict] | None = None
    ) -> float:
        self.waiting.add(workload.key)
        # The object may have been written while members were asked (its nominations).
        workload = self.current(workload)
        policy = None if workload.invalid else self.policy_for(workload)
        status = writing.refused(workload, policy.name if policy else None, reason, message, verdicts or {}, self.clock.now())
        if status is not None and self._worth_saying(workload, reason, verdicts or {}):
            await self.store.patch_status(workload, status)
            self.observe(workload, reason, message, False)
        return RECHECK if self._did_not_answer(policy, verdicts or {}) else WAITING

    def _did_not_answer(self, policy: Policy | None, verdicts: Mapping[str, Verdict]) -> bool:
        """Whether a cluster that may take it gave no answer: unlike one without room, it tells nobody when it could."""
        if policy is None:
            return False
        names = {member.name for member in self.fleet.candidates(policy).passing}
        return any(v.filter in ("Worker", "Reachable") and v.cluster in names for v in verdicts.values())

    def _worth_saying(self, workload: Workload, reason: str, verdicts: Mapping[str, Verdict]) -> bool:
        """Mere changes of the numbers of what is free are written now and then only."""
        now = self.clock.monotonic()
        gist = (workload.uid, reason, tuple(sorted((v.cluster, v.filter) for v in verdicts.values())))
        said = self._said.get(workload.key)
        if said is not None and said[0] == gist and now < said[1] + WAITING and workload.condition("Scheduled"):
            return False
        self._said[workload.key] = (gist, now)
        return True

    def current(self, workload: Workload) -> Workload:
        """The newest version, if what a decision rests on is the same in it; StaleError otherwise."""
        newest = self.store.get(workload.key)
        if newest is workload:
            return workload
        if newest is None or newest.uid != workload.uid or newest.generation != workload.generation:
            raise StaleError("the workload changed")
        before = (workload.placement, workload.attempts, workload.deleting, workload.finished)
        if before != (newest.placement, newest.attempts, newest.deleting, newest.finished):
            raise StaleError("the workload's status changed")
        return newest

    async def place(
        self, workload: Workload, policy: Policy, placement: Placement, verdicts: Mapping[str, Verdict],
        note: str = "", departures: Iterable[Departure] = (),
    ) -> float | None:  # fmt: skip
        """Store the winner, then confirm it, then release the others."""
        workload = self.current(workload)
        now, lacked = self.clock.now(), room.lacks(workload)
        status = writing.placed(workload, policy, placement, verdicts, list(departures), now)
        workload = await self.store.patch_status(workload, status)
        self.waiting.discard(workload.key)
        self._said.pop(workload.key, None)
        message = writing.admitted_on(placement)
        self.observe(workload, "Placed", f"{message}: {note}" if note else message, True)
        why = room.lacking(placement.clusters, verdicts)
        if why and not lacked:
            self.observe(workload, room.NO_ROOM, why, False)
        return await self._settle(workload, policy, placement)

    async def _settle(
        self, workload: Workload, policy: Policy, placement: Placement, known: Collection[str] = ()
    ) -> float | None:
        """Confirm and release; after how many seconds to look again. `known`: clusters that should be left, but cannot."""
        settled = await self.holds.settle(workload, placement)
        found = outlook(workload, policy, self.fleet, self.timeouts, self.clock.now())
        if found.newly_missing or any(item.cluster not in known for item in found.departures):
            return DUE  # It became due while members were told: nobody else would look again.
        wait = None if found.look_at is None else max((found.look_at - self.clock.now()).total_seconds(), 0.05)
        return wait if settled else min(wait or SOON, SOON)

    # Placed: pinned, unless something must leave or the size changed.

    async def _keep(self, workload: Workload, policy: Policy, placement: Placement) -> float | None:
        now = self.clock.now()
        found = outlook(workload, policy, self.fleet, self.timeouts, now)
        if found.newly_missing or self._reappeared(workload):
            status = writing.missing(workload, found.newly_missing, self.fleet.members, now)
            workload = await self.store.patch_status(workload, status)
            return 0.0
        half_way = drains.stopped(workload, policy, self.fleet, now)
        if half_way is not None:
            fresh = Placement(placement.attempt, half_way)
            return await self.place(workload, policy, fresh, {}, "its drain was stopped")
        if over := drains.ended(workload, self.fleet):
            workload = await self.store.patch_status(workload, writing.arrived(workload, over))
        departures = [item for item in found.departures if await self._really(item)]
        if departures:
            moved = await self._moves.move(workload, policy, placement, departures)
            if moved.done:
                return moved.wait
            nowhere = (Stay(d.cluster, drains.NOWHERE_TO_GO, moved.why) for d in departures if d.reason == DRAINED)
            found.stays.extend(nowhere)
        workload = await self._say_what_stays(workload, found.stays)
        workload = await self._say_whether_it_fits(workload, policy, placement)
        if self._size_differs(workload, policy, placement):
            return await self._resize(workload, policy, placement)
        wait = await self._settle(workload, policy, placement, {item.cluster for item in found.departures})
        if room.lacks(workload):
            wait = min(wait or WAITING, WAITING)
        # What should leave but cannot, or answers after all, is looked at again.
        if found.departures:
            return min(wait or RECHECK, RECHECK)
        # So is a cluster that is only left alone for a while.
        return min(wait or WAITING, WAITING) if writing.conflicts(workload, now) else wait

    async def _say_what_stays(self, workload: Workload, stays: list[Stay]) -> Workload:
        """Say on the Workload, and once in an event, why a drain leaves it where it is."""
        workload = self.current(workload)
        status = writing.blocked(workload, stays, self.clock.now())
        if status is None:
            return workload
        news = stays and not writing.says(workload, writing.DRAIN_BLOCKED, stays[0].reason)
        workload = await self.store.patch_status(workload, status)
        if news:
            text = "; ".join(f"stays on {item.cluster}: {item.message}" for item in stays)
            self.observe(workload, writing.DRAIN_BLOCKED, text, False)
        return workload

    async def _say_whether_it_fits(self, workload: Workload, policy: Policy, placement: Placement) -> Workload:
        """Say on the Workload, and once in an event, that what is placed has no room there; and when it has."""
        now, lacked, why = self.clock.now(), room.lacks(workload), ""
        fits = lacked and room.runs_again(workload, now)
        if not fits and (lacked or room.waits_for_nodes(workload, placement, self.fleet, now)):
            limit = policy.admit_timeout or self.timeouts.admit
            heard = await self.dispatcher.room(workload, placement.clusters, limit)
            fits = room.found(heard, heard)
            # What is said already is not said anew for other numbers.
            why = "" if lacked else room.lacking(heard, heard)
        if not why and not fits:
            return workload
        workload = self.current(workload)
        status = writing.fitting(workload, why, fits, now)
        if status is None:
            return workload
        workload = await self.store.patch_status(workload, status)
        if why:
            self.observe(workload, room.NO_ROOM, why, False)
        return workload

    def _reappeared(self, workload: Workload) -> bool:
        return any(cluster in self.fleet.members for cluster in workload.lost)

    async def _really(self, departure: Departure) -> bool:
        """Before a loss is acted on the cluster is asked once more: discovery's word may be old."""
        if departure.reason != CLUSTER_LOST or self._probe is None:
            return True
        member = self.fleet.members.get(departure.cluster)
        return member is None or member.forgotten or not await self._probe(departure.cluster)

    def _size_differs(self, workload: Workload, policy: Policy, placement: Placement) -> bool:
        kind = policy.type_for(workload.mode)
        if kind != DUPLICATED:
            return placement.total != workload.count
        replicas = self._replicas(workload)
        if any(count != replicas for count in placement.clusters.values()):
            return True
        blocked = self.wish(workload, policy, placement.attempt).avoid
        return any(
            member.name not in placement.clusters and member.name not in blocked
            for member in self.fleet.candidates(policy).passing
        )  # fmt: skip

    async def _resize(self, workload: Workload, policy: Policy, placement: Placement) -> float | None:
        """Follow a changed count: stickily where it is divided, in place where it is single."""
        kind = policy.type_for(workload.mode)
        if kind == SINGLE:
            clusters = dict.fromkeys(list(placement.clusters)[:1], workload.count)
            if len(placement.clusters) == 1:
                return await self.place(workload, policy, Placement(placement.attempt, clusters), {}, "resized")
        wish = self.wish(workload, policy, placement.attempt)
        wish = Wish(wish.attempt, wish.limit, current=placement.clusters, avoid=wish.avoid)
        found = await self.find(workload, policy, wish)
        if found.clusters is None or found.clusters == dict(placement.clusters):
            if found.clusters is None:
                text = writing.nowhere(found.verdicts)
                await self._refuse(workload, "NoClusterFits", f"the new replicas fit nowhere: {text}", found.verdicts)
            return min(await self._settle(workload, policy, placement) or WAITING, WAITING)
        fresh = Placement(placement.attempt, found.clusters)
        return await self.place(workload, policy, fresh, found.verdicts, "resized")

    # After a start, or when a worker is back.

    def gone_keys(self) -> list[Key]:
        """Keys that were known and are there no more: while another manager led, nobody looked at them here."""
        return [key for key in self._uids if self.store.get(key) is None]

    def placed_on(self, cluster: str) -> list[Workload]:
        """Workloads whose stored placement names `cluster` and still counts there."""
        return [
            workload
            for workload in self.store
            if workload.placement is not None and cluster in workload.placement.clusters
            and not workload.deleting and not workload.finished and not workload.suspended
        ]  # fmt: skip

    def stuck_keys(self) -> list[Key]:
        """Keys of workloads with pods that find no node."""
        uids = {uid for admission in self.fleet.admissions.values() for uid in admission.stuck()}
        return [key for key, uid in self._uids.items() if uid in uids] if uids else []


def age_order(workload: Workload) -> tuple[int, datetime]:
    """Order among waiting workloads: priority, then age."""
    epoch = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
    return -workload.priority, workload.created or epoch
