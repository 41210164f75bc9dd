"""Walks a resource's log from a version on."""

from __future__ import annotations

from typing import Protocol

from _fastpath.marker import Marker
from services.aggregator.clock.log import Log
from services.aggregator.clock.pulse import Pulse
from services.aggregator.clock.state import State
from services.aggregator.clock.topics import Topic, Topics, Waiter
from services.common.errors import expired


class HasLog(Protocol):
    """What a cursor walks. `state` is replaced when another log is read from etcd."""

    state: State
    pulse: Pulse
    topics: Topics


def too_old(version: int, floor: int) -> Exception:
    """410 in Kubernetes' words."""
    return expired(f"too old resource version: {version} ({floor})")


class Cursor:
    """One watch's place. `position`: everything up to it was taken."""

    __slots__ = ("_log", "_owner", "_sequence", "_waiter", "position")

    def __init__(self, owner: HasLog, after: int) -> None:
        self._owner = owner
        self.position = after
        self._log: Log | None = None
        self._sequence = 0
        self._waiter: Waiter | None = None
        self._place()

    def _place(self) -> Log:
        """StatusError 410 when the log does not reach back to the position."""
        state = self._owner.state
        if self.position < state.floor:
            raise too_old(self.position, state.floor)
        if self._log is not state.log:
            self._log = state.log
            self._sequence = self._log.after(self.position)
        return self._log

    def take(self, limit: int = 512) -> list[Marker]:
        """Entries behind the position, in fleet order; [] when drained: then the position is the log's head."""
        log = self._place()
        end = log.dropped + len(log.entries)
        while self._sequence < end:
            some, self._sequence = log.slice(self._sequence, limit)
            if some and some[0].fleet <= self.position:
                # A version of the future was asked for.
                some = [one for one in some if one.fleet > self.position]
            if some:
                self.position = some[-1].fleet
                return some
        self.position = max(self.position, self._owner.state.head)
        return []

    async def wait(self, timeout: float | None = None, topic: Topic = ("", "")) -> bool:
        """Wait until there is something to take, or the head has moved; False after `timeout` seconds.

        With a `topic` only its entries count: those before the first of them are passed over unseen.
        """
        state = self._owner.state
        if state.head > self.position:
            return True
        if topic == ("", ""):
            return await self._owner.pulse.wait(timeout)
        self._waiter = waiter = self._owner.topics.wait(topic, state, timeout)
        try:
            place = await waiter
        finally:
            self._waiter = None
            waiter.cancel()
        if place.log is not None and place.log is self._log:
            self._sequence = max(self._sequence, place.sequence)
        else:
            self._log = None
        self.position = max(self.position, place.position)
        return place.matched

    @property
    def passed(self) -> int | None:
        """While it waits for a topic: nothing up to this version will be taken any more. None at other times."""
        waiter = self._waiter
        if waiter is None or waiter.cancelled():
            return None
        return waiter.result().position if waiter.done() else self._owner.state.head
