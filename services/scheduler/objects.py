"""Placement of objects that are created directly: bare Pods and anything else whose type is aggregated.

No Workload stands for them: they are placed once, at their creation, and stay.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from services.common.errors import StatusError
from services.scheduler import policy as policies
from services.scheduler.admission import Admission, totals
from services.scheduler.dispatch import ask_verdict
from services.scheduler.fleet import Fleet, MemberView
from services.scheduler.ledger import OwnerKey
from services.scheduler.member import Ask, PodSets
from services.scheduler.policy import Policy, Target
from services.scheduler.shape import pod_shape
from services.scheduler.verdict import CAPACITY, Verdict

log = logging.getLogger(__name__)

LIMIT = 3.0
NAMED_TTL = 15.0
UNNAMED_TTL = 5.0
"""Seconds that room is held for a Pod until it appears; one without a name cannot be recognised."""
TYPES_TTL = 30.0
TYPES_MAX = 1000


@dataclass(frozen=True, slots=True)
class Pick:
    """The member for an object, None when none is eligible; `fits` is False when it will be Pending there."""

    cluster: str | None
    fits: bool
    verdicts: dict[str, Verdict]


class ObjectPlacer:
    """Picks members for single objects."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.policies: tuple[Policy, ...] = ()
        self._types: dict[tuple[str, str], tuple[float, frozenset[str]]] = {}
        self._number = 0

    async def place(self, obj: Mapping[str, Any], target: Target, candidates: Collection[str]) -> Pick:
        """Pick the best member that is eligible, or the one with most room where the object can wait.

        ValueError for a manifest whose requests are malformed.
        """
        pod_sets: PodSets = [(pod_shape(obj.get("spec") or {}), 1)] if target.kind == "Pod" else []
        found = self._fleet.candidates(policies.choose(self.policies, target))
        verdicts = dict(found.failing)
        members = []
        for member in found.passing:
            if candidates and member.name not in candidates:
                verdicts[member.name] = Verdict(member.name, "Candidates", "the caller does not offer it")
            else:
                members.append(member)
        verdicts.update(await self._judge(members, pod_sets, target))
        asked = totals(pod_sets)
        for admission in self._ranked(members, asked):
            if verdicts[admission.cluster].eligible and await self._hold(admission, pod_sets, target):
                return Pick(admission.cluster, True, verdicts)
        # It fits nowhere: what counts is where most room is, whatever is asked.
        ranked = [admission.cluster for admission in self._ranked(members, (0, 0, 0))]
        waiting = [name for name in ranked if verdicts[name].may_wait] or [
            name for name in ranked if target.kind == "Pod" and verdicts[name].filter.startswith("Node")
        ]
        return Pick(waiting[0] if waiting else None, False, verdicts)

    def _ranked(self, members: Collection[MemberView], asked: tuple[int, int, int]) -> list[Admission]:
        """Best score first; without those that have left the fleet while members were asked."""
        known = (self._fleet.admissions.get(member.name) for member in members)
        return sorted((a for a in known if a is not None), key=lambda a: (-a.score(asked), a.cluster))

    async def _judge(
        self, members: Collection[MemberView], pod_sets: PodSets, target: Target
    ) -> dict[str, Verdict]:
        found = await asyncio.gather(*(self._judge_one(member, pod_sets, target) for member in members))
        return {verdict.cluster: verdict for verdict in found}

    async def _judge_one(self, member: MemberView, pod_sets: PodSets, target: Target) -> Verdict:
        admission = self._fleet.admissions[member.name]
        if pod_sets:
            return await ask_verdict(admission, None, pod_sets, LIMIT)
        missing = await self._lacks_type(member, target)
        if missing:
            return Verdict(member.name, "Type", missing)
        return Verdict(member.name, score=admission.score((0, 0, 0)))

    async def _lacks_type(self, member: MemberView, target: Target) -> str:
        """Say why the member does not serve the object's type; "" when it does."""
        key, now = (member.name, target.api_version), time.monotonic()
        until, kinds = self._types.get(key, (0.0, frozenset()))
        # A CRD that was just made must not be missed: what is known only ever says yes.
        if until < now or target.kind not in kinds:
            try:
                kinds = await self._read_types(member, target.api_version)
            except StatusError as error:
                return error.message
            if len(self._types) >= TYPES_MAX:
                self._types = {known: found for known, found in self._types.items() if found[0] > now}
            self._types[key] = (now + TYPES_TTL, kinds)
        return "" if target.kind in kinds else f"it does not serve {target.kind} of {target.api_version}"

    async def _read_types(self, member: MemberView, api_version: str) -> frozenset[str]:
        client = getattr(member, "client", None)
        if client is None:
            raise StatusError(503, message="its API cannot be read")
        path = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        try:
            response = await client.request("GET", path, timeout=LIMIT)
        except StatusError as error:
            if error.code == 404:
                return frozenset()
            raise
        return frozenset(item.get("kind") or "" for item in response.json().get("resources") or ())

    async def _hold(self, admission: Admission, pod_sets: PodSets, target: Target) -> bool:
        """Hold the Pod's room until it appears, so that a burst of creates does not overcommit."""
        if not pod_sets:
            return True
        self._number += 1
        name = target.name or f"unnamed-{self._number}"
        owner = OwnerKey(target.namespace, "Pod", name)
        ask = Ask(f"pod/{target.namespace}/{name}", 0, owner, pod_sets)
        try:
            async with asyncio.timeout(LIMIT):
                answer = await admission.reserve(ask, NAMED_TTL if target.name else UNNAMED_TTL)
        except (TimeoutError, StatusError) as error:
            log.info("%s: no room held for pod %s/%s: %s", admission.cluster, target.namespace, target.name, error)
            return False
        return answer.admitted or answer.verdict.filter not in (CAPACITY, "Worker")
