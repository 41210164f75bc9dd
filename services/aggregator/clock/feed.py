"""Follows one resource on one cluster: resume, or list and diff; then watch, for as long as it lasts.

A feed lives within one term of the sequencer. It decides only when nothing of its cluster waits or is in
flight, so that the committed position is the truth.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Protocol

from _fastpath.marker import of_cluster
from services.aggregator.clock import metrics
from services.aggregator.clock.membership import Phase
from services.aggregator.clock.metadata import Expired, MetadataClient, NoKubernetes, WatchEnded
from services.aggregator.clock.overdue import Hearing
from services.aggregator.clock.position import Position, incarnation, split_incarnation
from services.aggregator.clock.restore import differs_at_read, differs_at_resume
from services.aggregator.clock.sequencer import Sequencer
from services.aggregator.clock.tap import Tap
from services.aggregator.clock.work import DiffRun, LeaveRun
from services.common.errors import MemberUnreachable, StatusError
from services.common.tasks import Backoff

log = logging.getLogger(__name__)

NO_TYPE_RETRY = 5.0


class Followed(Protocol):
    """The cluster as its feed sees it."""

    cluster: str
    tap: Tap

    @property
    def uid(self) -> str:
        """Uid of kube-system; "" while it is not known."""

    def report(self, phase: Phase, message: str = "") -> None:
        """Say how the feed is doing."""


class Feed:
    """One task, `run`; `kick` makes it try again at once."""

    def __init__(
        self, member: Followed, api: MetadataClient, sequencer: Sequencer, label: str,
        *, relist: bool = False,
    ) -> None:  # fmt: skip
        self.member, self.api, self.sequencer = member, api, sequencer
        self.label = label
        self._open = False
        self._garbled = False  # its last watch sent what Kubernetes does not send
        self._said = ""
        self._relist = relist
        self._kick = asyncio.Event()
        self._uid = ""
        """Of the cluster that this round is about."""
        self._end: Callable[[], None] | None = None
        """Ends what is awaited and may be begun anew at any time: the watch, what goes before it, a pause."""
        self._hearing = Hearing()
        # After a start nobody knows what happened meanwhile: as after a lost connection.
        self._lost = not relist

    def kick(self) -> None:
        """The cluster or its types changed: do not wait for the next try."""
        self._kick.set()
        if self._is_another():
            self._begin_anew()

    def overdue(self) -> None:
        """The cluster has answered with a state that its watch has not brought: one that is silent is opened anew.

        It counts as lost: the other end may have been set back to a backup since, and have said so to nobody.
        """
        if self._end is None or not self._hearing.renews():
            return
        metrics.RENEWED.labels(self.label, metrics.named(self.member.cluster), "log").inc()
        log.info("%s: an event is overdue and the watch is silent: watching anew", self._what)
        self._lost = True
        self.api.renew()  # connections that are kept for the next request may be as dead
        self._begin_anew()

    def _begin_anew(self) -> None:
        end, self._end = self._end, None  # once: what is ending cannot be told to end again
        if end is not None:
            end()

    @asynccontextmanager
    async def _endable(self) -> AsyncIterator[None]:
        """Around what `_begin_anew` may end: WatchEnded then."""
        self._hearing.heard()
        try:
            async with asyncio.timeout(None) as scope:
                self._end = partial(scope.reschedule, 0)
                try:
                    yield
                finally:
                    self._end = None
        except TimeoutError:
            raise WatchEnded from None

    def _is_another(self) -> bool:
        """Has another cluster taken the place of the one that this round looked at? A watch that was opened after that
        is the other one's, under the name of a life that is over."""
        return self.member.uid not in ("", self._uid)

    async def run(self) -> None:
        """Follow until cancelled."""
        backoff = Backoff(initial=0.2, maximum=10.0)
        while True:
            try:
                await self._follow(backoff)
            except WatchEnded:
                continue
            except Expired as reason:
                # A continue token or a resumed watch too old: the next round lists.
                log.info("%s: %s", self._what, reason)
            except StatusError as error:
                self._lost = True
                if error.code == 404 and await self.api.lacks_type():
                    await self._no_type(error)
                    continue
                self._failed(error)
            await self._sleep(backoff.next_delay())

    @property
    def _what(self) -> str:
        return (
            f"{self.label} of cluster {self.member.cluster!r}"
            if self.member.cluster
            else f"{self.label} of the host"
        )

    def _failed(self, error: StatusError) -> None:
        # Said once, not with every try.
        log.log(
            logging.DEBUG if error.message == self._said else logging.INFO,
            "%s: %s",
            self._what,
            error.message,
        )
        self._said = error.message
        # A watch that broke says nothing yet: the next try to connect does.
        open_before = self._open and not self._garbled
        self.member.report("Connecting" if open_before else "Unreachable", error.message)
        self._open = False

    async def _sleep(self, seconds: float) -> None:
        self._end = self._kick.set
        try:
            async with asyncio.timeout(seconds):
                await self._kick.wait()
        except TimeoutError:
            pass  # the usual case: nobody kicked
        finally:
            self._end = None
        self._kick.clear()

    # One round.

    async def _follow(self, backoff: Backoff) -> None:
        cluster = self.member.cluster
        await self.sequencer.drained(cluster)
        uid = self._uid = self.member.uid
        if not uid:
            raise MemberUnreachable(f"{self._what}: the cluster has not been reached yet")
        position = self.sequencer.state.positions.get(cluster)
        async with self._endable():
            current = await self.api.version()
        life, reason = await self._life(position, uid, current)
        start = 0 if reason else self._resume(position)
        while True:
            if reason:
                start = await self._diff(life, reason)
            try:
                await self._watch(life, start, backoff)
            except Expired as expired:
                if reason:
                    raise  # just listed and too old at once: wait before the next list
                log.info("%s: cannot resume at %d: %s", self._what, start, expired)
                await self.sequencer.drained(cluster)
                reason = "expired"

    @staticmethod
    def _resume(position: Position | None) -> int:
        if position is None:
            raise AssertionError("a cluster without a position is listed first")
        return position.resume

    async def _life(self, position: Position | None, uid: str, current: int) -> tuple[str, str]:
        """(incarnation, why the cluster must be listed or "" to resume)."""
        if position is None:
            return incarnation(uid, 0), "new"
        known, count = split_incarnation(position.incarnation)
        if position.diff:
            # What the broken diff put may stem from before a restore that nobody saw: another life.
            target, reached = split_incarnation(position.target)
            counts = [n for name, n in ((known, count), (target, reached)) if name == uid]
            return incarnation(uid, max(counts, default=-1) + 1), "unfinished"
        if known != uid:
            log.warning("%s: it is another cluster now (kube-system %s, was %s)", self._what, uid, known)
            return incarnation(uid, 0), "incarnation"
        if current < position.read or (self._lost and await self._restored(position)):
            log.warning("%s: it was restored from a backup (its version is %d)", self._what, current)
            return incarnation(uid, count + 1), "restored"
        if self._relist:
            return position.incarnation, "compacted"
        return position.incarnation, ""

    async def _restored(self, position: Position) -> bool:
        """Ask for the lists that the markers stem from; any difference is a restore."""
        cluster, state = self.member.cluster, self.sequencer.state
        try:
            if position.read != position.resume:
                listed = await self.api.whole(position.incarnation, position.resume)
                live = of_cluster(state.index, cluster)
                if differs_at_resume(state, position, cluster, live, listed.items):
                    return True
            listed = await self.api.whole(position.incarnation, position.read)
        except Expired:
            return True
        except StatusError as error:
            if error.code == 504 and not isinstance(error, MemberUnreachable):
                return True  # "Too large resource version": its history has not come that far
            raise
        return differs_at_read(position, of_cluster(state.index, cluster), listed.items)

    async def _diff(self, life: str, reason: str) -> int:
        cluster = self.member.cluster
        metrics.LISTS.labels(self.label, metrics.named(cluster), reason).inc()
        self.sequencer.tally.members[cluster].relists += 1
        log.info("%s: listing (%s)", self._what, reason)
        self.member.report("Diffing")
        listing = await self.api.whole(life)
        self.sequencer.put_nowait(cluster, DiffRun(cluster, listing.version, life, listing.items))
        self._relist = False
        return listing.version

    async def _watch(self, life: str, start: int, backoff: Backoff) -> None:
        cluster, put, tap = self.member.cluster, self.sequencer.put, self.member.tap
        # Whole objects in another version than the type's own are nobody's.
        whole = tap if tap.wanted and self.api.native else None
        try:
            # Ended by us where whole objects are wanted by now: watch again from the position, as after any end in order.
            # Or where another cluster is there, which the next round finds.
            async with self._endable(), aclosing(self.api.watch(life, start, whole)) as watch:
                if self._is_another():
                    raise WatchEnded
                if not tap.wanted:
                    tap.reopen = self._begin_anew
                async for some in watch:
                    self._hearing.heard()
                    # One that sent garbage is trusted again at its first proper frame: connecting proves nothing.
                    if bool(some) is self._garbled:
                        self._opened(backoff)
                    if some:
                        await put(cluster, some)
        except NoKubernetes:
            self._garbled = True
            raise
        finally:
            tap.closed()

    def _opened(self, backoff: Backoff) -> None:
        self._lost = self._garbled = False
        self._open = True
        if self._said:
            log.info("%s: followed again", self._what)
            self._said = ""
        backoff.reset()
        self.member.report("Live")

    # A cluster without the type.

    async def _no_type(self, error: StatusError) -> None:
        cluster = self.member.cluster
        if cluster in self.sequencer.state.positions:
            log.info("%s: the cluster has the type no more: its objects are gone", self._what)
            self.sequencer.put_nowait(cluster, LeaveRun(cluster))
            await self.sequencer.drained(cluster)
        self.member.report("NoType", error.message)
        await self._sleep(Backoff(NO_TYPE_RETRY, NO_TYPE_RETRY).next_delay())
