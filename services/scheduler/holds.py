"""Which reservations the manager holds where, so that winners are confirmed and all others released."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.common.errors import StatusError
from services.scheduler.fleet import Fleet
from services.scheduler.member import Answer, Ask, PodSets
from services.scheduler.store import Remaining, forever
from services.scheduler.verdict import Verdict
from services.scheduler.workload import Placement, Workload

log = logging.getLogger(__name__)

CALL_LIMIT = 5.0
"""Seconds that a confirmation or release may take."""


@dataclass(slots=True)
class Hold:
    """What a member was told: `confirmed` only once it said so."""

    attempt: int
    replicas: int
    confirmed: bool = False


class Holds:
    """Reservations by workload uid and cluster. Calls to members have deadlines and never raise."""

    def __init__(self, fleet: Fleet, remaining: Remaining = forever) -> None:
        self._fleet = fleet
        self._remaining = remaining
        self._by_uid: dict[str, dict[str, Hold]] = {}

    def of(self, uid: str) -> Mapping[str, Hold]:
        """Return a workload's holds."""
        return self._by_uid.get(uid, {})

    async def reserve(self, ask: Ask, cluster: str, limit: float, replicas: int) -> Answer:
        """Ask a member for room, within `limit` seconds; no answer is a refusal by filter `Worker`."""
        admission = self._fleet.admissions.get(cluster)
        if admission is None:
            return Answer(False, Verdict(cluster, "Worker", "nothing admits for it"))
        if admission.silent():
            # It is known not to answer: nobody waits for that again and again (rule 10).
            return Answer(False, Verdict(cluster, "Worker", admission.problem()))
        # Noted before the call: an answer that is lost must be released too.
        before = self._by_uid.setdefault(ask.id, {}).get(cluster)
        self._by_uid[ask.id][cluster] = Hold(ask.attempt, replicas)
        try:
            async with asyncio.timeout(limit):
                answer = await admission.reserve(ask)
        except TimeoutError:
            return Answer(False, Verdict(cluster, "Worker", f"did not answer within {limit:g} s"))
        except StatusError as error:
            return Answer(False, Verdict(cluster, "Worker", error.message))
        if not answer.admitted:
            self._drop(ask.id, cluster)
            if before is not None and before.confirmed:
                self._by_uid.setdefault(ask.id, {})[cluster] = before
        elif before is not None and before.confirmed and before.attempt == ask.attempt:
            self._by_uid[ask.id][cluster].confirmed = True
        return answer

    def _drop(self, uid: str, cluster: str) -> None:
        holds = self._by_uid.get(uid)
        if holds is not None:
            holds.pop(cluster, None)
            if not holds:
                del self._by_uid[uid]

    async def settle(self, workload: Workload, placement: Placement) -> bool:
        """After the store: confirm the placed clusters, then release all others. False: try again later."""
        done = await asyncio.gather(
            *(self._confirm(workload, placement.attempt, c, n) for c, n in placement.clusters.items())
        )
        await self.release(workload.uid, keep=placement.clusters)
        return all(done)

    async def _confirm(self, workload: Workload, attempt: int, cluster: str, replicas: int) -> bool:
        admission = self._fleet.admissions.get(cluster)
        if admission is None:
            return True  # It left, or is not read yet: joining resyncs it.
        hold = self._by_uid.get(workload.uid, {}).get(cluster)
        if hold is not None and hold.confirmed and (hold.attempt, hold.replicas) == (attempt, replicas):
            return True
        if self._remaining() <= 0:
            return False  # A confirmation lifts fences: that is for who leads.
        try:
            async with asyncio.timeout(CALL_LIMIT):
                told = hold is not None and (hold.attempt, hold.replicas) == (attempt, replicas)
                if not told or not await admission.confirm(workload.uid, attempt):
                    # The worker has restarted, or the numbers changed: the stored placement stands.
                    await admission.reserve(placed_ask(workload, attempt, replicas))
        except (TimeoutError, StatusError) as error:
            log.warning("%s: the placement of %s is not confirmed yet: %s", cluster, workload.key.name, error)
            return False
        self._by_uid.setdefault(workload.uid, {})[cluster] = Hold(attempt, replicas, confirmed=True)
        return True

    def note_placed(self, workload: Workload, placement: Placement, cluster: str) -> None:
        """A resync told the member this placement."""
        hold = Hold(placement.attempt, placement.clusters[cluster], confirmed=True)
        self._by_uid.setdefault(workload.uid, {})[cluster] = hold

    async def release(self, uid: str, keep: Iterable[str] = ()) -> None:
        """Release everything that is held for a workload, except at `keep`."""
        kept = set(keep)
        others = [cluster for cluster in self._by_uid.get(uid, {}) if cluster not in kept]
        if others:
            await asyncio.gather(*(self._release(uid, cluster) for cluster in others))

    async def _release(self, uid: str, cluster: str) -> None:
        hold = self._by_uid.get(uid, {}).get(cluster)
        if hold is None:
            return  # A resync, or a worker with fences, forgot it since the caller looked.
        self._drop(uid, cluster)
        admission = self._fleet.admissions.get(cluster)
        if admission is None:
            return
        try:
            async with asyncio.timeout(CALL_LIMIT):
                await admission.release(uid, hold.attempt)
        except (TimeoutError, StatusError) as error:
            # Unconfirmed it ends by itself; confirmed it goes with the resync when the worker is back.
            log.info("%s: a reservation was not released, it will end by itself: %s", cluster, error)

    def forget(self, uid: str, cluster: str) -> None:
        """The member is to be told anew of this workload."""
        self._drop(uid, cluster)

    def forget_confirmed(self, cluster: str) -> None:
        """What a member was told counts no more: its worker starts afresh. What is in flight stays noted."""
        told = [uid for uid, holds in self._by_uid.items() if cluster in holds and holds[cluster].confirmed]
        for uid in told:
            self._drop(uid, cluster)


def placed_ask(workload: Workload, attempt: int, replicas: int) -> Ask:
    """What a member is told of a stored placement."""
    shares: PodSets = workload.share(replicas) if replicas else []
    return Ask(workload.uid, attempt, workload.owner, shares, at_most_once=workload.at_most_once, placed=True)


def new_ask(workload: Workload, attempt: int, replicas: int, *, partial: bool = False) -> Ask:
    """What a member is asked for a placement that is not stored yet."""
    shares: PodSets = workload.share(replicas) if replicas else []
    return Ask(workload.uid, attempt, workload.owner, shares, partial=partial)


