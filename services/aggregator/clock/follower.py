"""Follows the clock's keys by one watch for all resources of this process, and tells each what concerns it.

A resource that this process sequences needs of others only gaps, leader keys and wishes for a list; one that it
follows needs everything. The watch takes in the markers only while some resource is followed, so that a sequencer
does not read its own commits back. Revisions are told whole and in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import aclosing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

from services.aggregator.clock.history import ordered, take_event
from services.aggregator.clock.keys import DOUBT, Parsed
from services.aggregator.clock.state import Change
from services.aggregator.clock.store import StorageChanged, Store
from services.common.etcd import DELETE, EtcdCompacted, EtcdError, prefix_end
from services.common.tasks import Backoff

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger(__name__)

SLICE = 2000
"""Events after which others have their turn."""
PATIENCE = 3.0
"""Seconds that a watch waits for resources that are being read: with them it would have to begin again."""


class Followed(Protocol):
    """One resource as the follower sees it; nothing here may wait."""

    group: str
    resource: str

    @property
    def seen(self) -> int:
        """The watch must begin right behind this revision, or before."""

    def observe(self, change: Change) -> None:
        """All of one revision that concerns the resource. Without markers and positions unless it is followed."""

    def passed(self, revision: int) -> None:
        """Everything up to `revision` was observed."""

    def lost(self) -> None:
        """What came behind `seen` cannot be had any more, or was of another store: read all anew."""

    def leader_changed(self, create_revision: int, mod_revision: int) -> None:
        """Who holds the leader key since `mod_revision` (0: nobody)."""

    def leader_missing(self, revision: int) -> None:
        """There was no leader key at `revision`."""

    def gap_changed(self, cluster: str, revision: int, there: bool) -> None:
        """A gap key was put or deleted."""

    def list_asked(self, cluster: str, read: int) -> None:
        """A replica wants a cluster listed anew whose position stands at `read`."""

    def watch_doubted(self, cluster: str, read: int) -> None:
        """A replica knows of events of a cluster above `read`, and misses them."""


class Reopen(Protocol):
    """Reads the store's base again, which was `base`; then `reset` is called."""

    async def __call__(self, base: int, *, rewound: bool) -> None: ...


class Follower:
    """`run` is its one task; the other methods are called from the same loop."""

    def __init__(
        self, store: Store, resources: Callable[[], Collection[Followed]],
        reopen: Reopen,
    ) -> None:  # fmt: skip
        self._store, self._resources, self._reopen = store, resources, reopen
        self._joined: set[Followed] = set()
        self._active: set[Followed] = set()
        """Of those joined, the ones that the watch under way serves: it began early enough for them."""
        self._table: dict[tuple[str, str], Followed] = {}
        self._seen = self._base = 0
        self._broken = True
        self._kicked = asyncio.Event()
        self._loading = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self.trouble = ""
        """Why nothing is followed now."""

    def join(self, one: Followed) -> None:
        """Follow a resource from its `seen` on."""
        self._joined.add(one)
        self._kicked.set()

    def leave(self, one: Followed) -> None:
        """Tell a resource of markers no more: this process is its sequencer, or it is read anew."""
        self._joined.discard(one)
        self._active.discard(one)
        if not self._joined:
            self._kicked.set()  # a narrower watch does

    def kick(self) -> None:
        """It does not seem to get on: begin again, at another endpoint's if there is one."""
        self._broken = True
        self._kicked.set()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Begin no watch meanwhile: who reads its state now wants to be served from an earlier revision."""
        self._loading += 1
        self._quiet.clear()
        try:
            yield
        finally:
            self._loading -= 1
            if not self._loading:
                self._quiet.set()

    async def run(self) -> None:
        """Follow until cancelled."""
        backoff = Backoff(initial=0.1, maximum=2.0)
        while True:
            try:
                await self._follow(backoff)
                continue  # kicked
            except EtcdCompacted as error:
                self._compacted(error)
            except StorageChanged as reason:
                await self._storage_changed(reason)
            except EtcdError as error:
                if not self.trouble:
                    log.info("etcd is not followed: %s", error)
                self.trouble = str(error)
            self._broken = True
            self._active.clear()
            await backoff.wait()

    def _compacted(self, error: EtcdCompacted) -> None:
        log.warning("etcd's history since the last revision that was followed is gone: reading all anew")
        for one in list(self._joined):
            if one.seen + 1 < error.compact_revision or not error.compact_revision:
                self.leave(one)
                one.lost()

    async def _storage_changed(self, reason: StorageChanged) -> None:
        log.error("%s", reason)
        try:
            await self._reopen(self._base, rewound=reason.rewound)
        except EtcdError as error:
            log.warning("%s", error)

    def reset(self) -> None:
        """The store is another one: nothing that was seen counts."""
        self._seen = 0
        for one in self._resources():
            self.leave(one)
            one.lost()
        self.kick()

    # One watch.

    async def _follow(self, backoff: Backoff) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await self._quiet.wait()
        self._kicked.clear()
        if self._broken:
            self._base = self._store.base
            self._seen = await self._read_keys()
            self._broken, self.trouble = False, ""
        self._table = {(one.group, one.resource): one for one in self._resources()}
        self._active = set(self._joined)
        start = min([self._seen, *(one.seen for one in self._active)])
        work = asyncio.create_task(self._watch(start, backoff), name="clock/watch")
        kicked = asyncio.create_task(self._kicked.wait(), name="clock/watch/kicked")
        try:
            await asyncio.wait({work, kicked}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            for task in (work, kicked):
                task.cancel()
            await asyncio.gather(work, kicked, return_exceptions=True)

    async def _watch(self, start: int, backoff: Backoff) -> None:
        begin, end = self._store.keys.followed(markers=bool(self._active))
        watch = self._store.etcd.watch(begin, end, start_revision=start + 1)
        async with aclosing(watch) as batches:
            async for batch in batches:
                backoff.reset()
                if self._kicked.is_set():
                    return
                if batch.events:
                    await self._dispatch(batch.events)

    async def _read_keys(self) -> int:
        """Who leads and which gaps are open: after a break the watch may have missed the end of a key."""
        await self._store.verify(self._seen)
        keys = self._store.keys
        answer = await self._store.etcd.range(keys.kind("gaps"), prefix_end(keys.kind("leader")))
        held = {kv.key: kv for kv in answer.kvs}
        for one in self._resources():
            kv = held.get(keys.leader(one.group, one.resource))
            if kv is None:
                one.leader_missing(answer.revision)
            else:
                one.leader_changed(int(kv.create_revision), int(kv.mod_revision))
            if one not in self._joined:
                gaps = keys.all("gaps", one.group, one.resource)
                for key, kv in held.items():
                    if key.startswith(gaps):
                        one.gap_changed(key[len(gaps) :].decode(), int(kv.mod_revision), True)
        return answer.revision

    async def _dispatch(self, events: Any) -> None:
        """All events of a revision are in one batch: each is told whole, and what follows may wait a moment."""
        changes: dict[Followed, Change] = {}
        revision, told = 0, 0
        for event in events:
            at = int(event.kv.mod_revision)
            if at != revision:
                self._publish(changes)
                if told > SLICE:
                    self._passed(revision)
                    told = 0
                    await asyncio.sleep(0)
                changes, revision = {}, at
            told += 1
            key = self._store.keys.parse(event.kv.key)
            if key is not None and key.kind == "base" and (event.type == DELETE or at != self._store.base_revision):
                # Nothing of this revision may be told: it removes what the old base numbered.
                raise StorageChanged("etcd: there is another base: the store was rebuilt")
            one = self._table.get((key.group, key.resource)) if key is not None else None
            if key is not None and one is not None:
                self._take(changes, one, key, event)
        self._publish(changes)
        self._passed(revision)

    def _take(self, changes: dict[Followed, Change], one: Followed, key: Parsed, event: Any) -> None:
        revision = int(event.kv.mod_revision)
        if key.kind == "leader":
            one.leader_changed(0 if event.type == DELETE else int(event.kv.create_revision), revision)
        elif key.kind == "lists":
            if event.type != DELETE:
                _wish(one, key.cluster, event.kv.value)
        elif one in self._active or key.kind == "gaps":
            change = changes.get(one)
            if change is None:
                change = changes[one] = Change(revision)
            take_event(change, key, event)

    def _publish(self, changes: dict[Followed, Change]) -> None:
        for one, change in changes.items():
            one.observe(ordered(change))

    def _passed(self, revision: int) -> None:
        self._seen = max(self._seen, revision)
        for one in self._table.values():
            if one in self._active or one not in self._joined:
                one.passed(revision)


def _wish(one: Followed, cluster: str, value: bytes) -> None:
    """What a replica wishes of the sequencer; what a newer one may ask in other words is not for us."""
    read = value.removeprefix(DOUBT)
    if not read.isdigit():
        return
    if read == value:
        one.list_asked(cluster, int(read))
    else:
        one.watch_doubted(cluster, int(read))
