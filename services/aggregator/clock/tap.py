"""Whole objects off a cluster's feed: while somebody shows them, one watch at the member serves clock and watchers.

A feed needs metadata only. Where watchers need the objects too, a second watch would bring every event twice: the
member would encode it, and this process read it, once more. So the feed asks for whole objects while they are wanted.
Owned by the cluster's state; used in the event loop only, nothing waits here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from _fastpath.splice import Meta


class Sink(Protocol):
    """Who takes the objects."""

    incarnation: str

    @property
    def resume(self) -> int:
        """Every event up to this member version has come."""

    def offered(self) -> None:
        """The tap was opened: `attach` may succeed now."""

    def take(self, frame: bytes, kind: str, meta: Meta) -> None:
        """One frame of the watch, BOOKMARKs too."""

    def ended(self) -> None:
        """The feed's watch is over; the sink is attached no more."""

    def pause(self) -> asyncio.Future[None] | None:
        """Done when more may come; None: at once."""


class Tap:
    """Open while the feed's watch carries whole objects. `attach` gives what comes from then on."""

    def __init__(self) -> None:
        self._wanting: set[Sink] = set()
        self._attached: set[Sink] = set()
        self._incarnation = ""
        self._at = -1  # what came so far; -1: closed
        self.reopen: Callable[[], None] | None = None
        """Set by a feed whose watch carries metadata only: asks it to watch anew."""

    @property
    def wanted(self) -> bool:
        """Does anybody want whole objects?"""
        return bool(self._wanting)

    def want(self, sink: Sink) -> None:
        """Have the feed ask for whole objects from now on."""
        self._wanting.add(sink)
        if self._at < 0 and self.reopen is not None:
            reopen, self.reopen = self.reopen, None  # once: a watch that is ending cannot be told to end again
            reopen()

    def leave(self, sink: Sink) -> None:
        """Not wanted any more, and not attached. A feed that is open stays as it is until its watch ends."""
        self._wanting.discard(sink)
        self._attached.discard(sink)

    def attach(self, sink: Sink) -> bool:
        """Give the sink every frame from now on, until its `ended`; False where it would miss some."""
        if self._at < 0 or sink.incarnation != self._incarnation or self._at > sink.resume:
            return False
        self._attached.add(sink)
        return True

    # For the feed.

    def opened(self, incarnation: str, start: int) -> None:
        """A watch of whole objects brings what happens above `start`."""
        self._incarnation, self._at = incarnation, start
        for sink in tuple(self._wanting):
            sink.offered()

    def passed(self, frame: bytes, kind: str, meta: Meta, version: int) -> None:
        """A frame came."""
        for sink in self._attached:
            sink.take(frame, kind, meta)
        self._at = max(self._at, version)

    async def room(self) -> None:
        """Wait until every sink has room."""
        for sink in tuple(self._attached):
            paused = sink.pause()
            if paused is not None:
                await paused

    def closed(self) -> None:
        """The watch is over, however it ended."""
        self.reopen = None
        self._at = -1
        attached, self._attached = self._attached, set()
        for sink in attached:
            sink.ended()
