"""From candidates to reservations: who may run a workload, decided by the members' own answers.

Nothing here writes to the host. A dispatch ends with reservations that are held (see `Holds`) and the placement
that they stand for; the engine stores it, then confirms the winners, then releases the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from services.common.errors import StatusError
from services.scheduler import divide
from services.scheduler.admission import Admission, totals
from services.scheduler.fleet import Candidates, Fleet, MemberView, order
from services.scheduler.holds import Holds, new_ask
from services.scheduler.ledger import OwnerKey
from services.scheduler.member import FITS_LIMIT, Answer, PodSets
from services.scheduler.policy import CAPACITY, SEQUENTIAL, Policy
from services.scheduler.verdict import Verdict
from services.scheduler.workload import Workload

HEAD_START = 0.5
"""Seconds that a member read in-process has for its answer before the next one is asked as well."""
TOGETHER = 0.02
"""Admissions that arrive within this many seconds of the first are simultaneous: the better score wins."""

NominatedCallback = Callable[[Sequence[str]], Awaitable[None]]
"""Called once when the answers take long, with the clusters that were asked."""


@dataclass(slots=True)
class Outcome:
    """`clusters` is the placement that is held, None when nothing admitted; verdicts say what was heard."""

    clusters: dict[str, int] | None
    verdicts: dict[str, Verdict] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wish:
    """What a dispatch is to take into account beside workload and policy."""

    attempt: int
    limit: float
    """Seconds that a member may take to answer."""
    current: Mapping[str, int] = field(default_factory=dict)
    """Shares that stay where they are."""
    avoid: Mapping[str, Verdict] = field(default_factory=dict)
    """Clusters that are out of the question, and why."""
    last: Sequence[str] = ()
    """Clusters that come last: they evicted it."""
    remembered: Mapping[str, int] = field(default_factory=dict)
    """Shares that it had before it was suspended: preferred, but no longer held."""


class Dispatcher:
    """Asks members on behalf of one workload at a time; safe for many workloads at once."""

    def __init__(self, fleet: Fleet, holds: Holds, *, patience: float = 0.3) -> None:
        self._fleet = fleet
        self._holds = holds
        self._patience = patience

    def _eligible(self, policy: Policy, wish: Wish) -> tuple[list[MemberView], dict[str, Verdict]]:
        found: Candidates = self._fleet.candidates(policy)
        if not wish.avoid:
            return found.passing, dict(found.failing)
        passing = [member for member in found.passing if member.name not in wish.avoid]
        return passing, {**wish.avoid, **found.failing}

    # Single: the first cluster that admits.

    async def single(
        self, workload: Workload, policy: Policy, wish: Wish, nominated: NominatedCallback | None = None
    ) -> Outcome:
        """Reserve the whole workload on one cluster."""
        members, verdicts = self._eligible(policy, wish)
        pod_sets = [(item.shape, item.count) for item in workload.pod_sets]
        ranked = order(self._fleet, members, totals(pod_sets), last=wish.last)
        run = _SingleRun(self._holds, workload, wish, verdicts)
        preferred, early, late = _split(ranked, wish)
        winner = await run.one_by_one(preferred, wish.limit)
        for group in (early, late):
            if winner is None and group:
                if policy.dispatcher == SEQUENTIAL:
                    winner = await run.one_by_one(group, wish.limit)
                elif all(admission.immediate for admission in group):
                    winner = await run.in_process(group)
                else:
                    winner = await run.all_at_once(group, self._patience, nominated)
        return Outcome(None if winner is None else {winner: workload.count}, verdicts)

    # Divided: a share for each cluster.

    async def divided(self, workload: Workload, policy: Policy, wish: Wish) -> Outcome:
        """Reserve shares that add up to the workload's count, stickily on top of `wish.current`.

        Members are asked in one fixed order. A share that finds no room now is placed all the same: its pods
        are Pending there, as in Kubernetes. Members whose other filters fail get nothing, or nothing new.
        """
        members, verdicts = self._eligible(policy, wish)
        growing = workload.count > sum(wish.current.values())
        if growing or not wish.current:
            heard = await self._evaluate(workload, members, wish.limit)
            verdicts.update(heard)
            members = [member for member in members if heard[member.name].may_wait]
            if not members and workload.count > 0:
                return Outcome(None, verdicts)
        while True:
            shares = self._divide(workload, policy, wish, members, verdicts)
            if sum(shares.values()) < workload.count:
                verdicts.update({m.name: without_weight(policy, m) for m in members})
                return Outcome(None, verdicts)
            refused = await self._reserve_shares(workload, wish, shares, verdicts)
            if not refused:
                return Outcome(shares, verdicts)
            members = [member for member in members if member.name not in refused]
            if not members:
                return Outcome(None, verdicts)

    async def _evaluate(
        self, workload: Workload, members: Sequence[MemberView], limit: float
    ) -> dict[str, Verdict]:
        shape = [(item.shape, 1) for item in workload.pod_sets]
        admissions = [self._fleet.admissions[member.name] for member in members]
        # Those of this process answer without waiting: a task each would cost more than the answer.
        found = [await ask_verdict(a, None, shape, limit) for a in admissions if a.immediate]
        remote = (ask_verdict(a, None, shape, limit) for a in admissions if not a.immediate)
        found += await asyncio.gather(*remote)
        return {verdict.cluster: verdict for verdict in found}

    async def room(self, workload: Workload, clusters: Iterable[str], limit: float) -> dict[str, Verdict]:
        """Ask clusters whether they have room for one pod more."""
        known = [self._fleet.members[name] for name in sorted(clusters) if name in self._fleet.members]
        asked = [member for member in known if member.name in self._fleet.admissions]
        return await self._evaluate(workload, asked, limit)

    def _divide(
        self, workload: Workload, policy: Policy, wish: Wish, members: Sequence[MemberView],
        verdicts: Mapping[str, Verdict],
    ) -> dict[str, int]:  # fmt: skip
        open_ = {member.name for member in members}
        remembered = {name: count for name, count in wish.remembered.items() if name in open_}
        current = {name: count for name, count in (wish.current or remembered).items() if count > 0}
        votes: dict[str, int] = {}
        caps: dict[str, int] | None = None
        if policy.strategy == CAPACITY:
            caps = {}
            for member in members:
                verdict = verdicts.get(member.name)
                room = min(verdict.fits if verdict else 0, FITS_LIMIT)
                caps[member.name] = votes[member.name] = current.get(member.name, 0) + room
        else:
            votes = {member.name: policy.weight_of(member.name, member.labels) for member in members}
        if workload.count < sum(current.values()):
            # Shrinking is proportional over all clusters that have a share, cordoned ones too.
            for name, count in current.items():
                member_view = self._fleet.members.get(name)
                labels = member_view.labels if member_view else {}
                votes[name] = count if policy.strategy == CAPACITY else policy.weight_of(name, labels)
        return divide.resize(current, votes, workload.count, caps)

    async def _reserve_shares(
        self, workload: Workload, wish: Wish, shares: Mapping[str, int], verdicts: dict[str, Verdict]
    ) -> set[str]:
        """Reserve what is new of each share, in the order of names; returns who refused for good."""
        refused: set[str] = set()
        for name in sorted(shares):
            if shares[name] == wish.current.get(name):
                continue
            ask = new_ask(workload, wish.attempt, shares[name], partial=True)
            answer = await self._holds.reserve(ask, name, wish.limit, shares[name])
            if not answer.admitted and shares[name] > wish.current.get(name, 0):
                verdicts[name] = answer.verdict
                refused.add(name)
        return refused

    async def shifted(
        self, workload: Workload, policy: Policy, wish: Wish, stuck: Mapping[str, int]
    ) -> Outcome:
        """Move pods that find no node to clusters with room for them now, and no more than find room.

        `wish.current` are all shares; `stuck` says how many of each wait.
        """
        members, verdicts = self._eligible(policy, wish)
        members = [member for member in members if member.name not in stuck]
        verdicts.update(await self._evaluate(workload, members, wish.limit))
        room = {m.name: verdicts[m.name].fits for m in members if verdicts[m.name].may_wait}
        current = dict(wish.current)
        leaving = min(sum(stuck.values()), sum(room.values()))
        for name, count in sorted(stuck.items()):
            part = min(count, leaving, current[name])
            current[name] -= part
            leaving -= part
        missing = workload.count - sum(current.values())
        caps = {name: current.get(name, 0) + count for name, count in room.items()}
        shares = {name: count for name, count in divide.grow(current, room, missing, caps).items() if count > 0}
        if shares == wish.current or sum(shares.values()) != workload.count:
            return Outcome(None, verdicts)
        grown = {name: count for name, count in shares.items() if count > wish.current.get(name, 0)}
        refused = await self._reserve_shares(workload, wish, grown, verdicts)
        return Outcome(None if refused else shares, verdicts)

    # Duplicated: every cluster.

    async def duplicated(self, workload: Workload, policy: Policy, wish: Wish, replicas: int) -> Outcome:
        """Place on every candidate that is not in `wish.current`, and keep those that are."""
        members, verdicts = self._eligible(policy, wish)
        clusters = dict.fromkeys(wish.current, replicas)
        for member in members:
            name = member.name
            if name in clusters and wish.current[name] == replicas:
                continue
            ask = new_ask(workload, wish.attempt, replicas, partial=True)
            answer = await self._holds.reserve(ask, name, wish.limit, replicas)
            if answer.admitted:
                clusters[name] = replicas
            if answer.admitted or name not in wish.current:
                verdicts[name] = answer.verdict
        return Outcome(clusters or None, verdicts)


def without_weight(policy: Policy, member: MemberView) -> Verdict:
    """What is said of a cluster that StaticWeight gives nothing."""
    return Verdict(member.name, "Weight", f"policy {policy.name} gives it no weight")


def _split(ranked: list[Admission], wish: Wish) -> tuple[list[Admission], list[Admission], list[Admission]]:
    """Those that are preferred, the usual ones, and those that come last."""
    if not wish.remembered and not wish.last:
        return [], ranked, []
    preferred = [admission for admission in ranked if admission.cluster in wish.remembered]
    others = [admission for admission in ranked if admission.cluster not in wish.remembered]
    late = [admission for admission in others if admission.cluster in wish.last]
    return preferred, [admission for admission in others if admission.cluster not in wish.last], late


class _SingleRun:
    """One workload asking for one cluster."""

    def __init__(self, holds: Holds, workload: Workload, wish: Wish, verdicts: dict[str, Verdict]) -> None:
        self._holds, self._workload, self._wish, self._verdicts = holds, workload, wish, verdicts

    async def _ask(self, admission: Admission, limit: float) -> Answer:
        count = self._workload.count
        ask = new_ask(self._workload, self._wish.attempt, count)
        answer = await self._holds.reserve(ask, admission.cluster, limit, count)
        self._verdicts[admission.cluster] = answer.verdict
        return answer

    async def one_by_one(self, ranked: Sequence[Admission], limit: float) -> str | None:
        """Ask in order, each for `limit` seconds at most."""
        for admission in ranked:
            if (await self._ask(admission, limit)).admitted:
                return admission.cluster
        return None

    async def in_process(self, ranked: Sequence[Admission]) -> str | None:
        """Members of this process answer at once, so asking in order of score is asking all at once."""
        silent = []
        for admission in ranked:
            answer = await self._ask(admission, min(HEAD_START, self._wish.limit))
            if answer.admitted:
                return admission.cluster
            if answer.verdict.filter == "Worker":
                silent.append(admission)
        return await self.one_by_one(silent, self._wish.limit) if silent and self._wish.limit > HEAD_START else None

    async def all_at_once(
        self, ranked: Sequence[Admission], patience: float, nominated: NominatedCallback | None
    ) -> str | None:
        """Ask everyone; the first that admits wins, the better score among simultaneous ones."""
        tasks = {
            asyncio.create_task(self._ask(admission, self._wish.limit), name=f"reserve/{admission.cluster}"): number
            for number, admission in enumerate(ranked)
        }
        try:
            done = await self._first(tasks, patience, [a.cluster for a in ranked], nominated)
        finally:
            pending = [task for task in tasks if not task.done()]
            for task in pending:
                # Its hold was noted before the call: it is released with the losers.
                task.cancel()
            if pending:
                await asyncio.wait(pending)
        return None if done is None else ranked[done].cluster

    async def _first(
        self, tasks: Mapping[asyncio.Task[Answer], int], patience: float, asked: Sequence[str],
        nominated: NominatedCallback | None,
    ) -> int | None:  # fmt: skip
        pending: set[asyncio.Task[Answer]] = set(tasks)
        wait: float | None = patience if nominated is not None else None
        admitted: list[int] = []
        while pending:
            done, pending = await asyncio.wait(pending, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            if not done and wait is not None and nominated is not None:
                wait = None
                await nominated(asked)
                continue
            admitted = [tasks[task] for task in done if task.result().admitted]
            if admitted:
                break
        if admitted and pending and min(admitted) > 0:
            done, _ = await asyncio.wait(pending, timeout=TOGETHER)
            admitted += [tasks[task] for task in done if task.result().admitted]
        return min(admitted, default=None)


async def ask_verdict(
    admission: Admission, owner: OwnerKey | None, pod_sets: PodSets, limit: float
) -> Verdict:
    """Evaluate with a deadline; no answer is a verdict too. Without an owner names are not compared."""
    problem = admission.problem()
    if problem:
        return Verdict(admission.cluster, "Worker", problem)
    try:
        if owner is None and admission.immediate:
            # It reads memory only: a deadline would cost as much as the answer.
            return await admission.evaluate(None, pod_sets)
        async with asyncio.timeout(limit):
            return await admission.evaluate(owner, pod_sets)
    except TimeoutError:
        return Verdict(admission.cluster, "Worker", f"did not answer within {limit:g} s")
    except StatusError as error:
        return Verdict(admission.cluster, "Worker", error.message)
