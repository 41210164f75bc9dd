"""The clock of one resource: terms of leadership, and what etcd's watch and the window mean for it.

A term: take the leader key, bring the log up to it from etcd's history, follow every member, commit. Whatever
fails in etcd ends the term; the next one starts from what etcd has. Readers are served from the log all along,
but linearizable answers only within a term.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from services.aggregator.clock import history, metrics
from services.aggregator.clock.answers import Answers
from services.aggregator.clock.context import Context
from services.aggregator.clock.election import campaign
from services.aggregator.clock.retention import PURGE_AT_ONCE
from services.aggregator.clock.sequencer import Sequencer
from services.aggregator.clock.state import Change
from services.aggregator.clock.store import Deposed, StorageChanged
from services.aggregator.clock.version import decode
from services.aggregator.types import Aggregated
from services.common.etcd import EtcdCompacted, EtcdError
from services.common.tasks import Backoff

log = logging.getLogger(__name__)

RESIGN_TIMEOUT = 2.0
STABLE = 5.0
"""Seconds after which a term that ends was no failure to start."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Live markers, live ones hidden behind an older object of their key, entries of the log."""

    markers: int
    clashes: int
    log_entries: int


class ResourceClock(Answers):
    """One aggregated resource. `run` is its task; `update` follows fleet and aggregation."""

    def __init__(self, context: Context, aggregated: Aggregated) -> None:
        super().__init__(context, aggregated)
        self._closed: dict[str, int] = {}
        self._led_since = 0.0
        self._counts = metrics.Commits(self.label)

    # Terms.

    async def run(self) -> None:
        """Lead whenever possible, until cancelled."""
        backoff = Backoff(initial=0.1, maximum=3.0)
        loop = asyncio.get_running_loop()
        while True:
            base, self._led_since = self.context.store.base, 0.0
            try:
                await self._term()
            except StorageChanged as reason:
                log.error("%s: %s", self.label, reason)
                await self._reopen(base, reason)
            except EtcdError as error:
                # Said once, not with every try while etcd is away.
                news = self._led_since or str(error) != self.trouble
                level = logging.WARNING if news else logging.DEBUG
                log.log(level, "%s: the term is over: %s", self.label, error)
                self.trouble = str(error)
            if self._led_since and loop.time() - self._led_since > STABLE:
                backoff.reset()
            await backoff.wait()

    async def _reopen(self, base: int, reason: StorageChanged) -> None:
        try:
            await self.context.reopen(base, rewound=reason.rewound)
        except EtcdError as error:
            log.warning("%s: %s", self.label, error)

    async def _term(self) -> None:
        context = self.context
        term = await campaign(context.store, self.group, self.resource, context.leases, context.me)
        self._deposed.clear()
        try:
            await self._load(term)
            metrics.TERMS.labels(self.label).inc()
            await self._lead(term)
        finally:
            self.term = 0
            sequencer, self._sequencer = self._sequencer, None
            if sequencer is not None:
                sequencer.end()
            await self._members.stop()
            await self._resign(term)

    async def _resign(self, term: int) -> None:
        """Give the key up, so that nothing of this term can succeed late. Best effort: the next campaign
        removes a key of ours that is left, and another process waits for our lease."""
        try:
            async with asyncio.timeout(RESIGN_TIMEOUT):
                await self.context.store.resign(self.group, self.resource, term)
        except (EtcdError, TimeoutError) as error:
            log.info("%s: the leader key was not given up: %s", self.label, error)

    async def _load(self, term: int) -> None:
        """Bring the log up to the term's first revision."""
        context, state = self.context, self.state
        if state.base == context.store.base:
            if term <= state.revision:
                raise StorageChanged(
                    f"etcd's revision went back from {state.revision} to {term}", rewound=True
                )
            try:
                await history.replay(context.store, self.group, self.resource, state, term)
            except EtcdCompacted:
                log.warning("%s: etcd's history since our last term is gone: reading all anew", self.label)
            else:
                self._advanced()
                return
        begin = asyncio.get_running_loop().time()
        self.state = await history.load(
            context.store, self.group, self.resource, term, context.window_revisions
        )
        self._closed.clear()
        took = asyncio.get_running_loop().time() - begin
        log.info(
            "%s: read %d objects and %d log entries from etcd in %.2f s", self.label, self.state.index.live,
            len(self.state.log), took,
        )  # fmt: skip
        self.loaded.set()
        self._advanced()

    def _advanced(self) -> None:
        self.pulse.beat()
        self.head_pulse.beat()

    async def _lead(self, term: int) -> None:
        context = self.context
        sequencer = Sequencer(
            context.store, self.group, self.resource, state=self.state, term=term, committed=self._committed,
            limit=context.max_ops,
        )  # fmt: skip
        self._sequencer, self.term, self.trouble = sequencer, term, ""
        self._led_since = asyncio.get_running_loop().time()
        self._members.start()
        work = asyncio.create_task(sequencer.run(), name=f"clock/{self.label}/sequencer")
        deposed = asyncio.create_task(self._deposed.wait(), name=f"clock/{self.label}/deposed")
        try:
            await asyncio.wait({work, deposed}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise Deposed("the leader key is not ours any more")
            work.result()
        finally:
            for task in (work, deposed):
                task.cancel()
            # An error of a task that was cancelled meanwhile is the term's, which is over.
            await asyncio.gather(work, deposed, return_exceptions=True)

    def _committed(self, change: Change, runs: bool) -> None:
        """Called by the sequencer after each commit, before anything else runs."""
        self._advanced()
        self._counts.objects(self.state.index.live, self.state.index.hidden)
        for cluster in change.gaps:
            self._closed[cluster] = change.revision
        # Events alone change no member's standing: nothing to look at for each of them.
        if runs or change.gaps:
            self._members.check()

    def leader_changed(self, create_revision: int, mod_revision: int) -> None:
        """etcd's watch says who holds the leader key since `mod_revision` (0: nobody)."""
        if self.term and mod_revision > self.term and create_revision != self.term:
            self._deposed.set()

    def leader_missing(self, revision: int) -> None:
        """There was no leader key at etcd's `revision`."""
        if self.term and (revision > self.term or revision < self.state.revision):
            self._deposed.set()

    def gap_changed(self, cluster: str, revision: int, there: bool) -> None:
        """etcd's watch says that a gap key was put or deleted."""
        if there:
            # Our own close may have been applied already; etcd's watch is behind it then.
            if revision > max(self.state.gaps.get(cluster, 0), self._closed.get(cluster, 0)):
                self.state.see_gap(cluster, revision)
                self._members.check()
        elif self.state.gaps.get(cluster, revision + 1) < revision:
            self.state.see_gap(cluster, 0)

    def update(self, aggregated: Aggregated | None = None) -> None:
        """The fleet, or the aggregation, has changed."""
        if aggregated is not None:
            restart = aggregated.version != self.aggregated.version
            self.aggregated = aggregated
            if restart:
                self._members.restart()
        self._members.refresh()

    def kick(self, cluster: str) -> None:
        """A cluster may answer again: do not wait for the next try."""
        self._members.kick(cluster)

    # Retention.

    def counts(self) -> Counts:
        """Figures for people and metrics."""
        index = self.state.index
        return Counts(index.live, index.hidden, len(self.state.log))

    async def retain(self, revision: int, refresh: bool) -> None:
        """Let go what lies up to etcd's `revision`; `refresh`: write every position anew."""
        while self.state.trim(revision):  # noqa: ASYNC110 - gives way between slices
            await asyncio.sleep(0)
        metrics.ENTRIES.labels(self.label).set(len(self.state.log))
        metrics.GAPS_OPEN.labels(self.label).set(len(self.state.gaps))
        oldest = max(decode(self.state.base, self.state.floor)[0], 0) if self.state.base else 0
        metrics.WINDOW.labels(self.label).set(max(self.state.revision - oldest, 0))
        sequencer = self._sequencer
        if sequencer is None:
            return
        metrics.WAITING.labels(self.label).set(sequencer.waiting)
        sequencer.purge(self.state.purgeable(PURGE_AT_ONCE))
        if refresh:
            self._members.refresh_positions()
            await self._claims.sweep(lambda namespace, name: self.shown(namespace, name) is not None)

    def ready(self) -> str | None:
        """Why it cannot serve yet."""
        if self.synced.is_set() and self.term:
            return None
        return f"{self.label}: {self.trouble or self._members.waiting()}"
