"""Whether the clusters have what a registration names; asked before it is taken."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from services.common.cache import LoadingCache
from services.common.errors import StatusError
from services.common.kube.client import KubeClient
from services.reconciler.work.mapping import HOST
from services.reconciler.work.spec import SourceSpec, takes_host, takes_members

TIMEOUT = 3.0
"""Seconds that one cluster has to answer; one that does not keeps nobody from registering."""
KNOWN_SECONDS = 15.0
NAMED = 10
"""Clusters that a message names."""


@dataclass(slots=True)
class Found:
    """What is wrong (field, text), and what is only worth knowing."""

    violations: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class Probe:
    """Asks clusters for their resources; answers are kept for some seconds."""

    def __init__(self) -> None:
        self._types: LoadingCache[tuple[str, str, str], dict[str, dict[str, Any]]] = LoadingCache()

    async def check(self, sources: Iterable[SourceSpec], clusters: dict[str, KubeClient]) -> Found:
        """Look at all sources in all clusters at once; `clusters` are those that can be reached."""
        found = Found()
        checks = [
            self._source(found, place, source, clusters) for place, source in enumerate(sources)
            if not (source.is_fleet or source.is_channel)
        ]
        await asyncio.gather(*checks)
        return found

    async def _source(self, found: Found, place: int, source: SourceSpec, clusters: dict[str, KubeClient]) -> None:
        path = f"sources[{place}]"
        asked = {
            name: client for name, client in clusters.items()
            if (takes_host(source.scope) if name == HOST else takes_members(source.scope))
        }  # fmt: skip
        answers = await asyncio.gather(*(self._kind(name, client, source) for name, client in asked.items()))
        by_cluster = dict(zip(asked, answers, strict=True))
        lacking = sorted(name or "the host" for name, kind in by_cluster.items() if kind == {})
        having = {name: kind for name, kind in by_cluster.items() if kind}
        what = f"{source.resource.group_version} {source.resource.resource}"
        if lacking and not having and not source.optional:
            found.violations.append((f"{path}.resource", f"{what}: not served by {_named(lacking)}"))
        elif lacking:
            found.warnings.append(f"{what} is not served by {_named(lacking)}")
        if not having:
            return
        name, kind = next(iter(having.items()))
        if source.namespaces and not kind.get("namespaced"):
            found.violations.append((f"{path}.namespaces", f"{what} is cluster-scoped"))
        elif not {"list", "watch"} <= set(kind.get("verbs") or ()):
            found.violations.append((f"{path}.resource", f"{what} cannot be watched"))
        elif source.field_selector or source.label_selector:
            await self._selectors(found, path, source, asked[name])

    async def _kind(self, name: str, client: KubeClient, source: SourceSpec) -> dict[str, Any] | None:
        """The resource's entry in the cluster's discovery document; {} when it has none, None when nobody knows."""
        resource = source.resource
        path = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"

        async def load() -> tuple[dict[str, dict[str, Any]], float]:
            try:
                body = (await client.request("GET", path, timeout=TIMEOUT)).json()
            except StatusError as error:
                if error.code != 404:
                    raise
                return {}, KNOWN_SECONDS / 5
            return {each["name"]: each for each in body.get("resources") or ()}, KNOWN_SECONDS

        try:
            types = await self._types.get((name, client.server, path), load)
        except StatusError:
            return None
        return types.get(resource.resource, {})

    async def _selectors(self, found: Found, path: str, source: SourceSpec, client: KubeClient) -> None:
        """The API server judges selectors: which fields there are is its to say."""
        query = {
            "limit": 1, "labelSelector": source.label_selector or None, "fieldSelector": source.field_selector or None,
        }  # fmt: skip
        try:
            await client.request("GET", source.resource.path(), query=query, timeout=TIMEOUT)
        except StatusError as error:
            if error.code == 400:
                wrong = "field_selector" if source.field_selector else "label_selector"
                found.violations.append((f"{path}.{wrong}", error.message))


def _named(clusters: list[str]) -> str:
    more = len(clusters) - NAMED
    return ", ".join(clusters[:NAMED]) + (f" and {more} more" if more > 0 else "")
