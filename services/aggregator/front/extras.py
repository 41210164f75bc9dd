"""Which types are added to the host's: our own, and aggregated ones that only members serve."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from services.aggregator.front import own_types
from services.aggregator.front.discovery import Added, made_up, served
from services.aggregator.types import Aggregated
from services.common.cache import LoadingCache
from services.common.errors import MemberUnreachable, StatusError
from services.common.fleet import FleetWatcher
from services.common.kube.client import KubeClient, Response

if TYPE_CHECKING:
    from services.aggregator.aggregations import Aggregations

log = logging.getLogger(__name__)

HOST_SECONDS = 1.0
MEMBER_SECONDS = 15.0
FAILED_SECONDS = 2.0
MEMBER_TIMEOUT = 5.0
AGGREGATED = (
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,"
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
)

Index = dict[tuple[str, str], dict[str, dict[str, Any]]]


class Extras:
    """Compares what is aggregated with what the host serves. One dead member delays nobody for long, nor fails."""

    def __init__(self, host: KubeClient, fleet: FleetWatcher, aggregations: Aggregations) -> None:
        self._host = host
        self._fleet = fleet
        self._aggregations = aggregations
        self._indexes: LoadingCache[str, Index] = LoadingCache(limit=2000)
        self._documents: LoadingCache[tuple[str, str, str], Response] = LoadingCache(limit=64)
        self._failed: LoadingCache[str, bool] = LoadingCache(limit=2000)
        self._last_host_index: Index | None = None

    async def added(self) -> list[Added]:
        """The types to add."""
        found = [Added(own_types.GROUP, own_types.VERSION, own_types.ENTRY)]
        aggregated = self._aggregations.all()
        index = await self._host_index()
        missing = [one for one in aggregated if (one.group, one.resource) not in index]
        for one in missing:
            found += await self._of(one)
        return found

    async def serves(self, one: Aggregated, group: str, version: str) -> bool:
        """Whether the host or a member serves the type in `version` of `group`.

        The aggregation's own version is (what nobody has counts as empty), and so is any while nobody can be asked.
        """
        if (group, version) == (one.group, one.version):
            return True
        versions: dict[str, Any] = {}
        try:
            versions = (await self._host_index()).get((group, one.resource), {})
        except StatusError as error:
            log.info("the host cannot say whether it serves %s/%s: %s", group, version, error.message)
        if version in versions:
            return True
        unknown = not versions
        for name in self._aggregations.served_by(one):
            member = self._fleet.members.get(name)
            index = await self._member_index(name, member.client) if member is not None and member.reachable else {}
            if version in index.get((group, one.resource), ()):
                return True
            unknown &= not index
        return unknown

    async def _host_index(self) -> Index:
        try:
            self._last_host_index = await self._indexes.get("", lambda: self._load(self._host, HOST_SECONDS))
        except MemberUnreachable:
            if self._last_host_index is None:
                raise
        return self._last_host_index

    async def _of(self, one: Aggregated) -> list[Added]:
        for name in self._aggregations.served_by(one):
            member = self._fleet.members.get(name)
            if member is None or not member.reachable:
                continue
            index = await self._member_index(name, member.client)
            versions = index.get((one.group, one.resource))
            if versions:
                return [Added(one.group, version, entry, name) for version, entry in versions.items()]
        entry = made_up(one.group, one.version, one.resource, one.kind, one.namespaced)
        return [Added(one.group, one.version, entry)]

    async def _member_index(self, name: str, client: KubeClient) -> Index:
        if self._failed.peek(name):
            return {}
        try:
            return await self._indexes.get(name, lambda: self._load(client, MEMBER_SECONDS))
        except StatusError as error:
            log.info("discovery of %s is left out: %s", name, error.message)
            await self._failed.get(name, _remember)
            return {}

    async def _load(self, client: KubeClient, seconds: float) -> tuple[Index, float]:
        answers = await asyncio.gather(*(
            client.request("GET", path, headers={"Accept": AGGREGATED}, timeout=MEMBER_TIMEOUT) for path in ("/api", "/apis")
        ))  # fmt: skip
        return served(answer.json() for answer in answers), seconds

    async def fetch(self, member: str, path: str, accept: str) -> Response | None:
        """A document of a member, kept for some seconds; None when it cannot be had."""
        known = self._fleet.members.get(member)
        if known is None or self._failed.peek(member):
            return None

        async def load() -> tuple[Response, float]:
            answer = await known.client.request("GET", path, headers={"Accept": accept}, timeout=4 * MEMBER_TIMEOUT)
            return answer, MEMBER_SECONDS

        try:
            return await self._documents.get((member, path, accept), load)
        except StatusError as error:
            log.info("%s of %s is left out: %s", path, member, error.message)
            if error.code >= 500:
                await self._failed.get(member, _remember)
            return None


async def _remember() -> tuple[bool, float]:
    return True, FAILED_SECONDS
