"""The one place where events get their numbers: queues in, transactions out, one at a time.

One Sequencer lives for one term of leadership. After any error its term is over: the transaction in flight may
still succeed, until the leader key has been given up. Feeds then start again with empty queues.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

from _fastpath.marker import Marker
from services.aggregator.clock import metrics
from services.aggregator.clock.batch import MAX_OPS, Batch, Builder, Queues
from services.aggregator.clock.pulse import Pulse
from services.aggregator.clock.state import Change, State
from services.aggregator.clock.store import GapReopened, StorageChanged, Store
from services.aggregator.clock.tally import Arrivals, Tally
from services.aggregator.clock.traces import EventTraces
from services.aggregator.clock.version import decode
from services.aggregator.clock.work import DiffRun, GapRun, LeaveRun, Work
from services.common.etcd import EtcdFull
from services.common.pace import Pace

log = logging.getLogger(__name__)

QUEUE_LIMIT = 2048
"""Events that one cluster may have waiting; a feed that is faster waits with its connection."""
FULL_RETRY = 1.0
GATHER, GATHER_FULL = 0.0045, 750.0
"""Seconds between two commits while so many events come a second, and more: half of what an event costs is its share of a
commit and of what a commit wakes. Between slower ones it is less."""
PURGE = 50
PURGE_EVERY = 16
"""Commits under load after which one purge has its turn."""
Committed = Callable[[Change, bool], None]
"""The change, and whether a run (a diff, a gap, a leaving) had a part in it."""


class Sequencer:
    """Commits what feeds enqueue. `run` is its one task; the other methods are called from the same loop."""

    def __init__(
        self, store: Store, group: str, resource: str, *, state: State, term: int, committed: Committed,
        limit: int = MAX_OPS, tally: Tally | None = None, traces: EventTraces | None = None,
    ) -> None:  # fmt: skip
        self.store, self.group, self.resource = store, group, resource
        self.state, self.term, self.limit = state, term, limit
        self.settled = Pulse()
        """Beats when a transaction has been applied."""
        self.full = ""
        """What etcd says while its quota is used up."""
        self._committed = committed
        self._label = f"{resource}.{group}" if group else resource
        self._counts = metrics.Commits(self._label)
        self.tally = Tally() if tally is None else tally
        self._arrivals = Arrivals()
        self._traces = traces if traces is not None and traces.on else None
        self._queues: Queues = {}  # of clusters with work only: a commit's cost must not grow with idle ones
        self._order: deque[str] = deque()
        self._wake = asyncio.Event()
        self._inflight: set[str] = set()
        self._started = 0
        self._done = 0
        self._purges: list[Marker] = []

    # For feeds and membership.

    def put_nowait(self, cluster: str, work: Work) -> None:
        """Enqueue."""
        queue = self._queues.get(cluster)
        if queue is None:
            queue = self._queues[cluster] = deque()
            self._order.append(cluster)
        if not queue:
            self._arrivals.came(cluster, asyncio.get_running_loop().time())
        queue.append(work)
        self._wake.set()

    async def put(self, cluster: str, some: Sequence[Work]) -> None:
        """Enqueue what came together; wait while the cluster's queue has no room for more."""
        for work in some:
            self.put_nowait(cluster, work)
            if self._traces is not None and isinstance(work, Marker):
                self._traces.came(work)
        while len(self._queues.get(cluster, ())) > QUEUE_LIMIT:
            await self.settled.wait()

    def clear(self, cluster: str) -> None:
        """Forget what waits of a cluster. What is in flight stays."""
        queue = self._queues.get(cluster)
        if queue:
            queue.clear()

    def has(self, cluster: str) -> bool:
        """Does something of the cluster wait, or is it in flight?"""
        return bool(self._queues.get(cluster)) or cluster in self._inflight

    async def drained(self, cluster: str) -> None:
        """Wait until nothing of the cluster waits or is in flight: its position is what a feed resumes at."""
        while self.has(cluster):
            await self.settled.wait()

    def holds(self, cluster: str, kind: type[DiffRun | GapRun | LeaveRun]) -> bool:
        """Is such a run of the cluster waiting or half done?"""
        return any(isinstance(work, kind) for work in self._queues.get(cluster, ()))

    def is_leaving(self, cluster: str) -> bool:
        """Is the cluster on its way out?"""
        return self.holds(cluster, LeaveRun)

    def gap_run(self, cluster: str) -> int:
        """Revision of the newest gap that is being recommitted; 0: none."""
        runs = [work.revision for work in self._queues.get(cluster, ()) if isinstance(work, GapRun)]
        return max(runs, default=0)

    def purge(self, markers: list[Marker]) -> None:
        """Delete these tombstones from etcd when there is time."""
        # Those that wait still are among them.
        self._purges = list(markers)
        self._wake.set()

    @property
    def waiting(self) -> int:
        """Work in all queues."""
        return sum(len(queue) for queue in self._queues.values())

    def lag(self, cluster: str) -> tuple[int, float]:
        """Work of a cluster that waits, and for how many seconds the oldest has."""
        waiting = len(self._queues.get(cluster, ()))
        return waiting, self._arrivals.lag(cluster, asyncio.get_running_loop().time()) if waiting else 0.0

    @property
    def committing(self) -> bool:
        """Is a transaction in flight?"""
        return self._done < self._started

    async def caught_up(self) -> None:
        """Wait for the transaction that is in flight now, if any: it may have any revision so far."""
        started = self._started
        while self._done < started:
            await self.settled.wait()

    def end(self) -> None:
        """The term is over: who waits for a transaction need not any more."""
        self._done = self._started
        self.settled.beat()

    # The loop.

    async def run(self) -> None:
        """Commit until cancelled, or until the term ends with an error of etcd."""
        idle = commits = 0
        pace = Pace(GATHER, GATHER_FULL)
        behind = False  # work was left that had to wait for the next batch: a key's second event, or there was no room
        while True:
            if not behind and (left := pace.left()) > 0 and self.waiting < self.limit:
                await asyncio.sleep(left)
            batch = self._build()
            behind = bool(self._queues)
            if batch:
                idle = 0
                pace.stepped(len(batch.markers))
                await self._commit(batch)
                commits += 1
                if self._purges and commits % PURGE_EVERY == 0:
                    await self._purge()  # events may never pause
            elif self._purges:
                await self._purge()
            elif batch.taken or self._queues:
                # Everything taken was known already, or a gap's recommit was empty.
                idle = 0 if batch.taken else idle + 1
                if idle > 2:
                    raise AssertionError(f"{self._label}: nothing can be taken from the queues")
                self.settled.beat()
                await asyncio.sleep(0)
            else:
                self._arrivals.clear()
                self._wake.clear()
                self.settled.beat()
                await self._wake.wait()

    def _build(self) -> Batch:
        builder = Builder(self.state, self.limit)
        batch = builder.build(self._queues, self._order)
        for cluster in [name for name, queue in self._queues.items() if not queue]:
            del self._queues[cluster]
            self._order.remove(cluster)
        if builder.dropped:
            metrics.DROPPED.labels(self._label).inc(builder.dropped)
        return batch

    async def _commit(self, batch: Batch) -> None:
        loop = asyncio.get_running_loop()
        begin, began = loop.time(), time.time_ns()
        came = self._arrivals.took(batch.clusters, self._queues, begin)
        self._inflight = batch.clusters
        self._started += 1
        try:
            revision = await self._written(batch)
        except GapReopened as reason:
            log.info("%s: gap of cluster %r: %s", self._label, batch.gap and batch.gap[0], reason)
        else:
            answered = time.time_ns()
            self._check(revision)
            change = batch.change(revision)
            self.state.apply(change)
            if self._traces is not None:
                self._traces.committed(change.markers, began, answered)
            now = loop.time()
            lags = {cluster: now - since for cluster, since in came.items()}
            self._counts.committed(len(batch.markers), now - begin, max(lags.values(), default=0.0))
            self.tally.committed(len(batch.markers), now - begin, lags)
            self._committed(change, batch.runs)
        # Not in a finally: after an error nothing is settled, the term is over.
        self._done += 1
        self._inflight = set()
        self.settled.beat()

    async def _written(self, batch: Batch) -> int:
        """Commit; while etcd is full the batch waits. That is a refusal for certain, so the term goes on and reads
        with it."""
        while True:
            try:
                revision = await self.store.commit(self.group, self.resource, self.term, self.state, batch)
            except EtcdFull as error:
                if not self.full:
                    log.error("%s: events wait: %s", self._label, error)
                self.full = str(error)
                metrics.FULL.labels(self._label).inc()
                self._done += 1
                self.settled.beat()
                await asyncio.sleep(FULL_RETRY)
                self._started += 1
            else:
                self.full = ""
                return revision

    def _check(self, revision: int) -> None:
        """Versions must grow: a store that was set back is found out before anything is numbered by it."""
        if revision <= self.state.revision:
            raise StorageChanged(
                f"etcd's revision went back from {self.state.revision} to {revision}", rewound=True
            )

    async def _purge(self) -> None:
        state = self.state
        some, self._purges = self._purges[:PURGE], self._purges[PURGE:]
        current = [one for one in some if state.index.get(one.cluster, one.namespace, one.name) is one]
        if not current:
            return
        revisions = [(one, decode(state.base, one.fleet)[0]) for one in current]
        self._started += 1
        revision = await self.store.purge(self.group, self.resource, self.term, revisions)
        self._check(revision)
        change = Change(revision, purged=[(one.cluster, one.namespace, one.name) for one in current])
        state.apply(change)
        self._committed(change, False)
        self._done += 1
        self.settled.beat()
