"""Handing out: from the queue to workers under leases, and what they answer.

Credit flows first: when something is ready and no worker's credit is left, all seats are told (`hungry`); a session that
has room grants some; what there is no work for goes back at once, so that another replica can have it. So a worker that
several replicas serve never holds more than it may, and none of its room lies idle.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from google.protobuf.duration_pb2 import Duration
from prometheus_client import Counter

from _fastpath.fair_queue import Item, ShutDown
from reclock.reconciler.v1 import reconciler_pb2 as pb
from services.reconciler.work.leases import Lease, Leases
from services.reconciler.work.mapping import Target, target_of
from services.reconciler.work.seat import Seat
from services.reconciler.work.spec import seconds

if TYPE_CHECKING:
    from services.reconciler.work.controller import Controller

log = logging.getLogger(__name__)

RESULTS = Counter("reclock_reconciler_results_total", "Leases that ended, by outcome", ["outcome"])
REMEMBERED = 10_000
"""Ended leases whose end is still known, so that a late Done is told why."""
BURST = 64
"""Requests handed out before others of the event loop have their turn."""
WARN_AFTER = 5
INVALID_PAUSE = 0.05
"""Seconds until it is looked again whether this replica may hand out."""


def duration(value: float) -> Duration:
    """Seconds as protobuf has them."""
    whole = int(value)
    return Duration(seconds=whole, nanos=int((value - whole) * 1e9))


class Handout:
    """The pump and the leases of one controller on one replica."""

    def __init__(
        self, controller: Controller, lease: float, valid: Callable[[], bool], now: Callable[[], float]
    ) -> None:
        self._controller = controller
        self._queue = controller.queue
        self._now = now
        self._valid = valid
        """Whether this replica still owns for sure what it owned; asked before each lease is given or renewed."""
        self.leases = Leases(controller.queue, lease, now)
        self._credit = asyncio.Event()
        self._leased = asyncio.Event()
        self._ends: dict[str, pb.CancelReason.ValueType] = {}
        """Token -> how its lease ended, of the newest ones."""
        self._length = duration(lease)

    # The pump.

    def wake(self) -> None:
        """Somebody may be asked for credit, or has given some."""
        self._credit.set()

    def grant(self, seat: Seat, credits: int, busy: int) -> None:
        """A session lets `seat` have so many more requests."""
        seat.busy = busy
        seat.asked = False
        seat.credit += credits
        if seat.silent or not self._queue.has_ready():
            # What it was asked for went elsewhere meanwhile; another replica may need it.
            self._give_back(seat)
        self._credit.set()

    def heard(self, seat: Seat) -> None:
        """The worker has said something."""
        if seat.silent:
            seat.silent = False
            self._credit.set()

    async def pump(self) -> None:
        """Hand out until the queue is shut down."""
        burst = 0
        while True:
            self._give_back_unless_ready()
            try:
                await self._queue.ready()
            except ShutDown:
                return
            seat = self._choose()
            if seat is None:
                self._credit.clear()
                self._ask()
                if not self._credit.is_set():
                    await self._credit.wait()
                continue
            if not self._valid():
                await asyncio.sleep(INVALID_PAUSE)
                continue
            item = self._queue.get_nowait()
            if item is not None:
                self._hand(item, seat)
            burst += 1
            if burst >= BURST:
                burst = 0
                await asyncio.sleep(0)

    def _give_back_unless_ready(self) -> None:
        if len(self._queue) and self._queue.has_ready():
            return
        for seat in self._controller.seats:
            self._give_back(seat)

    def _give_back(self, seat: Seat) -> None:
        if seat.credit:
            credits, seat.credit = seat.credit, 0
            seat.port.unused(seat, credits)

    def _choose(self) -> Seat | None:
        """The least loaded worker with credit."""
        return min((seat for seat in self._controller.seats if seat.credit > 0), key=lambda seat: seat.load, default=None)

    def _ask(self) -> None:
        for seat in list(self._controller.seats):
            if not seat.asked and not seat.draining and not seat.silent:
                seat.asked = True
                seat.port.hungry(seat)

    def _hand(self, item: Item, seat: Seat) -> None:
        target = target_of(item.cluster, item.key)
        lease = self.leases.grant(item, target, seat)
        if lease is None:
            return
        seat.credit -= 1
        self._leased.set()
        part = self._controller.parts[item.cluster]
        lease.trace = self._controller.traces.take(target)
        seat.deliver(request=pb.Request(
            token=lease.token, cluster=item.cluster, namespace=target.namespace, name=target.name,
            priority=item.priority, attempt=item.attempts, lease=self._length, source=target.source,
            waited=duration(item.waited), fence=part.engaged.fence, traceparent=lease.trace.parent,
            heartbeat=seat.beat,
        ))  # fmt: skip

    # What workers say.

    def done(self, seat: Seat, done: pb.Done) -> None:
        """The result of a request; one that is not this worker's to give is ignored, and it is told."""
        lease = self.leases.get(done.token)
        if lease is None or lease.seat is not seat:
            code, message = self._no_lease(done.token, lease)
            if message:
                seat.deliver(problem=pb.Problem(token=done.token, code=code, message=message, field="done.token"))
            return
        self._settle(lease, done)

    def _no_lease(self, token: str, lease: Lease | None) -> tuple[pb.ProblemCode.ValueType, str]:
        if lease is not None:
            return pb.PROBLEM_CODE_FOREIGN_TOKEN, "the request is leased to another worker"
        reason = self._ends.get(token)
        if reason == pb.CANCEL_REASON_CLUSTER_LEFT:
            return pb.PROBLEM_CODE_UNSPECIFIED, ""
        if reason:
            return pb.PROBLEM_CODE_LEASE_ENDED, "its lease had ended: the result was ignored"
        return pb.PROBLEM_CODE_UNKNOWN_TOKEN, "no request has this token: it was answered before, or never given"

    def _settle(self, lease: Lease, done: pb.Done) -> None:
        cluster, key = lease.target.cluster, lease.target.key
        priority = done.priority if done.HasField("priority") else lease.priority
        outcome = "success"
        if lease.cancelled:
            outcome = "cancelled"
        elif done.error and not done.terminal:
            outcome = "error"
            self._queue.add_rate_limited(cluster, key, priority)
        else:
            self._queue.forget(cluster, key)
            if done.error:
                outcome = "terminal"
            elif done.HasField("requeue_after"):
                outcome = "again"
                self._queue.add_after(cluster, key, seconds(done.requeue_after), priority)
        if done.error:
            attempts = lease.item.attempts if lease.item is not None else 0
            level = logging.WARNING if done.terminal or attempts >= WARN_AFTER else logging.INFO
            log.log(level, "controller %s: %s %s: %s", self._controller.name, cluster or "host", key, done.error[:500])
        self._end(lease, outcome)

    def heartbeat(self, seat: Seat, beat: pb.Heartbeat) -> None:
        """Renew what the worker holds, or what it names of that."""
        seat.beat = beat.sequence
        tokens: Iterable[str] = beat.tokens or list(seat.held)
        renewed = []
        for token in tokens:
            lease = self.leases.get(token)
            if lease is not None and lease.seat is seat and not lease.cancelled and self._valid():
                self.leases.renew(lease)
                renewed.append(token)
        seat.deliver(renewed=pb.Renewed(sequence=beat.sequence, tokens=renewed))

    def resume(self, seat: Seat, resume: pb.Resume) -> None:
        """Give the worker's leases to its new stream; what it runs no more is anybody's at once."""
        if not self._valid():
            return
        held = {each.token: each for each in resume.held}
        named = set(resume.tokens) | set(held)
        resumed = []
        for lease in self.leases:
            if lease.worker != seat.worker or lease.cancelled:
                continue
            if lease.seat is seat:
                # It says again what it runs.
                resumed += [lease.token] if lease.token in named else []
            elif lease.token in named:
                self.leases.move(lease, seat)
                resumed.append(lease.token)
            else:
                self._back(lease)
        for token in sorted(named - set(resumed)):
            if token in held and self._adopt(seat, held[token]):
                resumed.append(token)
            elif token not in seat.held:
                seat.deliver(cancelled=pb.Cancelled(
                    token=token, reason=pb.CANCEL_REASON_UNKNOWN, message="no lease of this worker has this token",
                ))  # fmt: skip
        self._leased.set()
        seat.deliver(resumed=pb.Resumed(tokens=resumed))
        if resume.sole:
            self._controller.sole(seat)

    def only(self, seat: Seat) -> None:
        """No other worker runs anything, whatever it was given."""
        for lease in self.leases:
            if lease.worker != seat.worker and not lease.cancelled:
                self._back(lease)

    def _adopt(self, seat: Seat, held: pb.Held) -> bool:
        """While the cluster is closed for a former owner's leases, what a worker says it runs is believed."""
        part = self._controller.parts.get(held.cluster)
        if part is None or part.opening is None or held.token in self._ends:
            return False
        target = Target(held.cluster, held.namespace, held.name, held.source)
        return self.leases.adopt(held.token, target, seat, 0) is not None

    # Ends of leases.

    def leave(self, seat: Seat, *, orderly: bool) -> None:
        """The worker's stream is over."""
        for token in list(seat.held):
            lease = self.leases.get(token)
            assert lease is not None
            if orderly:
                self._back(lease)
            else:
                self.leases.detach(lease)

    def _back(self, lease: Lease) -> None:
        """Its worker does not run it any more, and said so."""
        if not lease.cancelled:
            self._queue.add(lease.target.cluster, lease.target.key, lease.priority)
        self._note(lease.token, pb.CANCEL_REASON_LEASE_ENDED)
        self._end(lease, "returned")

    def _end(self, lease: Lease, outcome: str) -> None:
        RESULTS.labels(outcome).inc()
        self._controller.traces.end(lease.target, lease.trace, outcome)
        self.leases.end(lease)

    def cancel(self, cluster: str, reason: pb.CancelReason.ValueType) -> None:
        """A cluster is gone: its running requests are told, and stay locked until they end."""
        for lease in self.leases:
            if lease.target.cluster == cluster and not lease.cancelled:
                lease.cancelled = True
                self._note(lease.token, reason)
                if lease.seat is not None:
                    lease.seat.deliver(cancelled=pb.Cancelled(
                        token=lease.token, reason=reason,
                        message="the cluster left" if reason == pb.CANCEL_REASON_CLUSTER_LEFT else "another replica has the cluster",
                    ))  # fmt: skip

    def _note(self, token: str, reason: pb.CancelReason.ValueType) -> None:
        self._ends[token] = reason
        while len(self._ends) > REMEMBERED:
            del self._ends[next(iter(self._ends))]

    async def watch_leases(self) -> None:
        """End leases in time; ask again what no worker answered."""
        length = self.leases.length
        while True:
            ends = self.leases.next_end()
            if ends is None and not len(self._controller.maps):
                self._leased.clear()
                try:
                    async with asyncio.timeout(length):
                        await self._leased.wait()
                except TimeoutError:
                    pass  # questions may have come
            else:
                wait = min((ends if ends is not None else self._now() + length) - self._now(), length / 4)
                due = self._now() + wait
                await asyncio.sleep(max(wait, 0.001))
                if self._now() - due > length / 8:
                    # This process did not run: heartbeats that came in time may not have been read yet.
                    await asyncio.sleep(length / 8)
            for lease in self.leases.ended():
                self._expire(lease)
            self._controller.maps.retry()

    def _expire(self, lease: Lease) -> None:
        if lease.seat is not None:
            # Gone, or as good as: it gets nothing more until it says something.
            lease.seat.silent = True
            self._give_back(lease.seat)
        if lease.seat is not None and not lease.cancelled:
            lease.seat.deliver(cancelled=pb.Cancelled(
                token=lease.token, reason=pb.CANCEL_REASON_LEASE_ENDED, message="the lease was not renewed in time",
            ))  # fmt: skip
        if not lease.cancelled:
            self._note(lease.token, pb.CANCEL_REASON_LEASE_ENDED)
            log.info("controller %s: the lease of %s ended: given out again", self._controller.name, lease.target)
            self._queue.add_rate_limited(lease.target.cluster, lease.target.key, lease.priority)
        self._end(lease, "expired")
