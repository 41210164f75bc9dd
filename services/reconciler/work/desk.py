"""The desk of this very replica: a seat at its controller, for a session that lives here too."""

from __future__ import annotations

from reclock.reconciler.v1 import reconciler_pb2 as pb
from services.reconciler.work.controller import Controller
from services.reconciler.work.hub import Hub
from services.reconciler.work.seat import Seat
from services.reconciler.work.session import Session


def take(controller: Controller, seat: Seat, message: pb.WorkRequest) -> None:
    """Act on what a worker said, on the replica that owns what it is about."""
    kind = message.WhichOneof("message")
    controller.handout.heard(seat)
    if kind == "done":
        controller.handout.done(seat, message.done)
    elif kind == "heartbeat":
        controller.handout.heartbeat(seat, message.heartbeat)
    elif kind == "resume":
        controller.handout.resume(seat, message.resume)
    elif kind == "mapped":
        controller.mapped(seat, message.mapped)
    elif kind == "due":
        controller.due(message.due)
    elif kind == "drain":
        seat.draining = True
        seat.credit = 0


class LocalDesk:
    """Desk for the session, Port for the seat."""

    def __init__(self, hub: Hub, session: Session) -> None:
        self.name = hub.replica
        self._hub = hub
        self._session = session
        worker = session.worker
        self._seat = Seat(self, worker.name, session.user, worker.max_in_flight, worker.version, hub.replica)
        session.join(self)
        self._controller = hub.register(session.spec, self._seat, session.registered_us)

    # Desk.

    def grant(self, credits: int, busy: int) -> None:
        """See Desk."""
        self._controller.handout.grant(self._seat, credits, busy)

    def say(self, message: pb.WorkRequest) -> None:
        """See Desk."""
        take(self._controller, self._seat, message)

    def close(self, *, orderly: bool) -> None:
        """See Desk."""
        self._hub.leave(self._controller, self._seat, orderly=orderly)

    # Port.

    def hungry(self, seat: Seat) -> None:
        """See Port."""
        self._session.hungry(self)

    def unused(self, seat: Seat, credits: int) -> None:
        """See Port."""
        self._session.unused(self, credits)

    def deliver(self, seat: Seat, message: pb.WorkResponse) -> None:
        """See Port."""
        self._session.deliver(self, message)

    def replaced(self, seat: Seat) -> None:
        """See Port."""
        self._session.replaced = True
        self._session.finish()
