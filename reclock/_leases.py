"""The requests that a worker holds, and when their leases were last known to be good. No I/O: time is an argument."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from reclock._sync import Caller
from reclock.reconciler.v1 import reconciler_pb2 as pb

WORST = 0.5
"""Part of a lease without renewal after which a handler is stopped: the other half is for it to come to its end."""


@dataclass(eq=False)
class Held:
    """A leased request. `renewed` is a time at which the lease is known to have begun anew."""

    message: pb.Request
    lease: float
    renewed: float
    task: asyncio.Task[pb.Done] | None = None
    call: Caller | None = None
    """What the thread of a plain handler calls with."""
    lost: str = ""
    """Why the handler was stopped; its result does not count then."""
    gone: bool = False
    """The service has ended the lease: it wants to hear no more of it."""
    done: pb.Done | None = field(default=None, repr=False)
    """The result, while it could not be sent."""

    @property
    def token(self) -> str:
        """Token of the lease."""
        return str(self.message.token)

    def stop(self, why: str) -> None:
        """Cancel the handler; idempotent. A thread is told, and cannot be stopped."""
        if self.lost or self.done is not None:
            return
        self.lost = why
        if self.call is not None:
            self.call.lose()
        if self.task is not None:
            self.task.cancel(why)


class Leases:
    """By token; each is of one controller's worker."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def take(self, message: pb.Request, lease: float, given: float) -> Held | None:
        """Take a request in whose lease was `given` then or later; None when it is held already (its token was repeated)."""
        if message.token in self._held:
            return None
        seconds = message.lease.ToTimedelta().total_seconds() or lease
        held = self._held[message.token] = Held(message, seconds, given)
        return held

    def get(self, token: str) -> Held | None:
        """The request of a token."""
        return self._held.get(token)

    def drop(self, token: str) -> None:
        """It is answered, or nobody's any more."""
        self._held.pop(token, None)

    def renew(self, tokens: Iterable[str], at: float) -> None:
        """The leases of these began anew at `at` or later."""
        for token in tokens:
            if (held := self._held.get(token)) is not None:
                held.renewed = max(held.renewed, at)

    def overdue(self, now: float) -> list[Held]:
        """Whose handler has to stop: not renewed for half a lease."""
        return [
            held
            for held in self._held.values()
            if not held.lost and held.done is None and now - held.renewed > held.lease * WORST
        ]

    def running(self) -> list[Held]:
        """Whose handler has not ended."""
        return [held for held in self._held.values() if held.done is None]

    def resume(self, *, sole: bool = False) -> pb.Resume:
        """What a stream that connects anew has to say: what still runs, and what is done and not told yet."""
        kept = [held.message for held in self._held.values() if not held.lost]
        return pb.Resume(
            tokens=[one.token for one in kept],
            held=[
                pb.Held(token=one.token, cluster=one.cluster, namespace=one.namespace, name=one.name, source=one.source)
                for one in kept
            ],
            sole=sole,
        )
