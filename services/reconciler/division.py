"""How the replicas of a Deployment's ReplicaSets are split over the placed clusters. Pure.

The sums over all ReplicaSets follow the Deployment's placement; a split is changed as little as possible, and
granted only when the placed members can run it without more pods, over all of them, than the host object asks for:
what is taken from one member must have been seen to go before another member gets it.

Clusters that are no longer placed are left by surging: what they run stays, beside all of that, until as much is
available where it belongs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

Grants = dict[str, dict[str, int]]
"""ReplicaSet name -> cluster -> replicas."""


ONE_BY_ONE = 4096


@dataclass(frozen=True, slots=True)
class Part:
    """One ReplicaSet: what the host asks for, what was granted, and what the members were seen to have."""

    name: str
    desired: int
    granted: Mapping[str, int] = field(default_factory=dict)
    used: Mapping[str, int] = field(default_factory=dict)
    """Replicas that a member has or may still make: the larger of its copy's spec and status."""
    available: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a division beside the desired counts."""

    total: int | None = None
    """Most replicas over all parts: the placed ones and the rollout's surge. None: no bound."""
    budget: int = 1
    """Most replicas that may be short because of moves between placed clusters."""
    gone: Collection[str] = ()
    """Clusters whose copies no longer count: lost, or holding a foreign object of that name."""
    settle: bool = False
    """The placement does not know the current size yet: only what must go is taken, nothing is moved."""
    surge: bool = True
    """False: what leaves a cluster is seen to go before it comes elsewhere."""
    overdue: Collection[str] = ()
    """Clusters that were to be left long ago: nothing keeps replicas there any more."""


class _Division:
    def __init__(self, parts: Sequence[Part], shares: Mapping[str, int], limits: Limits) -> None:
        self.parts = parts
        self.shares = {cluster: share for cluster, share in shares.items() if cluster not in limits.gone}
        self.limits = limits
        self.grants: Grants = {
            part.name: {c: n for c, n in part.granted.items() if n > 0 and c not in limits.gone} for part in parts
        }
        self.weight = sum(self.shares.values())
        # Not `desired`: what cannot be granted must not pull the targets apart.
        self.size = sum(part.desired for part in parts)
        self.seen = {
            part.name: {c: n for c, n in part.used.items() if c not in limits.gone} for part in parts
        }

    def running(self, part: Part) -> int:
        """Replicas if all that was granted, and all that was seen, runs; without those that a surge replaces."""
        grant, seen = self.grants[part.name], self.seen[part.name]
        counted = (c for c in grant.keys() | seen.keys() if c in self.shares or not self.limits.surge)
        return sum(max(grant.get(c, 0), seen.get(c, 0)) for c in counted)

    def staying(self, part: Part) -> dict[str, int]:
        """What the part has where it is placed."""
        return {c: n for c, n in self.grants[part.name].items() if c in self.shares}

    def sum(self, cluster: str) -> int:
        return sum(grant.get(cluster, 0) for grant in self.grants.values())

    def above(self, cluster: str) -> Fraction:
        """How far the cluster is above its share (negative: below)."""
        if not self.weight:
            return Fraction(self.sum(cluster))
        return self.sum(cluster) - Fraction(self.shares.get(cluster, 0) * self.size, self.weight)

    def unavailable(self, part: Part, cluster: str) -> int:
        return max(0, self.grants[part.name].get(cluster, 0) - part.available.get(cluster, 0))

    def take(self, part: Part, cluster: str, number: int = 1) -> None:
        left = self.grants[part.name][cluster] - number
        if left:
            self.grants[part.name][cluster] = left
        else:
            del self.grants[part.name][cluster]

    def shrink(self) -> None:
        """Take what the host object no longer asks for."""
        for part in self.parts:
            grant = self.grants[part.name]
            surplus = sum(self.staying(part).values()) - part.desired
            while surplus > 0:
                # Pods that are not available go first, as Kubernetes' own controller does: a Deployment
                # counts on it when it removes the unhealthy pods of an old ReplicaSet.
                cluster = max(self.staying(part), key=lambda c, p=part, g=grant: (  # type: ignore[misc]
                    self.unavailable(p, c) > 0, self.above(c), g[c], c))
                number = min(_at_once(surplus, len(grant)), self.unavailable(part, cluster) or grant[cluster])
                self.take(part, cluster, number)
                surplus -= number

    def release(self) -> None:
        """Of what is where it does not belong keep only what is available, and still missing elsewhere."""
        for part in self.parts:
            grant = self.grants[part.name]
            here = {c: min(n, part.available.get(c, 0)) for c, n in grant.items()}
            missing = part.desired - sum(n for c, n in here.items() if c in self.shares)
            for cluster in sorted(grant.keys() - self.shares.keys()):
                keeps = self.limits.surge and cluster not in self.limits.overdue
                kept = min(here[cluster], max(0, missing)) if keeps else 0
                missing -= kept
                if kept:
                    grant[cluster] = kept
                else:
                    del grant[cluster]

    def leave(self) -> None:
        """Without a placement nothing may run."""
        if not self.shares:
            for grant in self.grants.values():
                grant.clear()

    def move(self) -> None:
        """Even out placed clusters that are off their shares; `grow` gives what was taken once it was seen to go."""
        budget = self.limits.budget - sum(self.short(part) for part in self.parts)
        for part in self.parts:
            for cluster in sorted(self.staying(part)):
                if not self.misplaced(cluster):
                    continue
                off = min(int(self.above(cluster)), self.grants[part.name][cluster])
                idle = min(off, self.unavailable(part, cluster))
                paid = min(off - idle, max(0, budget))
                budget -= paid
                if idle + paid:
                    self.take(part, cluster, idle + paid)

    def short(self, part: Part) -> int:
        """Replicas of the part that are not available anywhere."""
        have = sum(min(n, part.available.get(c, 0)) for c, n in self.grants[part.name].items())
        return max(0, part.desired - have)

    def misplaced(self, cluster: str) -> bool:
        if self.limits.settle or self.above(cluster) < 1:
            return False
        return any(self.above(other) <= -1 for other in self.shares)

    def grow(self) -> None:
        """Give what is missing, to the cluster furthest below its share, as far as there is room.

        Neither the part nor all parts together may run more than the host asks for, even if all that was seen
        still runs: a rollout's new pods wait until its old ones were seen to go, also over clusters. Only what
        a surge replaces runs beside that.
        """
        total = sum(sum(self.staying(part).values()) for part in self.parts)
        everything = sum(self.running(part) for part in self.parts)
        open_ = [cluster for cluster, share in self.shares.items() if share > 0]
        for part in self.parts:
            grant, seen = self.grants[part.name], self.seen[part.name]
            mine, granted = self.running(part), sum(self.staying(part).values())
            while granted < part.desired and open_:
                if self.limits.total is not None and total >= self.limits.total:
                    return
                cluster = min(open_, key=lambda c, g=grant: (self.above(c), g.get(c, 0), c))  # type: ignore[misc]
                number = _at_once(part.desired - granted, len(open_))
                if self.limits.total is not None:
                    number = min(number, self.limits.total - total)
                # Free where pods of an earlier, larger grant were seen: they are simply kept.
                free = seen.get(cluster, 0) - grant.get(cluster, 0)
                room = free if free > 0 else min(part.desired - mine, self.size - everything)
                if room <= 0:
                    break
                number = min(number, room)
                cost = 0 if free > 0 else number
                grant[cluster] = grant.get(cluster, 0) + number
                granted, total, mine, everything = granted + number, total + number, mine + cost, everything + cost


def _at_once(left: int, clusters: int) -> int:
    """Of so many replicas that are left to give or take: how many in one step.

    Only the last thousands one by one: they even out what larger steps left uneven. A billion (a mistyped `kubectl
    scale`) one by one would stop everything else for hours.
    """
    return max(1, (left - ONE_BY_ONE) // (4 * clusters))


def duplicate(parts: Sequence[Part], shares: Mapping[str, int], limits: Limits | None = None) -> Grants:
    """Return what every placed cluster runs when each runs all replicas: a division over that cluster alone."""
    grants: Grants = {part.name: {} for part in parts}
    for cluster, share in shares.items():
        alone = [
            Part(
                part.name, part.desired, _only(part.granted, cluster), _only(part.used, cluster),
                _only(part.available, cluster),
            )
            for part in parts
        ]  # fmt: skip
        for name, split in divide(alone, {cluster: share}, limits).items():
            grants[name].update(split)
    return grants


def _only(counts: Mapping[str, int], cluster: str) -> dict[str, int]:
    return {cluster: counts[cluster]} if cluster in counts else {}


def divide(parts: Sequence[Part], shares: Mapping[str, int], limits: Limits | None = None) -> Grants:
    """Return the new split of every part, without zeros.

    `parts` come in the order in which missing replicas are given (newest ReplicaSet first). `shares` is the
    placement: cluster -> replicas of the whole Deployment. The sum of a part over the placed clusters never exceeds
    what it asks for.
    """
    division = _Division(parts, shares, limits or Limits())
    division.leave()
    division.shrink()
    division.move()
    division.release()
    division.grow()
    return division.grants
