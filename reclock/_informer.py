"""A local copy of one resource of one cluster, kept by list and watch through the front.

Changes come once and in order: a broken watch goes on from the last version seen, and where that is gone (410) a new
list is compared with the copy. It ends only by cancellation; while it cannot follow, `problem` says why.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from reclock._backoff import Backoff
from reclock._errors import ApiError, Expired, Unreachable, from_status
from reclock._resource import Resource

if TYPE_CHECKING:
    from reclock._cluster import Cluster

log = logging.getLogger("reclock")

Object: TypeAlias = dict[str, Any]
"""A Kubernetes object as JSON has it."""
Key: TypeAlias = tuple[str, str]
"""(namespace, name)."""
ChangeType: TypeAlias = Literal["ADDED", "MODIFIED", "DELETED"]

WATCH_SECONDS = (240, 480)
"""A watch is asked to end after a random time between these, so that not all are opened anew at once."""
SILENCE = 120.0
"""Seconds without a byte after which a watch counts as dead; API servers send a bookmark each minute."""


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to an object; of a deleted one `object` is its last state. `old` is what it was before."""

    type: ChangeType
    object: Object
    old: Object | None = None


class Informer:
    """Iterate over `changes` in one task; `store` may be read at any time. Its objects are shared: do not edit them."""

    def __init__(
        self, cluster: Cluster, resource: Resource, *, namespace: str = "", labels: str = "", fields: str = ""
    ) -> None:
        self.cluster = cluster
        self.resource = resource
        self.store: dict[Key, Object] = {}
        self.synced = asyncio.Event()
        """Set after the first complete list."""
        self.tried = asyncio.Event()
        """Set after the first list, complete or failed."""
        self.problem = ""
        """Why it does not follow now; empty when it does."""
        self._namespace, self._labels, self._fields = namespace, labels, fields
        self._version = ""
        self._backoff = Backoff(0.2, 10.0)

    async def changes(self) -> AsyncGenerator[Change, None]:
        """First what is there as ADDED (then `synced` is set), then what happens, until cancelled."""
        while True:
            try:
                if not self._version:
                    async for change in self._relist():
                        yield change
                async for change in self._watch():
                    yield change
            except Expired:
                self._version = ""
                await self._backoff.wait()
            except ApiError as error:
                self._note(str(error))
                await self._backoff.wait(error.retry_after)

    async def run(self) -> None:
        """Keep the store, until cancelled."""
        async for _ in self.changes():
            pass

    def _note(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("%s: %s", self._what, problem)
        self.problem = problem
        self.tried.set()

    def _good(self) -> None:
        if self.problem:
            log.info("%s: follows again", self._what)
        self.problem = ""

    @property
    def _what(self) -> str:
        return f"{self.cluster}: {self.resource}"

    async def _relist(self) -> AsyncGenerator[Change, None]:
        items, version = await self.cluster.list_with_version(
            self.resource, self._namespace, labels=self._labels, fields=self._fields
        )
        found = {_key(item): item for item in items}
        for key in [key for key in self.store if key not in found]:
            yield Change("DELETED", self.store.pop(key))
        for key, item in found.items():
            for change in self._put(key, item):
                yield change
        self._version = version
        self._good()
        self.synced.set()
        self.tried.set()

    def _put(self, key: Key, item: Object) -> list[Change]:
        old = self.store.get(key)
        changes: list[Change] = []
        if old is not None and old["metadata"].get("uid") != item["metadata"].get("uid"):
            changes.append(Change("DELETED", old))  # deleted and made again while we did not look
            old = None
        elif old is not None and old["metadata"].get("resourceVersion") == item["metadata"].get("resourceVersion"):
            return changes
        self.store[key] = item
        changes.append(Change("ADDED" if old is None else "MODIFIED", item, old))
        return changes

    async def _watch(self) -> AsyncGenerator[Change, None]:
        query: dict[str, str | int | bool | None] = {
            "watch": "true", "allowWatchBookmarks": "true", "resourceVersion": self._version,
            "labelSelector": self._labels, "fieldSelector": self._fields,
            "timeoutSeconds": random.randint(*WATCH_SECONDS),
        }  # fmt: skip
        opened = asyncio.get_running_loop().time()
        path = self.cluster.prefix + self.resource.path(self._namespace)
        async with self.cluster.connection.stream(path, query=query, silence=SILENCE) as lines:
            self._good()
            async for line in lines:
                for change in self._event(line):
                    yield change
                self._backoff.reset()
        if asyncio.get_running_loop().time() - opened < 1.0:
            await self._backoff.wait()  # a server that ends each watch at once is not asked without a pause

    def _event(self, line: bytes) -> list[Change]:
        try:
            event = json.loads(line)
            kind, obj = event["type"], event["object"]
            if kind == "ERROR":
                raise from_status(obj, self._what)
            version = str(obj["metadata"]["resourceVersion"])
        except (ValueError, KeyError, TypeError):
            raise Unreachable(f"{self._what}: the watch sent something that is no event") from None
        changes: list[Change] = []
        if kind in ("ADDED", "MODIFIED"):
            changes = self._put(_key(obj), obj)
        elif kind == "DELETED" and self.store.pop(_key(obj), None) is not None:
            changes = [Change("DELETED", obj)]
        self._version = version
        return changes


def _key(obj: Object) -> Key:
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]
