"""`Cluster` objects on the host: what operators set is read, what discovery knows is written.

Labels, annotations and spec.taints are the operator's; discovery's labels are applied without force, so that an
operator's value of the same key stays. Status is discovery's and is written only when it changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from services.common.errors import StatusError
from services.common.kube.client import APPLY_PATCH, KubeClient
from services.common.kube.informer import Informer
from services.common.kube.resource import CLUSTERS
from services.common.tasks import Backoff
from services.discovery.record import (
    API_VERSION,
    CONFIGURED,
    REACHABLE,
    READY,
    Operator,
    Record,
    from_object,
    now,
    operator_part,
    to_status,
)  # fmt: skip
from services.discovery.registry import Registry

log = logging.getLogger(__name__)

MANAGER = "reclock-discovery"
PARALLEL = 8
LEFT_BEHIND = "left behind there"
LATENCY_PERIOD = 30.0
"""Seconds between writes that only bring a latency up to date."""


class ClusterObjects:
    """A keeper. `run_informer` reads, `run_writer` writes; both retry while the host is away."""

    def __init__(self, client: KubeClient, registry: Registry) -> None:
        self._client = client
        self._registry = registry
        self.informer = Informer(client, CLUSTERS, handler=self._seen)
        self._dirty: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._labels: dict[str, Mapping[str, str]] = {}
        """Cluster -> provider's labels as last applied."""
        self._written: dict[str, float] = {}
        self._left_behind: dict[str, str] = {}
        self.last_error = ""

    # Keeper.

    def engaged(self, record: Record) -> None:
        """Give it what its object says before anybody sees it: a cordoned cluster must not look open."""
        self._left_behind.pop(record.name, None)
        obj = self.informer.get(record.name)
        if obj is not None:
            record.operator = operator_part(obj, record.provider_labels)

    def waits(self, record: Record) -> None:
        """Its change is told, too."""

    def changed(self, record: Record) -> None:
        """Write its object soon."""
        self._mark(record.name)

    def disengaged(self, record: Record) -> None:
        """Remove its object, or say in it that the cluster left."""
        self._labels.setdefault(record.name, dict(record.provider_labels))
        if record.left_behind:
            self._left_behind[record.name] = record.left_behind
        self._mark(record.name)

    def _mark(self, name: str) -> None:
        self._dirty[name] = None
        self._wake.set()

    # Reading.

    def _seen(self, kind: str, obj: dict[str, Any], old: dict[str, Any] | None) -> None:
        name = obj["metadata"]["name"]
        record = self._registry.records.get(name)
        if kind == "DELETED":
            self._registry.operated(name, Operator())
            self._mark(name)
            return
        if old is None and (kept := from_object(obj)) is not None:
            self._registry.restore(kept)
            record = self._registry.records.get(name)
        if record is not None:
            self._registry.operated(name, operator_part(obj, record.provider_labels))
        self._mark(name)

    # Writing.

    async def run_writer(self) -> None:
        """Write what is due, a few at a time, once the objects on the host are known."""
        await self.informer.synced.wait()
        backoff = Backoff(initial=0.5, maximum=30.0)
        while True:
            await self._wake.wait()
            self._wake.clear()
            names, self._dirty = list(self._dirty), {}
            failed = await self._write_all(names)
            if not failed:
                backoff.reset()
                self.last_error = ""
                continue
            self._dirty = dict.fromkeys([*failed, *self._dirty])
            await backoff.wait()
            self._wake.set()

    async def _write_all(self, names: list[str]) -> list[str]:
        """Write the objects of `names`; return those that failed."""
        limit = asyncio.Semaphore(PARALLEL)

        async def write(name: str) -> str | None:
            async with limit:
                try:
                    await self._write(name)
                except StatusError as error:
                    if error.message != self.last_error:
                        log.warning("Cluster object %s cannot be written: %s", name, error.message)
                    self.last_error = error.message
                    return name
                return None

        results = await asyncio.gather(*(write(name) for name in names))
        return [name for name in results if name is not None]

    async def _write(self, name: str) -> None:
        record = self._registry.records.get(name)
        obj = self.informer.get(name)
        if record is None:
            if obj is None:
                self._labels.pop(name, None)
                self._left_behind.pop(name, None)
                self._written.pop(name, None)
            elif self._registry.hub.complete.is_set():
                await self._left(name, obj)
            return
        if record.found is None and record.leaving_since is None:
            return
        labels = record.provider_labels
        if record.found is not None and (obj is None or self._labels.get(name, {} if obj else None) != labels):
            await self._apply_labels(name, labels)
            self._labels[name] = dict(labels)
        status = to_status(record)
        if obj is None or differs(obj.get("status") or {}, status) or self._latency_due(name, obj, status):
            await self._apply_status(name, status)
            self._written[name] = asyncio.get_running_loop().time()

    def _latency_due(self, name: str, obj: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
        """Whether latencies alone are worth a write: they changed, and the last write is a while ago."""
        old = obj.get("status") or {}
        age = asyncio.get_running_loop().time() - self._written.get(name, 0.0)
        changed = any(old.get(key) != status.get(key) for key in ("latency", "latencies"))
        return changed and age > LATENCY_PERIOD

    async def _apply_labels(self, name: str, labels: Mapping[str, str]) -> None:
        """Create the object or bring our labels up to date; keys that the operator holds are left to them."""
        mine = dict(labels)
        while True:
            body: dict[str, Any] = {
                "apiVersion": API_VERSION, "kind": "Cluster", "metadata": {"name": name, "labels": mine},
            }  # fmt: skip
            try:
                await self._client.apply(CLUSTERS, None, name, body, field_manager=MANAGER, force=False)
                return
            except StatusError as error:
                held = conflicting_labels(error) & set(mine)
                if error.code != 409 or not held:
                    raise
                mine = {key: value for key, value in mine.items() if key not in held}

    async def _apply_status(self, name: str, status: Mapping[str, Any]) -> None:
        body = {"apiVersion": API_VERSION, "kind": "Cluster", "metadata": {"name": name}, "status": status}
        await self._client.patch(
            CLUSTERS, None, name, body, APPLY_PATCH, sub="status", fieldManager=MANAGER, force=True
        )

    async def _left(self, name: str, obj: Mapping[str, Any]) -> None:
        """The cluster left: nothing of the operator's in its object means that it may go."""
        if not (obj.get("status") or {}).get("provider"):
            return
        labels = self._labels.get(name, {})
        self._written.pop(name, None)
        left = self._left_behind.get(name, "")
        if not left and operator_part(obj, labels).empty and not already_left(obj):
            try:
                await self._client.delete(CLUSTERS, None, name, uid=obj["metadata"]["uid"])
            except StatusError as error:
                if error.code not in (404, 409):
                    raise
            self._labels.pop(name, None)
            return
        record = from_object(obj)
        if record is None or record.conditions.get(CONFIGURED, None) is None:
            return
        if record.conditions[CONFIGURED].reason == "Removed":
            return
        message = "no provider has it any more; its labels and taints are kept for its return"
        if left:
            message = f"{LEFT_BEHIND}: {left}. Delete this object when that is seen to"
        record.held, record.leaving_since = False, None
        record.set_condition(CONFIGURED, "False", "Removed", message)
        for kind in (REACHABLE, READY):
            record.set_condition(kind, "Unknown", "Removed", "")
        record.unreachable_since = record.unreachable_since or now()
        await self._apply_status(name, to_status(record))
        self._left_behind.pop(name, None)


def already_left(obj: Mapping[str, Any]) -> bool:
    """Whether the object says that objects were left behind there: it stays until somebody deletes it."""
    conditions = (obj.get("status") or {}).get("conditions") or []
    return any(c.get("reason") == "Removed" and LEFT_BEHIND in str(c.get("message")) for c in conditions)


def differs(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether a status is worth writing: latencies alone are not."""
    unimportant = {"latency": "", "latencies": ""}
    return {**old, **unimportant} != {**new, **unimportant}


def conflicting_labels(error: StatusError) -> set[str]:
    """Label keys that a failed apply names as held by others."""
    keys: set[str] = set()
    for cause in (error.details or {}).get("causes") or []:
        field = str(cause.get("field", ""))
        if field.startswith(".metadata.labels."):
            keys.add(field.removeprefix(".metadata.labels."))
        elif field.startswith(".metadata.labels[") and field.endswith("]"):
            keys.add(field.removeprefix(".metadata.labels[").rstrip("]").strip("\"'"))
    return keys
