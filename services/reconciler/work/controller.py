"""One controller on one replica: the queue of the clusters that the replica owns, its sources, who works.

Everything here runs in the event loop and, but for the two tasks at the end, without waiting; so each step sees a whole
state. `seats` are the workers, wherever they are connected.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

from _fastpath.fair_queue import ClusterStats, FairQueue
from reclock.reconciler.v1 import reconciler_pb2 as pb
from services.common.tasks import Tasks
from services.reconciler.work.feeds import Feeds
from services.reconciler.work.handout import Handout
from services.reconciler.work.index import Indexes
from services.reconciler.work.mapping import HOST, ByWorker, ForObject, Target, to_other_clusters
from services.reconciler.work.maps import Maps, Question
from services.reconciler.work.parts import Engaged, Part, Steering
from services.reconciler.work.predicates import ADDED, DELETED, MODIFIED
from services.reconciler.work.seat import Seat
from services.reconciler.work.sources import Sources
from services.reconciler.work.spec import (
    PRIORITY,
    ControllerSpec,
    SourceSpec,
    seconds,
    takes_host,
    takes_members,
)
from services.reconciler.work.traces import Traces

log = logging.getLogger(__name__)

Obj = dict[str, Any]
PROBLEMS_EVERY = 5.0
"""Seconds between looks at what cannot be followed."""
PROBLEMS_MAX = 100
INITIAL = -100
"""Added to the priority of what a first list brings."""


class Elsewhere(Protocol):
    """Where requests go whose cluster another replica owns."""

    def __call__(self, controller: str, target: Target, priority: int) -> None: ...


def nowhere(controller: str, target: Target, priority: int) -> None:
    """With one replica, a cluster that is not engaged here is engaged nowhere."""


class Controller:
    """See the module. `closed` once nobody works and it was given up."""

    def __init__(
        self, spec: ControllerSpec, feeds: Feeds, lease: float, failed: Callable[[str, BaseException | None], None],
        elsewhere: Elsewhere = nowhere, valid: Callable[[], bool] = lambda: True,
        now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.spec = spec
        self.queue = FairQueue(
            workers=1, base_delay=spec.backoff_base, max_delay=spec.backoff_max, priority_first=spec.priority_first
        )
        self.parts: dict[str, Part] = {}
        self.steering = Steering()
        self.seats: list[Seat] = []
        self.indexes = Indexes(spec.indexes)
        self.traces = Traces()
        self._elsewhere = elsewhere
        self._now = now
        self.tasks = Tasks(f"controller {spec.name}", failed)
        self.sources = Sources(feeds, self._event, lambda cluster, ident: self.indexes.drop(cluster, ident))
        self.maps = Maps(lambda: self.seats, lease, now)
        self.handout = Handout(self, lease, valid, now)
        self.tasks.spawn(self.handout.pump(), "pump")
        self.tasks.spawn(self.handout.watch_leases(), "leases", root=True)
        self.tasks.spawn(self._tell_problems(), "problems", root=True)

    @property
    def name(self) -> str:
        """Name of the controller."""
        return self.spec.name

    # Registration and workers.

    def update(self, spec: ControllerSpec) -> None:
        """Take the newest registration; sources that did not change go on."""
        old, self.spec = self.spec, spec
        self.queue.base_delay, self.queue.max_delay = spec.backoff_base, spec.backoff_max
        if spec.indexes != old.indexes:
            self.indexes = Indexes(spec.indexes)
        for part in self.parts.values():
            # With other indexes every object has to be seen again.
            self.sources.sync(part, spec.sources, anew=spec.indexes != old.indexes)
        self._steer()

    def sit(self, seat: Seat) -> None:
        """A worker has come; an older stream of the same worker is over, be it this one, relayed anew."""
        if any(old.worker == seat.worker and old.at > seat.at for old in self.seats):
            seat.port.replaced(seat)
            return
        for old in [old for old in self.seats if old.worker == seat.worker]:
            self.leave(old, orderly=False)
            old.port.replaced(old)
        self.seats.append(seat)
        self._steer()
        self.maps.push()
        self.handout.wake()
        for cluster in self.parts:
            self._ask(seat, cluster)

    def leave(self, seat: Seat, *, orderly: bool) -> None:
        """A worker is gone: in order, then what it holds is anybody's at once; else when its leases end."""
        if seat not in self.seats:
            return
        self.seats.remove(seat)
        seat.credit = 0
        self.handout.leave(seat, orderly=orderly)
        self.maps.left(seat)
        self._steer()

    # Clusters.

    def wants(self, cluster: str, labels: dict[str, str]) -> bool:
        """Whether a cluster (the host is "") is the controller's business."""
        scopes = [self.spec.scope, *(source.scope for source in self.spec.sources if not source.is_fleet)]
        if cluster == HOST:
            return any(map(takes_host, scopes)) or any(
                source.is_fleet or to_other_clusters(source.to) for source in self.spec.sources
            )
        return any(map(takes_members, scopes)) and self.spec.cluster_selector.matches(labels)

    def engage(self, engaged: Engaged) -> None:
        """Hand out requests of a cluster from now on."""
        part = self.parts[engaged.cluster] = Part(engaged)
        cluster = engaged.cluster
        self.queue.engage(cluster, self.steering.weight(self.spec, cluster), self.steering.cap(self.spec, cluster))
        wait = engaged.closed_until - self._now()
        if wait > 0:
            part.opening = asyncio.get_running_loop().call_later(wait, self._open, part)
        self._pause(cluster)
        self.sources.sync(part, self.spec.sources)
        for seat in self.seats:
            self._ask(seat, cluster)

    def _ask(self, seat: Seat, cluster: str) -> None:
        """Let a worker tell what is due in a cluster that it or we have begun with, where it is workers that know."""
        if self.spec.channels:
            seat.deliver(tell=pb.Tell(cluster=cluster))

    def disengage(self, cluster: str, reason: pb.CancelReason.ValueType) -> None:
        """The cluster left, or is another replica's now: what waits is dropped, what runs is told."""
        part = self.parts.pop(cluster, None)
        if part is None:
            return
        part.close()
        dropped = self.queue.disengage(cluster)
        for source in self.spec.sources:
            self.indexes.drop(cluster, source.ident)
        self.maps.drop(cluster)
        self.traces.drop(cluster)
        self.handout.cancel(cluster, reason)
        log.info("controller %s: %s is gone, %d waiting requests dropped", self.name, cluster or "the host", dropped)

    def cluster_event(self, event: str, obj: Obj, old: Obj | None, *, initial: bool = False) -> None:
        """A cluster joined, changed or left, told as an object named as it."""
        for source in self.spec.sources:
            if source.is_fleet and self.spec.cluster_selector.matches(obj["metadata"].get("labels") or {}):
                self._event(source, HOST, event, obj, old, initial)

    def hold(self, cluster: str) -> bool:
        """Hand out nothing more of a cluster that is `held`; whether nothing of it is in flight."""
        if cluster in self.parts:
            self._pause(cluster)
        return not any(lease.target.cluster == cluster for lease in self.handout.leases)

    def replay(self, cluster: str) -> None:
        """Make the requests anew that objects of other clusters make for one whose owner has changed."""
        for source in self.spec.sources:
            if to_other_clusters(source.to) and (cluster == HOST or isinstance(source.to, ByWorker)):
                for part in self.parts.values():
                    for subscription in part.feeds.get(source, ()):
                        subscription.replay()

    # Steering.

    def steer(self, cluster: str, weight: float | None, cap: int | None, paused: bool | None) -> None:
        """Weight, cap and pause of a cluster, at once; kept for when it comes, or comes back."""
        if weight is not None:
            self.steering.weights[cluster] = weight
        if cap is not None:
            self.steering.caps[cluster] = cap
        if paused is not None:
            (self.steering.paused.add if paused else self.steering.paused.discard)(cluster)
        if cluster in self.parts:
            self.queue.set_weight(cluster, self.steering.weight(self.spec, cluster))
            self.queue.set_cap(cluster, self.steering.cap(self.spec, cluster))
            self._pause(cluster)

    def stats(self) -> list[ClusterStats]:
        """The queue's figures; `paused` as the operator set it."""
        return [row._replace(paused=row.cluster in self.steering.paused) for row in self.queue.stats()]

    def _steer(self) -> None:
        """Default caps follow the number of workers."""
        self.queue.workers = max(1, sum(seat.max_in_flight for seat in self.seats))
        for cluster in self.parts:
            self.queue.set_weight(cluster, self.steering.weight(self.spec, cluster))
            self.queue.set_cap(cluster, self.steering.cap(self.spec, cluster))

    def _pause(self, cluster: str) -> None:
        part = self.parts[cluster]
        held = cluster in self.steering.paused or part.opening is not None or part.engaged.held
        (self.queue.pause if held else self.queue.resume)(cluster)

    def _open(self, part: Part) -> None:
        part.opening = None
        self._pause(part.engaged.cluster)

    def sole(self, seat: Seat) -> None:
        """Nobody but this worker works, and it has named what it runs: see Resume.sole."""
        for other in [other for other in self.seats if other is not seat]:
            self.leave(other, orderly=True)
            other.port.replaced(other)
        self.handout.only(seat)
        for part in self.parts.values():
            if part.opening is not None:
                part.opening.cancel()
                self._open(part)

    # Events.

    def _event(self, source: SourceSpec, cluster: str, event: str, obj: Obj, old: Obj | None, initial: bool) -> None:
        if event == DELETED:
            self.indexes.remove(cluster, source.ident, obj)
        else:
            self.indexes.put(cluster, source.ident, obj)
        if not source.predicates.passes(event, obj, old):
            return
        if isinstance(source.to, ByWorker):
            self.maps.ask(Question(source, cluster, obj, event == DELETED, initial))
            return
        targets = set(source.to.targets(cluster, obj))
        if event == MODIFIED and old is not None and not isinstance(source.to, ForObject):
            # What it named before has lost it.
            targets.update(source.to.targets(cluster, old))
        priority = self.priority(source, initial and event == ADDED)
        for target in targets:
            self.add(target._replace(source=source.request_source), priority)

    def priority(self, source: SourceSpec, initial: bool) -> int:
        """Priority of a source's requests."""
        return max(source.priority + INITIAL, -PRIORITY) if initial else source.priority

    def add(self, target: Target, priority: int) -> None:
        """Queue a request; one for a cluster of another replica goes there."""
        if target.cluster not in self.parts:
            self._elsewhere(self.name, target, priority)
            return
        self.queue.add(target.cluster, target.key, priority)
        self.traces.note(target)

    def mapped(self, seat: Seat, answer: pb.Mapped) -> None:
        """A worker said which requests an object makes."""
        question = self.maps.answer(seat, answer.id)
        if question is None:
            seat.deliver(problem=pb.Problem(
                token=str(answer.id), code=pb.PROBLEM_CODE_UNKNOWN_TOKEN, field="mapped.id",
                message="no such question is open for this worker",
            ))  # fmt: skip
            return
        usual = self.priority(question.source, question.initial)
        for key in answer.keys:
            cluster = key.cluster if key.HasField("cluster") else question.cluster
            source = key.source or question.source.request_source
            self.add(
                Target(cluster, key.namespace, key.name, source), key.priority if key.HasField("priority") else usual
            )

    def due(self, due: pb.Due) -> None:
        """A worker said what is due; of clusters of other replicas those are told as well."""
        channels = self.spec.channels
        for key in due.keys:
            source = channels.get(key.source)
            if source is None or key.cluster not in self.parts:
                continue
            target = Target(key.cluster, key.namespace, key.name, source.request_source)
            priority = key.priority if key.HasField("priority") else source.priority
            if after := seconds(key.after):
                self.queue.add_after(target.cluster, target.key, after, priority)
                self.traces.note(target)
            else:
                self.add(target, priority)

    def problems(self) -> list[str]:
        """What its sources cannot follow now."""
        return sorted({problem for part in self.parts.values() for problem in part.problems()})

    async def _tell_problems(self) -> None:
        """Tell the workers what cannot be followed, once for each time that it comes up."""
        told: set[str] = set()
        while True:
            await asyncio.sleep(PROBLEMS_EVERY)
            now = set(self.problems()[:PROBLEMS_MAX])
            for text in sorted(now - told):
                for seat in self.seats:
                    seat.deliver(problem=pb.Problem(code=pb.PROBLEM_CODE_SOURCE, message=text))
            told = now

    async def close(self) -> None:
        """Stop all; leases are void."""
        for cluster in list(self.parts):
            self.disengage(cluster, pb.CANCEL_REASON_MOVED)
        self.queue.shut_down()
        await self.tasks.close()
