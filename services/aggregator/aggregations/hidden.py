"""Objects of the host that an aggregation hides: without `includeHost` a type shows its members' objects only."""

from __future__ import annotations

import logging
from typing import Any

from services.aggregator.types import Aggregated
from services.common.errors import StatusError
from services.common.kube.client import KubeClient

log = logging.getLogger(__name__)

HOST_SHOWN = "HostObjectsShown"
"""Condition: False while the host has objects of the type that nobody sees through the front."""
ASK_TIMEOUT = 5.0
_METADATA = {"Accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"}


async def host_shown(host: KubeClient, one: Aggregated) -> tuple[str, str, str] | None:
    """(status, reason, message) of the condition; None while the host does not say what it has."""
    if one.include_host:
        return "True", "Included", "the host's objects are shown too"
    try:
        # One object and the number of the others: etcd counts, nothing is read.
        answer = await host.request(
            "GET", one.at().path(None), query={"limit": 1}, headers=_METADATA, timeout=ASK_TIMEOUT
        )
        count = _count(answer.json())
    except StatusError as error:
        if error.code != 404:
            log.info("the host does not say whether it has %s: %s", one.key, error.message)
            return None
        count = 0
    if not count:
        return "True", "NoneThere", "the host has no objects of the type"
    return (
        "False",
        "Hidden",
        f"{count} {one.resource} of the host are not shown; set includeHost: true to show them beside the members'",
    )


def is_custom(group: str) -> bool:
    """Whether a group is none of Kubernetes' own: those have no dot, or end in k8s.io."""
    return "." in group and not group.endswith(".k8s.io")


def _count(found: Any) -> int:
    """Objects in all, by a list of the first of them."""
    if not isinstance(found, dict):
        return 0
    return len(found.get("items") or ()) + int((found.get("metadata") or {}).get("remainingItemCount") or 0)
