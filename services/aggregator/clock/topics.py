"""Wakes watchers of one namespace or one name: what happens elsewhere does not even wake them.

A watcher that waits here has taken everything. The first entry under its key wakes it, with the place of that entry:
what lies before is not for it, and is never looked at. O(entries) per commit, however many wait.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from services.aggregator.clock.log import Log
from services.aggregator.clock.state import State

Topic = tuple[str, str]
"""(namespace, name); "" for any."""


class Place(NamedTuple):
    """Where a watcher goes on: at this sequence number of `log` (None: find it by `position`)."""

    log: Log | None
    sequence: int
    position: int
    """Nothing up to this version is for the watcher."""
    matched: bool


Waiter = asyncio.Future[Place]


class Topics:
    """`told` after every change of the state, before anything else runs. Owned by one loop."""

    def __init__(self) -> None:
        self._waiting: dict[Topic, set[Waiter]] = {}
        self._log: Log | None = None
        self._next = self._head = 0

    def told(self, state: State) -> None:
        """The log has grown, or is another one."""
        log = state.log
        if log is not self._log:
            self._wake_all(Place(None, 0, self._head, True))
        elif self._waiting:
            at = self._next
            for entry in log.entries[self._next - log.dropped :]:
                place = Place(log, at, entry.fleet - 1, True)
                for topic in ((entry.namespace, ""), (entry.namespace, entry.name), ("", entry.name)):
                    if topic in self._waiting:
                        _wake(self._waiting.pop(topic), place)
                at += 1
        self._log, self._next, self._head = log, log.dropped + len(log.entries), state.head

    def _wake_all(self, place: Place) -> None:
        waiting, self._waiting = self._waiting, {}
        for waiters in waiting.values():
            _wake(waiters, place)

    def wait(self, topic: Topic, state: State, timeout: float | None) -> Waiter:
        """For a watcher that has taken all of `state`. Done with its place; after `timeout` seconds too."""
        loop = asyncio.get_running_loop()
        waiter: Waiter = loop.create_future()
        self._waiting.setdefault(topic, set()).add(waiter)
        timer = None if timeout is None else loop.call_later(max(timeout, 0), self._expire, waiter)
        waiter.add_done_callback(lambda done: self._left(topic, waiter, timer))
        return waiter

    def _expire(self, waiter: Waiter) -> None:
        if not waiter.done():
            waiter.set_result(Place(self._log, self._next, self._head, False))

    def _left(self, topic: Topic, waiter: Waiter, timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()
        waiters = self._waiting.get(topic)
        if waiters is not None:
            waiters.discard(waiter)
            if not waiters:
                del self._waiting[topic]


def _wake(waiters: set[Waiter], place: Place) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(place)
