"""Reservations of one member: what is promised but not yet running there.

A reservation stands for all pods of a workload's share. Pods of its owner that exist on the member count by
themselves, so only the missing ones are held: nothing is counted twice and nothing is free for a moment
between the confirmation and the pods' creation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from services.scheduler.capacity import Allocation, Capacity
from services.scheduler.shape import Shape


class OwnerKey(NamedTuple):
    """Whose pods: namespace, kind, name. Pods of a Deployment's ReplicaSets are the Deployment's."""

    namespace: str
    kind: str
    name: str


@dataclass(eq=False, slots=True)
class Share:
    """Pods of one shape in a reservation."""

    shape: Shape
    count: int
    held: int = 0
    allocation: Allocation = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Reservation:
    """Held by `id` (the workload's uid); ends at `expires` (monotonic seconds) unless confirmed."""

    id: str
    attempt: int
    owner: OwnerKey
    shares: list[Share]
    expires: float
    confirmed: bool = False

    @property
    def count(self) -> int:
        """Pods that it stands for."""
        return sum(share.count for share in self.shares)


class Ledger:
    """All reservations of one member. O(shares) an operation, beside the first fit over the nodes."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._by_id: dict[str, Reservation] = {}
        self._by_owner: dict[OwnerKey, set[str]] = {}
        self.pods: Counter[OwnerKey] = Counter()
        """Pods on the member that have not ended, by owner."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Reservation]:
        return iter(self._by_id.values())

    def get(self, id_: str) -> Reservation | None:
        """Return a reservation."""
        return self._by_id.get(id_)

    def ids_of(self, owner: OwnerKey) -> list[str]:
        """Ids of the confirmed reservations of an owner."""
        return [id_ for id_ in self._by_owner.get(owner, ()) if self._by_id[id_].confirmed]

    def put(self, reservation: Reservation) -> int:
        """Store a reservation in place of one of the same id; returns how many of its pods have room.

        Pods of its owner that exist already have room by definition.
        """
        self.drop(reservation.id)
        self._by_id[reservation.id] = reservation
        self._by_owner.setdefault(reservation.owner, set()).add(reservation.id)
        missing = self.rebalance(reservation)
        return reservation.count - missing

    def drop(self, id_: str) -> bool:
        """Give a reservation's room back; says whether there was one."""
        reservation = self._by_id.pop(id_, None)
        if reservation is None:
            return False
        owners = self._by_owner[reservation.owner]
        owners.discard(id_)
        if not owners:
            del self._by_owner[reservation.owner]
        for share in reservation.shares:
            self._capacity.give_back(share.shape, share.allocation, share.held)
            share.held = 0
        return True

    def rebalance(self, reservation: Reservation, prefer: str = "") -> int:
        """Hold exactly what is missing of a reservation's pods; returns how many found no room."""
        live = self.pods.get(reservation.owner, 0)
        without_room = 0
        for share in reservation.shares:
            present = min(live, share.count)
            live -= present
            wanted = share.count - present
            if share.held > wanted:
                self._capacity.give_back(share.shape, share.allocation, share.held - wanted, prefer)
                share.held = wanted
            elif share.held < wanted:
                more = self._capacity.hold(share.shape, wanted - share.held)
                share.allocation.extend(more)
                share.held += sum(number for _, number in more)
            without_room += wanted - share.held
        return without_room

    def pod_came(self, owner: OwnerKey, node: str = "") -> None:
        """A pod of `owner` exists from now on; room held for it is given back, that on `node` first."""
        self.pods[owner] += 1
        self._rebalance_owner(owner, node)

    def pod_went(self, owner: OwnerKey) -> None:
        """A pod of `owner` ended; its reservation holds room for the next one again."""
        self.pods[owner] -= 1
        if self.pods[owner] <= 0:
            del self.pods[owner]
        self._rebalance_owner(owner)

    def _rebalance_owner(self, owner: OwnerKey, prefer: str = "") -> None:
        for id_ in self._by_owner.get(owner, ()):
            self.rebalance(self._by_id[id_], prefer)

    def rebalance_all(self) -> None:
        """After nodes changed: reservations that lost room look for it elsewhere."""
        for reservation in self._by_id.values():
            for share in reservation.shares:
                kept = [(n, c) for n, c in share.allocation if self._capacity.nodes.get(n.name) is n]
                share.allocation[:] = kept
                share.held = sum(number for _, number in kept)
            self.rebalance(reservation)

    def expire(self, now: float) -> list[str]:
        """Drop unconfirmed reservations whose time is over; returns their ids."""
        over = [r.id for r in self._by_id.values() if not r.confirmed and r.expires <= now]
        for id_ in over:
            self.drop(id_)
        return over

    def resync(self, placed: Iterable[Reservation]) -> None:
        """Replace the confirmed reservations by `placed`; unconfirmed ones run on to their end."""
        fresh = list(placed)
        known = {reservation.id for reservation in fresh}
        for id_ in [r.id for r in self._by_id.values() if r.confirmed and r.id not in known]:
            self.drop(id_)
        for reservation in fresh:
            self.put(reservation)


def make_shares(pod_sets: Sequence[tuple[Shape, int]]) -> list[Share]:
    """Shares of the pod sets that have pods."""
    return [Share(shape, count) for shape, count in pod_sets if count > 0]
