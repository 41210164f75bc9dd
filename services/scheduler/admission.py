"""How the manager asks members: one interface for workers in other processes and members read in-process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from services.common.errors import StatusError
from services.scheduler.clock import Clock
from services.scheduler.ledger import OwnerKey
from services.scheduler.member import Answer, Ask, MemberState, PodSets, Stuck
from services.scheduler.verdict import Verdict

ClashCheck = Callable[[OwnerKey, str], Awaitable[str]]
"""Returns why an object of the owner's kind and name that is foreign to a fleet (its id) is in the way; "" when none is.

Raises StatusError when the member does not tell.
"""

Lift = Callable[[OwnerKey], Awaitable[None]]
"""Lifts the fence around the copy of an owner whose placement is confirmed; StatusError: it has to be tried again."""


async def no_clash(owner: OwnerKey, fleet_id: str) -> str:
    """A clash check for members without an API."""
    return ""


class Weigher:
    """Scores a member against what is asked in O(1): mean free part of cpu, memory and pods afterwards."""

    __slots__ = ("_base", "_inverse", "version")

    def __init__(self) -> None:
        self._base = 0.0
        self._inverse = (0.0, 0.0, 0.0)
        self.version: object = None
        """Of the totals that it was updated from."""

    def update(self, version: object, free: dict[str, int], allocatable: dict[str, int]) -> None:
        """Take the member's totals."""
        self.version = version
        sizes = [allocatable.get(name, 0) for name in ("cpu", "memory", "pods")]
        kinds = sum(1 for size in sizes if size > 0)
        inverse = [100.0 / (size * kinds) if size > 0 else 0.0 for size in sizes]
        self._inverse = (inverse[0], inverse[1], inverse[2])
        self._base = sum(free.get(n, 0) * i for n, i in zip(("cpu", "memory", "pods"), inverse, strict=True))

    def take(self, asked: tuple[int, int, int]) -> None:
        """Count what was just admitted, until the member's next totals come."""
        a, b, c = self._inverse
        self._base -= asked[0] * a + asked[1] * b + asked[2] * c

    def score(self, asked: tuple[int, int, int]) -> float:
        """0 to 100, for amounts of cpu, memory and pods."""
        a, b, c = self._inverse
        found = self._base - asked[0] * a - asked[1] * b - asked[2] * c
        return found if found > 0.0 else 0.0


def totals(pod_sets: PodSets) -> tuple[int, int, int]:
    """Sum cpu, memory and pods over pod sets."""
    cpu = memory = pods = 0
    for shape, count in pod_sets:
        for name, amount in shape.requests:
            if name == "cpu":
                cpu += amount * count
            elif name == "memory":
                memory += amount * count
            elif name == "pods":
                pods += amount * count
    return cpu, memory, pods


class Admission(Protocol):
    """One member's worker. Calls raise StatusError when it does not answer; the caller sets deadlines."""

    cluster: str
    immediate: bool
    """True: it answers from this process, so asking many of them at once would only cost."""

    def problem(self) -> str:
        """Why nothing can be asked now; "" when it can."""

    def silent(self) -> bool:
        """Whether it was heard of before, and cannot be asked now."""

    def score(self, asked: tuple[int, int, int]) -> float:
        """Score the member by the last known totals. O(1)."""

    def stuck(self) -> Mapping[str, Stuck]:
        """Pods of reservations that find no node there, by workload uid."""

    async def reserve(self, ask: Ask, ttl: float | None = None) -> Answer:
        """Hold room for `ttl` seconds, the configured time by default."""

    async def confirm(self, id_: str, attempt: int) -> bool:
        """Keep it; False when it is not held."""

    async def release(self, id_: str, attempt: int) -> None:
        """Give it back; what is not held is no error."""

    async def evaluate(self, owner: OwnerKey | None, pod_sets: PodSets) -> Verdict:
        """Run the filters without holding anything; without an owner no clash of names is looked for."""

    async def resync(self, asks: Sequence[Ask]) -> None:
        """Tell everything that is placed there."""


class LocalAdmission:
    """Admission over a `MemberState` of this process; also what the worker's gRPC service serves.

    `settle` seconds long after its start it takes no new reservation unless it was resynced: the manager may
    still confirm what an earlier process held.
    """

    immediate = True

    def __init__(
        self, state: MemberState, clock: Clock, *, ttl: float, clash: ClashCheck = no_clash,
        problem: Callable[[], str] = lambda: "", settle: float = 0.0, lift: Lift | None = None,
    ) -> None:  # fmt: skip
        self.cluster = state.cluster
        self.state = state
        self._clock, self._ttl, self._clash, self._problem = clock, ttl, clash, problem
        self._settled = clock.monotonic() + settle
        self._lift = lift
        self._weigher = Weigher()

    def problem(self) -> str:
        """See Admission."""
        return self._problem()

    def silent(self) -> bool:
        """See Admission."""
        return bool(self._problem())

    def score(self, asked: tuple[int, int, int]) -> float:
        """See Admission."""
        capacity, weigher = self.state.capacity, self._weigher
        if weigher.version != capacity.version:
            weigher.update(capacity.version, capacity.free, capacity.allocatable)
        return weigher.score(asked)

    def stuck(self) -> Mapping[str, Stuck]:
        """See Admission."""
        return self.state.stuck()

    async def reserve(self, ask: Ask, ttl: float | None = None) -> Answer:
        """See Admission."""
        if not ask.placed:
            refused = await self._refuses(ask.owner, ask.fleet_id)
            if refused is not None:
                return Answer(False, refused)
        elif ask.at_most_once and self._lift is not None:
            await self._lift(ask.owner)
        # No await from here on: checking and holding are one step.
        return self.state.reserve(ask, self._clock.monotonic(), ttl or self._ttl)

    async def _refuses(self, owner: OwnerKey, fleet_id: str) -> Verdict | None:
        problem = self._problem()
        if not problem and self._clock.monotonic() < self._settled:
            problem = "it has just started and waits until earlier reservations have ended"
        if problem:
            return Verdict(self.cluster, "Worker", problem)
        try:
            clash = await self._clash(owner, fleet_id)
        except StatusError as error:
            return Verdict(self.cluster, "Reachable", error.message)
        return Verdict(self.cluster, "NameClash", clash) if clash else None

    async def confirm(self, id_: str, attempt: int) -> bool:
        """See Admission."""
        return self.state.confirm(id_, attempt)

    async def release(self, id_: str, attempt: int) -> None:
        """See Admission."""
        self.state.release(id_, attempt)

    async def evaluate(self, owner: OwnerKey | None, pod_sets: PodSets, fleet_id: str = "") -> Verdict:
        """See Admission."""
        problem = self._problem()
        if problem:
            return Verdict(self.cluster, "Worker", problem)
        try:
            clash = await self._clash(owner, fleet_id) if owner is not None else ""
        except StatusError as error:
            return Verdict(self.cluster, "Reachable", error.message)
        if clash:
            return Verdict(self.cluster, "NameClash", clash)
        return self.state.evaluate(pod_sets)

    async def resync(self, asks: Sequence[Ask]) -> None:
        """See Admission."""
        self.state.resync(asks)
        self._settled = 0.0
