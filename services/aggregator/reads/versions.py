"""Members serve a type in versions of their own: which of them have the one that a client asks for.

Only a cluster's own API server can convert its objects. One that has the type in other versions only is left out of an
answer with a Warning; it is in those that are asked for in a version that it has.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from services.aggregator.types import Aggregated
from services.common.errors import StatusError
from services.common.kube.client import KubeClient
from services.common.kube.served import other_version, serves_version

if TYPE_CHECKING:
    from services.aggregator.clock.clock import ResourceClock

KEEP = 30.0  # seconds that what a member said counts
ASK_TIMEOUT = 2.0


class ServedVersions:
    """Asks members' discovery, once in a while for each version."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str, str], tuple[float, bool]] = {}

    async def lacking(
        self, clock: ResourceClock, aggregated: Aggregated, version: str, clusters: list[str]
    ) -> Mapping[str, str]:
        """The clusters that say that they have the type in other versions only, and what to tell of each. One that
        does not answer is not among them."""
        version = version or aggregated.version
        if not aggregated.group:
            return {}  # core has one version
        answers = await asyncio.gather(*(self._lacks(clock, aggregated, version, name) for name in clusters))
        said = f"it does not serve {aggregated.key} in {version}"
        return {name: said for name, lacks in zip(clusters, answers, strict=True) if lacks}

    async def _lacks(self, clock: ResourceClock, aggregated: Aggregated, version: str, cluster: str) -> bool:
        key = (cluster, aggregated.group, version, aggregated.resource)
        known = self._known.get(key)
        now = time.monotonic()
        if known is not None and now - known[0] < KEEP:
            return known[1]
        member = clock.members.get(cluster)
        lacks = member is not None and await self._ask(member.client, aggregated, version)
        self._known[key] = (now, lacks)
        return lacks

    @staticmethod
    async def _ask(client: KubeClient, aggregated: Aggregated, version: str) -> bool:
        try:
            if await serves_version(client, aggregated.at(version), timeout=ASK_TIMEOUT) is not False:
                return False
            # One that has it in no version is empty, and may come to have it: nothing is left out.
            return await other_version(client, aggregated.at(version), timeout=ASK_TIMEOUT) is not None
        except StatusError:
            return False  # the list itself will say what is wrong
