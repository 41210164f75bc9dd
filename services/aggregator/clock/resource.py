"""The clock of one resource: following another sequencer, terms of leadership, and what the window means for it.

Every replica reads the log from etcd once, then follows it by a watch. A term: take the leader key, wait until the
watch has shown that put (all commits of those before come first), follow every member, commit; the log grows by
the answers then, and the watch brings no markers. Whatever fails in etcd ends the term, and the watch goes on
where the answers ended. Readers are served all along.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from services.aggregator.clock import metrics
from services.aggregator.clock.context import Context
from services.aggregator.clock.election import campaign
from services.aggregator.clock.following import Following
from services.aggregator.clock.retention import PURGE_AT_ONCE
from services.aggregator.clock.sequencer import Sequencer
from services.aggregator.clock.state import Change
from services.aggregator.clock.store import Deposed, StorageChanged
from services.aggregator.clock.version import decode
from services.aggregator.types import Aggregated
from services.common.etcd import EtcdError, EtcdUnavailable
from services.common.tasks import Backoff

log = logging.getLogger(__name__)

RESIGN_TIMEOUT = 2.0
REACH = 5.0
"""Seconds in which the watch must get on towards a leader key that was just put."""
REACH_MAX = 60.0
"""The same at most: doubled each time, since etcd begins again with what a window of many markers makes it read."""
STABLE = 5.0
"""Seconds after which a term that ends was no failure to start."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Live markers, live ones hidden behind an older object of their key, entries of the log, its window."""

    markers: int
    clashes: int
    log_entries: int
    window_revisions: int


class ResourceClock(Following):
    """One aggregated resource. `run` is its task; `update` follows fleet and aggregation."""

    def __init__(self, context: Context, aggregated: Aggregated) -> None:
        super().__init__(context, aggregated)
        self._led_since = 0.0
        self._patience = REACH

    # Terms.

    async def run(self) -> None:
        """Follow, and lead whenever possible, until cancelled."""
        backoff = Backoff(initial=0.1, maximum=3.0)
        loop = asyncio.get_running_loop()
        try:
            while True:
                base, self._led_since = self.context.store.base, 0.0
                try:
                    if self.state.base != base or self._lost.is_set():
                        await self._load()
                    await self._term()
                except StorageChanged as reason:
                    log.error("%s: %s", self.label, reason)
                    await self._reopen(base, reason)
                except EtcdError as error:
                    # Said once, not with every try while etcd is away.
                    news = self._led_since or str(error) != self.trouble
                    level = logging.WARNING if news else logging.DEBUG
                    what = "the term is over" if self._led_since else "not in sync with etcd"
                    log.log(level, "%s: %s: %s", self.label, what, error)
                    self.trouble = str(error)
                if self._led_since and loop.time() - self._led_since > STABLE:
                    backoff.reset()
                await backoff.wait()
        finally:
            self._part()
            await self._members.close()

    async def _reopen(self, base: int, reason: StorageChanged) -> None:
        try:
            await self.context.reopen(base, rewound=reason.rewound)
        except EtcdError as error:
            log.warning("%s: %s", self.label, error)

    async def _term(self) -> None:
        context = self.context
        term = await campaign(
            context.store, self.group, self.resource, context.leases, context.me,
            vacancy=self._vacancy, known=self._trying,
        )  # fmt: skip
        try:
            await self._reach(term)
            await self._lead(term)
        finally:
            metrics.LEADS.labels(self.label).set(0)
            if self.term:
                self.term = 0
                # What a transaction in flight may have done comes by the watch.
                self._join()
            sequencer, self._sequencer = self._sequencer, None
            if sequencer is not None:
                sequencer.end()
            await self._members.stop()
            await self._resign(term)

    def _trying(self) -> int:
        """The leader key is asked for: what is heard from here on of its lease, or of etcd, is of the term to come."""
        self._deposed.clear()
        return self.state.revision

    async def _resign(self, term: int) -> None:
        """Give the key up, so that nothing of this term can succeed late. Best effort: the next campaign
        removes a key of ours that is left, and another process waits for our lease."""
        try:
            async with asyncio.timeout(RESIGN_TIMEOUT):
                await self.context.store.resign(self.group, self.resource, term)
        except (EtcdError, TimeoutError) as error:
            log.info("%s: the leader key was not given up: %s", self.label, error)

    async def _reach(self, term: int) -> None:
        """Wait until the log has come to the term's first revision, by the watch: nobody commits any more."""
        while self._complete < term:
            try:
                async with asyncio.timeout(self._patience):
                    await self._until(self._complete + 1)
            except TimeoutError:
                self._patience = min(2 * self._patience, REACH_MAX)
                self.context.follower.kick()
                raise EtcdUnavailable("etcd: Watch: it does not come to the current revision") from None
        self._patience = REACH

    # Leading.

    async def _lead(self, term: int) -> None:
        context = self.context
        sequencer = Sequencer(
            context.store, self.group, self.resource, state=self.state, term=term, committed=self._committed,
            limit=context.max_ops, tally=self.tally, traces=self.traces,
        )  # fmt: skip
        self._sequencer, self.term, self.trouble = sequencer, term, ""
        self._part()
        metrics.TERMS.labels(self.label).inc()
        metrics.LEADS.labels(self.label).set(1)
        self._led_since = asyncio.get_running_loop().time()
        self._members.start()
        work = asyncio.create_task(sequencer.run(), name=f"clock/{self.label}/sequencer")
        deposed = asyncio.create_task(self._deposed.wait(), name=f"clock/{self.label}/deposed")
        try:
            await asyncio.wait({work, deposed}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise Deposed("the leader key is not ours any more")
            work.result()
        except StorageChanged:
            self._lost.set()  # what this store says next does not go on from our log
            raise
        finally:
            for task in (work, deposed):
                task.cancel()
            # An error of a task that was cancelled meanwhile is the term's, which is over.
            await asyncio.gather(work, deposed, return_exceptions=True)

    def _committed(self, change: Change, runs: bool) -> None:
        """Called by the sequencer after each commit, before anything else runs."""
        self._complete = change.revision
        self.tally.logged(change.markers)
        self._advanced()
        self._counts.objects(self.state.index.live, self.state.index.hidden)
        for cluster in change.gaps:
            self._closed[cluster] = change.revision
        # Events alone change no member's standing: nothing to look at for each of them.
        if runs or change.gaps:
            self._members.changed()

    def update(self, aggregated: Aggregated | None = None) -> None:
        """The fleet, or the aggregation, has changed."""
        if aggregated is not None:
            restart = aggregated.version != self.aggregated.version
            self.aggregated = aggregated
            if restart:
                self._members.restart()
        self._members.refresh()

    def joined(self) -> None:
        """A cluster joined, or changed: `update` soon. One that leaves is let go at once."""
        self._members.joined()

    def kick(self, cluster: str) -> None:
        """A cluster may answer again: do not wait for the next try."""
        self._members.kick(cluster)

    # Retention.

    def counts(self) -> Counts:
        """Figures for people and metrics."""
        state = self.state
        oldest = max(decode(state.base, state.floor)[0], 0) if state.base else 0
        return Counts(state.index.live, state.index.hidden, len(state.log), max(state.revision - oldest, 0))

    async def retain(self, revision: int, refresh: bool) -> None:
        """Let go what lies up to etcd's `revision`; `refresh`: write every position anew."""
        while self.state.trim(revision):  # noqa: ASYNC110 - gives way between slices
            await asyncio.sleep(0)
        self.tally.keep(self.members)
        counts = self.counts()
        metrics.ENTRIES.labels(self.label).set(counts.log_entries)
        metrics.GAPS_OPEN.labels(self.label).set(len(self.state.gaps))
        metrics.WINDOW.labels(self.label).set(counts.window_revisions)
        sequencer = self._sequencer
        if sequencer is None:
            self.state.forget_purged()
            return
        metrics.WAITING.labels(self.label).set(sequencer.waiting)
        sequencer.purge(self.state.purgeable(PURGE_AT_ONCE))
        if refresh:
            self._members.refresh_positions()
            await self._claims.sweep(lambda namespace, name: self.shown(namespace, name) is not None)

    def ready(self) -> str | None:
        """Why it cannot serve yet."""
        if self.synced.is_set() and (self.term or not self.context.follower.trouble):
            return None
        if not self.loaded.is_set():
            return f"{self.label}: {self.trouble}"
        return f"{self.label}: {self._members.waiting() or self.context.follower.trouble or self.trouble}"
