"""Who is asked, and who is left out: the part that lists and watches have in common."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from services.aggregator.clock.view import Snapshot
from services.aggregator.reads.access import MemberAccess
from services.aggregator.reads.fields import UID_FIELDS
from services.aggregator.reads.query import ReadOptions
from services.aggregator.reads.selectors import FieldSelector, FieldTerm
from services.aggregator.reads.versions import ServedVersions
from services.aggregator.types import HOST, Aggregated, Call
from services.common.errors import StatusError, unavailable

if TYPE_CHECKING:
    from services.aggregator.clock.clock import ResourceClock
    from services.aggregator.clock.clocks import ResourceClocks
    from services.aggregator.owners import Owners

log = logging.getLogger(__name__)

MOST_WARNINGS = 32
"""Members that an answer names one by one."""


@dataclass(slots=True)
class LeftOut:
    """Members that an answer lacks, with the reason for the `Warning` header."""

    away: dict[str, str] = field(default_factory=dict)
    """Could not be asked: a gap brings their objects back."""
    denied: dict[str, str] = field(default_factory=dict)
    """Do not let this user see them."""

    def warnings(self) -> list[str]:
        """One text per member; when a whole fleet is away, of the first few, and how many more: clients refuse answers
        with hundreds of headers. Reasons often name the member themselves, which would be read twice."""
        reasons = [*sorted(self.away.items()), *sorted(self.denied.items())]
        texts = [
            f"cluster {name} is left out: {reason.removeprefix(f'cluster {name}: ')}"
            for name, reason in reasons[:MOST_WARNINGS]
        ]
        if len(reasons) > MOST_WARNINGS:
            texts.append(f"{len(reasons) - MOST_WARNINGS} more clusters are left out")
        return texts


class Scope:
    """The members that one aggregated resource is read from."""

    def __init__(self, clock: ResourceClocks, owners: Owners, access: MemberAccess) -> None:
        self._clock, self._owners, self.access = clock, owners, access
        self._versions = ServedVersions()

    def resource(self, aggregated: Aggregated) -> ResourceClock:
        """Its clock; 503 while it is being set up."""
        found = self._clock.get(aggregated.group, aggregated.resource)
        if found is None:
            raise unavailable(f"{aggregated.key}: its version clock is not running yet")
        return found

    def serves(self, clock: ResourceClock, aggregated: Aggregated) -> bool:
        """Is a resource still read as it was when a watch of it began?"""
        now = self._clock.get(aggregated.group, aggregated.resource)
        return now is clock and clock.aggregated.authorization == aggregated.authorization

    def asked(self, clock: ResourceClock, snapshot: Snapshot, left: LeftOut) -> list[str]:
        """Clusters of the snapshot that can be asked; those that cannot go to `left.away`."""
        out = []
        for cluster in snapshot.members:
            member = clock.members.get(cluster)
            if member is None:
                left.away[cluster] = "it has left the fleet"
            elif member.state != "NoType":
                out.append(cluster)
        for cluster in snapshot.left_out:
            member = clock.members.get(cluster)
            left.away[cluster] = (member.message if member else "") or "it is not reachable"
        return out

    async def lacking(
        self, call: Call, aggregated: Aggregated, clock: ResourceClock, clusters: list[str]
    ) -> Mapping[str, str]:
        """Clusters that have the type, but not in the version that is asked for; and what to tell of each."""
        return await self._versions.lacking(clock, aggregated, call.info.version, clusters)

    def node_scope(self, aggregated: Aggregated, options: ReadOptions, clusters: list[str]) -> list[str]:
        """`spec.nodeName=` selects pods of the shown node's cluster only: node names of members may clash."""
        name = options.fields.exact("spec.nodeName") if aggregated.key == "pods" else None
        nodes = self._clock.get("", "nodes") if name else None
        if not name or nodes is None or not nodes.is_clash("", name):
            return clusters
        shown = nodes.shown("", name)
        return [c for c in clusters if shown is not None and c == shown.cluster]

    def field_selectors(self, options: ReadOptions, clusters: list[str]) -> dict[str, str]:
        """Field selectors per cluster, where a uid in them is another one on the member."""
        terms = options.fields.terms
        if not any(term.field in UID_FIELDS for term in terms):
            return {}
        return {
            cluster: FieldSelector(tuple(
                FieldTerm(t.field, self._owners.member_uid(cluster, t.value), t.equal)
                if t.field in UID_FIELDS else t
                for t in terms
            )).text
            for cluster in clusters
        }  # fmt: skip

    async def permitted(
        self, call: Call, aggregated: Aggregated, clock: ResourceClock, clusters: list[str], left: LeftOut,
        verb: str,
    ) -> list[str]:  # fmt: skip
        """The clusters that let the caller `verb`; the others go to `left`."""
        if aggregated.authorization != "Member":
            return clusters

        async def ask(cluster: str) -> bool:
            try:
                client = clock.members[cluster].client
                if await self.access.allowed(call, aggregated, cluster, client, verb):
                    return True
                left.denied[cluster] = f"it does not let {call.user.name} {verb} {aggregated.key}"
            except (StatusError, KeyError) as error:
                left.away[cluster] = error.message if isinstance(error, StatusError) else "it has left the fleet"
            return False

        verdicts = await asyncio.gather(*(ask(cluster) for cluster in clusters))
        return [cluster for cluster, yes in zip(clusters, verdicts, strict=True) if yes]

    async def close_gaps(self, aggregated: Aggregated, clock: ResourceClock, left: LeftOut) -> None:
        """Note in etcd that members are missing from an answer, before it is given.

        503 under `unreachable: Fail`.
        """
        if not left.away:
            return
        if aggregated.unreachable == "Fail":
            raise unavailable(f"{aggregated.key}: " + "; ".join(LeftOut(left.away).warnings()))
        await asyncio.gather(*(clock.open_gap(cluster) for cluster in left.away))
        log.info("%s: answered without %s", aggregated.key, ", ".join(n or HOST or "host" for n in left.away))
