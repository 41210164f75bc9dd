"""Leases: which worker runs which key until when.

Token -> lease, in the order in which they end: all are as long, and a renewed one goes to the end. Whoever ends a lease
gives its key back to the queue, here, exactly once. Times are of the monotonic clock, in seconds.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from _fastpath.fair_queue import FairQueue, Item
from services.reconciler.work.mapping import Target
from services.reconciler.work.traces import NO_TRACE

if TYPE_CHECKING:
    from services.reconciler.work.seat import Seat


def new_token() -> str:
    """128 random bits."""
    return secrets.token_urlsafe(16)


class Lease:
    """One request that a worker runs. `seat` is None while its worker is not connected."""

    __slots__ = ("cancelled", "ends", "item", "priority", "seat", "target", "token", "trace", "worker")

    def __init__(self, token: str, target: Target, item: Item | None, seat: Seat, ends: float, priority: int) -> None:
        self.token = token
        self.target = target
        self.item = item
        """What the queue handed out; None of a lease that was taken over from another replica."""
        self.seat: Seat | None = seat
        self.worker = seat.worker
        self.ends = ends
        self.priority = priority
        self.trace = NO_TRACE
        self.cancelled = False
        """Its cluster left: not renewed any more, and its result means nothing."""


class Leases:
    """The leases of one controller on one replica."""

    def __init__(self, queue: FairQueue, length: float, now: Callable[[], float]) -> None:
        self.length = length
        self._queue = queue
        self._now = now
        self._leases: dict[str, Lease] = {}
        self._adopted: dict[tuple[str, str], Lease] = {}
        """(cluster, key) -> lease of keys that the queue did not hand out."""

    def __len__(self) -> int:
        return len(self._leases)

    def __iter__(self) -> Iterator[Lease]:
        return iter(list(self._leases.values()))

    def get(self, token: str) -> Lease | None:
        """The lease of a token that has not ended."""
        return self._leases.get(token)

    def grant(self, item: Item, target: Target, seat: Seat) -> Lease | None:
        """Lease a key to a worker; None when another worker runs it already: it comes again when that lease ends."""
        adopted = self._adopted.get((item.cluster, item.key))
        if adopted is not None:
            adopted.item = item
            self._queue.add(item.cluster, item.key, item.priority)
            return None
        lease = Lease(new_token(), target, item, seat, self._now() + self.length, item.priority)
        return self._put(lease)

    def adopt(self, token: str, target: Target, seat: Seat, priority: int) -> Lease | None:
        """Take over what a worker runs for a replica that is gone; None when the key is taken."""
        key = (target.cluster, target.key)
        if key in self._adopted or token in self._leases:
            return None
        lease = Lease(token, target, None, seat, self._now() + self.length, priority)
        self._adopted[key] = lease
        return self._put(lease)

    def _put(self, lease: Lease) -> Lease:
        self._leases[lease.token] = lease
        assert lease.seat is not None
        lease.seat.held.add(lease.token)
        return lease

    def renew(self, lease: Lease) -> None:
        """From now on."""
        lease.ends = self._now() + self.length
        del self._leases[lease.token]
        self._leases[lease.token] = lease

    def move(self, lease: Lease, seat: Seat) -> None:
        """Its worker is on another stream now."""
        self.detach(lease)
        lease.seat = seat
        seat.held.add(lease.token)
        self.renew(lease)

    def detach(self, lease: Lease) -> None:
        """Its worker's stream is gone; the lease goes on."""
        if lease.seat is not None:
            lease.seat.held.discard(lease.token)
            lease.seat = None

    def next_end(self) -> float | None:
        """When the first one ends."""
        return next(iter(self._leases.values())).ends if self._leases else None

    def ended(self) -> list[Lease]:
        """Those whose time is over; they are still in."""
        now = self._now()
        found = []
        for lease in self._leases.values():
            if lease.ends > now:
                break
            found.append(lease)
        return found

    def end(self, lease: Lease) -> None:
        """Take a lease out and unlock its key: what was added to it meanwhile is queued then."""
        del self._leases[lease.token]
        self.detach(lease)
        if self._adopted.get((lease.target.cluster, lease.target.key)) is lease:
            del self._adopted[lease.target.cluster, lease.target.key]
        if lease.item is not None:
            self._queue.done(lease.item)
