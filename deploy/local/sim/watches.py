"""One watch on a collection: a queue of events that its reader takes, filled as changes are made.

Source: k8s.io/apiserver pkg/storage/cacher, KEP-3157 (WatchList), KEP-956 (bookmarks).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from deploy.local.sim.errors import Refused, expired, internal_plain, too_large_version
from deploy.local.sim.reads import Filter, check_watch_options, parse_version
from deploy.local.sim.store import Change, Collection, State, Store

_END_OF_INITIAL = "k8s.io/initial-events-end"


class Event:
    """What a watcher is told. `state` is None for BOOKMARK (see `version`, `initial_end`) and ERROR (see `error`)."""

    __slots__ = ("error", "initial_end", "kind", "state", "version")

    def __init__(
        self,
        kind: str,
        state: State | None = None,
        *,
        version: int = 0,
        initial_end: bool = False,
        error: Refused | None = None,
    ) -> None:
        self.kind = kind
        self.state = state
        self.version = state.version if state is not None else version
        self.initial_end = initial_end
        self.error = error


class Watch:
    """Open until `close`. `wake` is called when something came or it was closed; `events` is the reader's to drain."""

    def __init__(self, store: Store, collection: Collection, wanted: Filter, *, bookmarks: bool) -> None:
        self.wanted = wanted
        self.bookmarks = bookmarks
        self.events: deque[Event] = deque()
        self.closed = False
        self.reason = ""
        self.wake: Callable[[], None] | None = None
        self.on_closed: Callable[[Watch], None] | None = None
        self._store = store
        self._collection = collection
        self._held = False
        self._held_events: deque[Event] = deque()

    def take(self, limit: int = 1000) -> list[Event]:
        """Up to `limit` events, in order; [] when there are none now."""
        return [self.events.popleft() for _ in range(min(limit, len(self.events)))]

    def bookmark(self) -> None:
        """Tells the reader how far the cluster is, if it asked for bookmarks."""
        if self.bookmarks and not self.closed:
            self._tell(Event("BOOKMARK", version=self._store.revision))

    def close(self, reason: str = "") -> None:
        """Ends it; what is queued can still be taken."""
        if not self.closed:
            self.closed, self.reason = True, reason
            self._collection.listeners.pop(self, None)
            if self.on_closed is not None:
                self.on_closed(self)
            self._wake()

    def fail(self, error: Refused) -> None:
        """Tells an ERROR and ends."""
        self._tell(Event("ERROR", error=error))
        self.close(error.message)

    def hold(self, held: bool = True) -> None:
        """While held, events come but are not given to the reader: a slow API server."""
        self._held = held
        if not held and self._held_events:
            self.events.extend(self._held_events)
            self._held_events.clear()
            self._wake()

    def start(self, query: Mapping[str, str], version: int) -> None:
        """Queues what the reader must hear first, then follows the collection."""
        initial = query.get("sendInitialEvents") in ("true", "1", "True")
        legacy = "sendInitialEvents" not in query and query.get("resourceVersion", "") in ("", "0")
        if initial or legacy:
            for key in self._collection.each(self.wanted.prefix):
                state = self._collection.live[key]
                if self.wanted.takes(state):
                    self.events.append(Event("ADDED", state))
            if initial and self.bookmarks:
                self.events.append(Event("BOOKMARK", version=self._store.revision, initial_end=True))
        else:
            start = version or self._store.revision
            if start < self._collection.window:
                self.fail(expired(f"too old resource version: {start} ({self._collection.window})"))
                return
            for change in self._collection.since(start):
                self._follow(self._collection, change)
        self._collection.listeners[self] = self._follow

    def _follow(self, _: Collection, change: Change) -> None:
        wanted = self.wanted
        if change.kind == "DELETED":
            if change.before is not None and wanted.takes(change.before):
                self._tell(Event("DELETED", change.state))
            return
        now = wanted.takes(change.state)
        if wanted.all:
            before = now and change.kind == "MODIFIED"
        else:
            before = change.before is not None and wanted.takes(change.before)
        if now:
            self._tell(Event("MODIFIED" if before else "ADDED", change.state))
        elif before:
            self._tell(Event("DELETED", gone(change)))

    def _tell(self, event: Event) -> None:
        if self._held:
            self._held_events.append(event)
            return
        self.events.append(event)
        self._wake()

    def _wake(self) -> None:
        if self.wake is not None:
            self.wake()


def gone(change: Change) -> State:
    """What a selecting watcher is told when an object leaves its selection: the last one it saw, at this version."""
    before = change.before
    assert before is not None
    raw = before.raw.replace(
        b'"resourceVersion":"%d"' % before.version, b'"resourceVersion":"%d"' % change.version, 1
    )
    return State(before.key, change.version, raw, before.labels)


def open_watch(store: Store, collection: Collection, wanted: Filter, query: Mapping[str, str]) -> Watch:
    """A started watch. Raises Refused (422, 400); a version that is too old is an ERROR event, as on the real one."""
    check_watch_options(query)
    try:
        version = parse_version(query.get("resourceVersion", ""))
    except Refused as refused:
        raise internal_plain(refused.message) from None
    watch = Watch(
        store, collection, wanted, bookmarks=query.get("allowWatchBookmarks") in ("true", "1", "True")
    )
    if version > store.revision and "sendInitialEvents" in query:
        watch.fail(too_large_version(version, store.revision))
        return watch
    watch.start(query, version)
    return watch


def bookmark_annotations(event: Event) -> dict[str, str]:
    return {_END_OF_INITIAL: "true"} if event.initial_end else {}
