"""A worker as the controller on one replica sees it: how much it may be given, what it holds, how to reach it."""

from __future__ import annotations

from typing import Protocol

from reclock.reconciler.v1 import reconciler_pb2 as pb
from services.common.kube.reviews import User


class Port(Protocol):
    """The way from a seat to the worker's session. Nothing here waits."""

    def hungry(self, seat: Seat) -> None:
        """There is work and no credit for it."""

    def unused(self, seat: Seat, credits: int) -> None:
        """Credit that there is no work for goes back."""

    def deliver(self, seat: Seat, message: pb.WorkResponse) -> None:
        """Say something to the worker."""

    def replaced(self, seat: Seat) -> None:
        """The same worker has connected anew: this stream is over."""


class Seat:
    """Credit is how many more requests its session lets this replica hand out; asked for, and given back."""

    __slots__ = ("asked", "at", "beat", "busy", "credit", "draining", "held", "max_in_flight", "port", "replica", "silent", "user", "version", "worker")

    def __init__(self, port: Port, worker: str, user: User, max_in_flight: int, version: int, replica: str) -> None:
        self.port = port
        self.worker = worker
        self.user = user
        self.max_in_flight = max_in_flight
        self.version = version
        self.replica = replica
        """Where the worker is connected."""
        self.at = 0
        """When the worker registered, µs since the epoch."""
        self.beat = 0
        """Sequence of its last heartbeat."""
        self.credit = 0
        self.asked = False
        self.busy = 0
        """Requests that the worker holds from all replicas, as its session said last."""
        self.draining = False
        self.silent = False
        """It let a lease end, and has said nothing since."""
        self.held: set[str] = set()

    @property
    def load(self) -> float:
        """How full the worker is, 0 to 1."""
        return max(self.busy, len(self.held)) / self.max_in_flight

    def deliver(self, **message: object) -> None:
        """Say something to the worker, unless its version of the protocol had no such message."""
        if self.version >= 1 or "request" in message or "registered" in message:
            self.port.deliver(self, pb.WorkResponse(**message))  # type: ignore[arg-type]
