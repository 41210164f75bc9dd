"""One resource's log as etcd tells it: read once, then followed by the process's one watch.

The sequencer's own process takes its commits from their answers instead, and comes back here when its term ends.
"""

from __future__ import annotations

import asyncio
import logging

from services.aggregator.clock import history, metrics
from services.aggregator.clock.answers import Answers
from services.aggregator.clock.context import Context
from services.aggregator.clock.state import Change, State
from services.aggregator.types import Aggregated
from services.common.etcd import EtcdCompacted

log = logging.getLogger(__name__)


class Following(Answers):
    """What the follower calls (see `Followed`), and reading all anew."""

    def __init__(self, context: Context, aggregated: Aggregated) -> None:
        super().__init__(context, aggregated)
        self._closed: dict[str, int] = {}
        """Cluster -> revision at which our sequencer closed its gap."""
        self._counts = metrics.Commits(self.label)
        self._watched = 0
        """The watch has told everything up to here: gaps and leader keys too."""
        self._grown = False
        self._lost = asyncio.Event()
        self._vacant = asyncio.Event()

    # Reading anew.

    async def _load(self) -> None:
        """Read all from etcd, then follow. The log that readers have stays until this one has come as far."""
        context, loop = self.context, asyncio.get_running_loop()
        begin = loop.time()
        self._part()
        self._lost.clear()
        try:
            with context.follower.held():
                self._coming = await history.load(
                    context.store, self.group, self.resource, context.window_revisions
                )
                self._complete = self._watched = self._coming.revision
                self._join()
            revision, newest = await context.store.committed(self.group, self.resource, self._complete)
            await self._until(newest)
        except BaseException:
            self._part()
            self._coming = None
            self._lost.set()
            raise
        self.state, self._coming = self._coming, None
        self.state.pass_revision(revision)
        self._closed.clear()
        log.info(
            "%s: read %d objects and %d log entries from etcd in %.2f s", self.label, self.state.index.live,
            len(self.state.log), loop.time() - begin,
        )  # fmt: skip
        self.trouble = ""
        self.loaded.set()
        self._advanced()
        self._members.refresh()

    async def _until(self, revision: int) -> None:
        """Wait until the log has come to a revision. EtcdCompacted when it cannot."""
        while self._complete < revision:
            if self._lost.is_set():
                raise EtcdCompacted("what was followed must be read anew")
            await self.followed.wait(1.0)

    def _join(self) -> None:
        if not self._lost.is_set():
            self._follows = True
            self.context.follower.join(self)

    def _part(self) -> None:
        self._follows = False
        self.context.follower.leave(self)

    def _advanced(self) -> None:
        self.topics.told(self.state)
        self.pulse.beat()
        self.head_pulse.beat()

    # What the watch tells.

    @property
    def seen(self) -> int:
        """The watch must begin right behind this revision, or before."""
        return min(self._watched, self._complete)

    def observe(self, change: Change) -> None:
        """One revision, whole."""
        state = self._coming or self.state
        gaps, change.gaps = change.gaps, {}
        if change.revision > self._watched:
            for cluster, there in gaps.items():
                self.gap_changed(cluster, change.revision, there)
        if not self._follows or change.revision <= self._complete or not change:
            return
        stands = _standing(state, change)
        state.apply(change)
        self._complete = change.revision
        if self._coming is None:
            self.tally.logged(change.markers)
            if self.traces.on:
                self.traces.followed(change.markers)
        self._grown = True
        if stands and self._coming is None:
            self._members.changed()

    def passed(self, revision: int) -> None:
        """Everything up to `revision` was told."""
        self._watched = max(self._watched, revision)
        if not self._follows:
            return
        self._complete = max(self._complete, revision)
        (self._coming or self.state).pass_revision(revision)
        if self._coming is None:
            if self._grown:
                self.topics.told(self.state)
                self.pulse.beat()
                self._counts.objects(self.state.index.live, self.state.index.hidden)
            self.head_pulse.beat()
        self._grown = False
        self.followed.beat()

    def lost(self) -> None:
        """What happened cannot be followed any more, or the store is another one: read all anew."""
        self._lost.set()
        self._deposed.set()
        self._vacant.set()
        self.followed.beat()

    def list_asked(self, cluster: str, read: int) -> None:
        """A replica found that the member has compacted the version at which the log stands."""
        position = self.state.positions.get(cluster)
        if self.term and position is not None and position.read == read:
            self._members.relist(cluster)

    def watch_doubted(self, cluster: str, read: int) -> None:
        """A replica misses events above `read`; what has moved on since then needs nothing."""
        position = self.state.positions.get(cluster)
        if self.term and position is not None and position.read == read:
            self._members.overdue(cluster)

    def leader_changed(self, create_revision: int, mod_revision: int) -> None:
        """Who holds the leader key since `mod_revision` (0: nobody)."""
        if not create_revision:
            self._vacant.set()
        if self.term and mod_revision > self.term and create_revision != self.term:
            self._deposed.set()

    def leader_missing(self, revision: int) -> None:
        """There was no leader key at etcd's `revision`."""
        self._vacant.set()
        if self.term and (revision > self.term or revision < self.state.revision):
            self._deposed.set()

    def gap_changed(self, cluster: str, revision: int, there: bool) -> None:
        """A gap key was put or deleted."""
        state = self._coming or self.state
        if there:
            # Our own close may have been applied already; etcd's watch is behind it then.
            if revision > max(state.gaps.get(cluster, 0), self._closed.get(cluster, 0)):
                state.see_gap(cluster, revision)
                self._members.changed()
        elif state.gaps.get(cluster, revision + 1) < revision:
            state.see_gap(cluster, 0)

    async def _vacancy(self, seconds: float) -> bool:
        """Wait until the watch says that nobody leads. EtcdCompacted: there is other work first."""
        if self._lost.is_set():
            raise EtcdCompacted("what was followed must be read anew")
        try:
            async with asyncio.timeout(seconds):
                await self._vacant.wait()
        except TimeoutError:
            return False
        self._vacant.clear()
        return True


def _standing(state: State, change: Change) -> bool:
    """Does a member's standing change: does it come or go, or does a diff of it begin or end?"""
    for cluster, position in change.positions.items():
        before = state.positions.get(cluster)
        if position is None or before is None or position.diff != before.diff:
            return True
    return False
