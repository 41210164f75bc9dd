"""How far ReplicaSets have left the clusters on which they are placed no more, and what the Workload says of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from services.common.kube.times import parse_time
from services.reconciler.division import Grants, Limits, Part
from services.reconciler.objects import set_condition

MOVING = "Moving"
"""Condition of a Workload: True while replicas stay on a cluster until others are available elsewhere."""
SURGING, MOVED, TIMED_OUT = "Surging", "Moved", "SurgeTimedOut"


@dataclass(frozen=True, slots=True)
class Surge:
    """`waits`: cluster -> replicas that still stay there. `forced`: what was taken although it was still needed."""

    waits: Mapping[str, int]
    forced: Mapping[str, int]
    short: int = 0

    @property
    def message(self) -> str:
        """For people."""
        if self.forced:
            left = ", ".join(sorted(self.forced))
            return f"left {left} all the same, as {self.short} replicas did not become available elsewhere in time"
        return f"stays on {', '.join(sorted(self.waits))} until as many replicas are available elsewhere"


def left(workload: Mapping[str, Any] | None) -> set[str]:
    """Clusters that are being left."""
    return {item["cluster"] for item in ((workload or {}).get("status") or {}).get("moving") or []}


def moving(workload: Mapping[str, Any] | None, limit: float, now: datetime) -> set[str]:
    """Clusters that are being left, and not for longer than `limit` seconds."""
    clusters = left(workload)
    return clusters - overdue(workload or {}, clusters, limit, now)


def overdue(workload: Mapping[str, Any], clusters: Iterable[str], limit: float, now: datetime) -> set[str]:
    """Clusters that were to be left more than `limit` seconds ago."""
    status = workload.get("status") or {}
    placed = (status.get("placement") or {}).get("since")
    since = {item["cluster"]: item.get("since") for item in status.get("moving") or []}
    found = set()
    for cluster in clusters:
        start = parse_time(since.get(cluster) or placed)
        if start is not None and (now - start).total_seconds() >= limit:
            found.add(cluster)
    return found


def look(parts: Sequence[Part], grants: Grants, shares: Mapping[str, int], limits: Limits) -> Surge:
    """Compare a new division with the one before."""
    waits: dict[str, int] = {}
    forced: dict[str, int] = {}
    short = 0
    for part in parts:
        ready = sum(min(n, part.available.get(c, 0)) for c, n in grants[part.name].items())
        for cluster, number in grants[part.name].items():
            if cluster not in shares:
                waits[cluster] = waits.get(cluster, 0) + number
        taken = {c: min(n, part.available.get(c, 0)) for c, n in part.granted.items() if c not in grants[part.name]}
        late = {c: n for c, n in taken.items() if n and c in limits.overdue and c not in limits.gone}
        if shares and late and ready < part.desired:
            short += part.desired - ready
            forced.update(late)
    return Surge(waits, forced, short)


def conditions(before: list[dict[str, Any]], surge: Surge) -> list[dict[str, Any]]:
    """The Workload's conditions with Moving as it is now; that a surge timed out stays until the next one."""
    old = next((item for item in before if item.get("type") == MOVING), None)
    if surge.forced:
        return set_condition(before, MOVING, "False", TIMED_OUT, surge.message)
    if surge.waits:
        return set_condition(before, MOVING, "True", SURGING, surge.message)
    if old is not None and old.get("status") == "True":
        return set_condition(before, MOVING, "False", MOVED, "nothing is left on clusters where it is not placed")
    return before
