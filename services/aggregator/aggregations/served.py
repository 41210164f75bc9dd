"""Asks clusters which of them serve a type, and with which kind and scope."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from services.common.errors import StatusError
from services.common.kube.client import KubeClient

ASK_TIMEOUT = 5.0


@dataclass(slots=True)
class Served:
    """Who serves a type. `kind` is "" while nobody is known to."""

    kind: str = ""
    namespaced: bool = True
    clusters: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)  # did not answer


async def find_served(clients: dict[str, KubeClient], group: str, version: str, resource: str) -> Served:
    """Ask every cluster at once; one that does not answer in time counts as unknown, not as without it."""
    names = sorted(clients)
    answers = await asyncio.gather(*(_ask(clients[name], group, version, resource) for name in names))
    served = Served()
    for name, answer in zip(names, answers, strict=True):
        if answer is None:
            served.unknown.append(name)
        elif answer[0]:
            served.clusters.append(name)
            if not served.kind:
                served.kind, served.namespaced = answer
    return served


async def _ask(client: KubeClient, group: str, version: str, resource: str) -> tuple[str, bool] | None:
    path = f"/apis/{group}/{version}" if group else f"/api/{version}"
    try:
        answer = await client.request(
            "GET", path, headers={"Accept": "application/json"}, timeout=ASK_TIMEOUT
        )
        document = answer.json()
    except StatusError as error:
        return ("", True) if error.code == 404 else None
    if not isinstance(document, dict) or document.get("kind") != "APIResourceList":
        return None
    for entry in document.get("resources") or []:
        if entry.get("name") == resource:
            return entry.get("kind", ""), bool(entry.get("namespaced"))
    return "", True
