"""The store of one simulated cluster: one revision counter, objects as encoded JSON, history for watches and old lists.

Synchronous, without a clock. An object's state is immutable bytes, so that a reader may keep them and writers cannot
change what history says. Cost: a change O(log n), a list O(what it returns), a list at an old version O(changes since).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

_decode = msgspec.json.Decoder().decode
_NO_LABELS: Mapping[str, str] = {}


class State:
    """One state of one object. `raw`: its JSON without kind and apiVersion, metadata first."""

    __slots__ = ("key", "labels", "raw", "version")

    def __init__(self, key: str, version: int, raw: bytes, labels: Mapping[str, str]) -> None:
        self.key = key
        self.version = version
        self.raw = raw
        self.labels = labels or _NO_LABELS

    def object(self) -> dict[str, Any]:
        """A fresh decoded copy, without kind and apiVersion."""
        found: dict[str, Any] = _decode(self.raw)
        return found

    @property
    def namespace(self) -> str:
        return self.key.rpartition("/")[0]

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]


class Change:
    """One entry of the history. `kind`: ADDED, MODIFIED or DELETED (then `state` is the last, at the deletion's version)."""

    __slots__ = ("before", "kind", "state")

    def __init__(self, kind: str, state: State, before: State | None) -> None:
        self.kind = kind
        self.state = state
        self.before = before

    @property
    def version(self) -> int:
        return self.state.version


Listener = Callable[["Collection", Change], None]


def object_key(namespace: str | None, name: str) -> str:
    """Keys sort as the API server's etcd keys do."""
    return f"{namespace}/{name}" if namespace else name


class Collection:
    """The objects of one type. `listeners` hear each change as it is made, in order; they must not write."""

    __slots__ = ("_order", "listeners", "live", "log", "name", "window")

    def __init__(self, name: str, window: int) -> None:
        self.name = name
        self.live: dict[str, State] = {}
        self.log: deque[Change] = deque()
        self.window = window
        """Watches from an older version are refused."""
        self.listeners: dict[object, Listener] = {}
        self._order: list[str] = []

    def __len__(self) -> int:
        return len(self.live)

    def each(self, prefix: str = "", after: str = "") -> Iterator[str]:
        """Live keys below `prefix` from `after` (inclusive) on, in order."""
        order = self._order
        at = bisect_left(order, max(prefix, after))
        while at < len(order) and order[at].startswith(prefix):
            yield order[at]
            at += 1

    def count(self, prefix: str = "", after: str = "") -> int:
        """How many keys `each` gives."""
        end = bisect_right(self._order, prefix + "\U0010ffff") if prefix else len(self._order)
        return max(0, end - bisect_left(self._order, max(prefix, after)))

    def put(self, state: State) -> Change:
        before = self.live.get(state.key)
        if before is None:
            if not self._order or state.key > self._order[-1]:
                self._order.append(state.key)
            else:
                insort(self._order, state.key)
        self.live[state.key] = state
        return Change("ADDED" if before is None else "MODIFIED", state, before)

    def remove(self, state: State) -> Change:
        """`state` is what the object was, at the version of the deletion."""
        before = self.live.pop(state.key)
        del self._order[bisect_left(self._order, state.key)]
        return Change("DELETED", state, before)

    def undo(self, version: int) -> dict[str, State | None]:
        """What differs from now in the collection as of `version`: key -> state then, None when there was none."""
        then: dict[str, State | None] = {}
        for change in reversed(self.log):
            if change.version <= version:
                break
            then[change.state.key] = change.before
        return then

    def since(self, version: int) -> list[Change]:
        """The changes after `version`, in order."""
        found: list[Change] = []
        for change in reversed(self.log):
            if change.version <= version:
                break
            found.append(change)
        found.reverse()
        return found

    def reset(self, live: dict[str, State], window: int) -> None:
        """Takes other contents and forgets its history."""
        self.live = live
        self._order = sorted(live)
        self.log.clear()
        self.window = window


@dataclass(frozen=True)
class Backup:
    """What a store held at one revision."""

    revision: int
    contents: Mapping[str, Mapping[str, State]]


class Store:
    """All collections of a cluster. `history` bounds how many changes of a collection are kept."""

    def __init__(self, *, revision: int = 0, history: int = 10_000) -> None:
        self.revision = revision
        self.compacted = revision
        """Lists at an older version are refused."""
        self.history = history
        self.collections: dict[str, Collection] = {}
        self.listeners: list[Listener] = []

    def collection(self, name: str) -> Collection:
        """Made on first use: a type without objects costs nothing."""
        found = self.collections.get(name)
        if found is None:
            found = self.collections[name] = Collection(name, self.compacted)
        return found

    def next_revision(self) -> int:
        """The revision that the next change gets; the change must follow."""
        return self.revision + 1

    def put(self, collection: Collection, state: State) -> Change:
        """Stores a state made for `next_revision`."""
        return self._record(collection, collection.put(state))

    def remove(self, collection: Collection, state: State) -> Change:
        """Removes an object; `state` is its last one, made for `next_revision`."""
        return self._record(collection, collection.remove(state))

    def tick(self, revisions: int = 1) -> None:
        """Revisions pass that no object of ours takes, as leases and events of others take them."""
        self.revision += revisions

    def compact(self, revision: int | None = None) -> None:
        """Forgets what was before `revision` (now, when None): older lists and watches get 410."""
        revision = self.revision if revision is None else min(revision, self.revision)
        self.compacted = max(self.compacted, revision)
        for collection in self.collections.values():
            while collection.log and collection.log[0].version <= revision:
                collection.log.popleft()
            collection.window = max(collection.window, revision)

    def backup(self) -> Backup:
        """The contents now, for `restore`."""
        contents = {name: dict(found.live) for name, found in self.collections.items()}
        return Backup(self.revision, contents)

    def restore(self, backup: Backup) -> None:
        """Goes back to an earlier state: the revision too, so that later versions repeat. History is gone."""
        self.revision = self.compacted = backup.revision
        for name in {*self.collections, *backup.contents}:
            self.collection(name).reset(dict(backup.contents.get(name, {})), backup.revision)

    def _record(self, collection: Collection, change: Change) -> Change:
        self.revision = change.version
        collection.log.append(change)
        if len(collection.log) > self.history:
            oldest = collection.log.popleft().version
            collection.window = max(collection.window, oldest)
            self.compacted = max(self.compacted, oldest)
        for listener in self.listeners:
            listener(collection, change)
        for listener in list(collection.listeners.values()):
            listener(collection, change)
        return change
