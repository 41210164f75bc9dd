"""The members as candidates: cluster-level filters, cached until a member or policy changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from services.scheduler.admission import Admission
from services.scheduler.matching import describe_selector, selector_holds, untolerated
from services.scheduler.policy import Policy
from services.scheduler.verdict import Verdict

FenceWait = Callable[[str, float], float | None]
"""(cluster, time-out): seconds until what must not run twice is stopped on a lost cluster; None: nobody stops it."""

JOINING = 3.0
"""Seconds in which the nodes and pods of a member that has just come are read, in all but bad cases."""


def _nobody_fences(cluster: str, limit: float) -> float | None:
    return None


class MemberView(Protocol):
    """What placement reads of a member; `services.common.fleet.Member` is one."""

    name: str
    uid: str
    labels: Mapping[str, str]
    taints: Any
    reachable: bool
    ready: bool
    reason: str
    unreachable_since: datetime | None
    forgotten: bool
    leaving_since: datetime | None


@dataclass(slots=True)
class Candidates:
    """Members that pass the cluster-level filters, and verdicts on the others."""

    passing: list[MemberView]
    failing: dict[str, Verdict]


class Fleet:
    """Members and their admissions, by name. `touch` after any change of either."""

    def __init__(self) -> None:
        self.members: dict[str, MemberView] = {}
        self.admissions: dict[str, Admission] = {}
        self.fence_wait: FenceWait = _nobody_fences
        self._cache: dict[int, tuple[Policy, Candidates]] = {}
        self._joining: dict[str, float] = {}

    def joined(self, name: str, now: float) -> None:
        """A member came, or came back, at `now` by the monotonic clock."""
        self._joining[name] = now + JOINING

    def joining(self, policy: Policy, now: float) -> bool:
        """Whether a candidate came a moment ago and is still being read. O(members) while one did, else O(1).

        At a start of the manager, or of the fleet, members are read one after the other: whoever decides by the first of
        them alone places everything there, and it stays there.
        """
        self._joining = {name: end for name, end in self._joining.items() if now < end}
        if not self._joining:
            return False
        passing = {member.name for member in self.candidates(policy).passing}
        return any(self.admissions[name].problem() for name in self._joining if name in passing)

    def touch(self) -> None:
        """Forget cached candidates."""
        self._cache.clear()

    def candidates(self, policy: Policy) -> Candidates:
        """Return the members that pass. O(members) once per policy and change, then O(1)."""
        cached = self._cache.get(id(policy))
        if cached is not None and cached[0] is policy:
            return cached[1]
        found = Candidates([], {})
        for name in sorted(self.members):
            member = self.members[name]
            verdict = self.judge(policy, member)
            if verdict is None:
                found.passing.append(member)
            else:
                found.failing[name] = verdict
        self._cache[id(policy)] = (policy, found)
        return found

    def judge(self, policy: Policy, member: MemberView) -> Verdict | None:
        """Return the first cluster-level filter that fails, or None."""
        name = member.name
        if policy.cluster_names and name not in policy.cluster_names:
            wanted = ", ".join(sorted(policy.cluster_names))
            return Verdict(name, "ClusterNames", f"policy {policy.name} names {wanted}")
        if not selector_holds(member.labels, policy.cluster_selector):
            wanted = describe_selector(policy.cluster_selector)
            return Verdict(name, "ClusterSelector", f"policy {policy.name} wants {wanted}")
        if member.forgotten:
            return Verdict(name, "Reachable", "an operator said that it will not come back")
        if member.leaving_since is not None:
            return Verdict(name, "Leaving", "no provider has it any more, it is leaving the fleet")
        if not member.reachable or not member.ready:
            return Verdict(name, "Reachable", member.reason or "not reached yet")
        taint = untolerated(member.taints, policy.tolerations)
        if taint is not None:
            return Verdict(name, "Taint", f"taint {taint.key}:{taint.effect} is not tolerated by the policy")
        if name not in self.admissions:
            return Verdict(name, "Worker", "nothing admits for it yet")
        return None

    def most_are_lost(self) -> bool:
        """True while more than half of the members are away, or leaving, at once: then the fault is ours."""
        known = [member for member in self.members.values() if not member.forgotten]
        lost = sum(1 for member in known if not member.reachable or member.leaving_since is not None)
        return lost * 2 > len(known)


def order(
    fleet: Fleet, members: Sequence[MemberView], asked: tuple[int, int, int], *, last: Sequence[str] = ()
) -> list[Admission]:
    """Admissions of `members`, best score first, those of `last` at the end; ties by name."""
    admissions = fleet.admissions
    # `members` come by name and the sort is stable, so equal scores stay in the order of names.
    ranked = [admissions[member.name] for member in members]
    scores = {id(admission): -admission.score(asked) for admission in ranked}
    ranked.sort(key=lambda admission: scores[id(admission)])
    if last:
        ranked.sort(key=lambda admission: admission.cluster in last)
    return ranked
