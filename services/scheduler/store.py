"""Workloads as the engine reads and writes them: an informer's copy plus our own writes, compare-and-swap."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from services.common.errors import StatusError, unavailable
from services.common.kube.client import KubeClient
from services.common.kube.informer import Informer
from services.scheduler.workload import WORKLOADS, Key, Workload, parse

log = logging.getLogger(__name__)

Changed = Callable[[Key, bool], None]
"""Told of a key, and whether the change is only the echo of our own write."""


Remaining = Callable[[], float]
"""Seconds for which this process leads for sure."""


def forever() -> float:
    """For those who need no lease."""
    return 3600.0


class StaleError(Exception):
    """The object is no longer the version that the decision was made on."""


class WorkloadStore(Protocol):
    """What the engine needs of the host."""

    def get(self, key: Key) -> Workload | None:
        """Return the newest version known."""

    def __iter__(self) -> Iterator[Workload]:
        """Yield all workloads."""

    async def patch_status(self, workload: Workload, status: Mapping[str, Any]) -> Workload:
        """Merge `status` into the stored object if it still is this version.

        Raises StaleError when it is not (the newer one is then known), StatusError when the host fails.
        """


class HostStore:
    """The host's Workloads. Single-task: the informer's handler and the engine run in one event loop."""

    def __init__(self, client: KubeClient, on_change: Changed, remaining: Remaining) -> None:
        self._client = client
        self._on_change = on_change
        self._remaining = remaining
        self._parsed: dict[Key, Workload] = {}
        self.informer = Informer(client, WORKLOADS, handler=self._event)

    def _event(self, kind: str, obj: dict[str, Any], old: dict[str, Any] | None) -> None:
        key = Key(obj["metadata"].get("namespace") or "", obj["metadata"]["name"])
        if kind == "DELETED":
            self._parsed.pop(key, None)
            self._on_change(key, False)
            return
        known = self._parsed.get(key)
        echo = known is not None and known.version == obj["metadata"].get("resourceVersion")
        if self._take(key, obj):
            self._on_change(key, echo)

    def _take(self, key: Key, obj: dict[str, Any]) -> bool:
        """Keep the newer version; says whether that is `obj`."""
        known = self._parsed.get(key)
        fresh_version = obj["metadata"].get("resourceVersion") or ""
        if known is not None and known.uid == obj["metadata"].get("uid"):
            if _number(fresh_version) < _number(known.version):
                return False
            if fresh_version == known.version:
                return True
        try:
            self._parsed[key] = parse(obj)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.error("workload %s/%s cannot be read: %s", key.namespace, key.name, error)
            return False
        return True

    def get(self, key: Key) -> Workload | None:
        """See WorkloadStore."""
        return self._parsed.get(key)

    def __iter__(self) -> Iterator[Workload]:
        return iter(list(self._parsed.values()))

    def __len__(self) -> int:
        return len(self._parsed)

    async def patch_status(self, workload: Workload, status: Mapping[str, Any]) -> Workload:
        """See WorkloadStore."""
        key = workload.key
        if self._remaining() <= 0:
            raise unavailable("this manager does not lead any more: nothing is written", retry_after=1)
        body = {"metadata": {"resourceVersion": workload.version, "uid": workload.uid}, "status": status}
        try:
            # What is on its way when the lease ends is refused by its precondition, if the next leader has decided.
            stored = await self._client.patch(WORKLOADS, key.namespace, key.name, body, sub="status")
        except StatusError as error:
            if error.code == 409:
                await self._refresh(key)
                raise StaleError(error.message) from error
            if _is_gone(error):
                self._parsed.pop(key, None)
                raise StaleError(error.message) from error
            raise
        self._take(key, stored)
        return self._parsed.get(key) or parse(stored)

    async def _refresh(self, key: Key) -> None:
        """Read what the informer has not told yet."""
        try:
            self._take(key, await self._client.get(WORKLOADS, key.namespace, key.name))
        except StatusError as error:
            if not _is_gone(error):
                raise
            self._parsed.pop(key, None)


def _is_gone(error: StatusError) -> bool:
    """Whether the object is not there; a server that does not know its type (yet) names no object."""
    return error.code == 404 and bool((error.details or {}).get("name"))


def _number(version: str) -> int:
    """Versions of one cluster's objects are comparable numbers (KEP-5504)."""
    return int(version) if version.isdigit() else 0
