"""The clusters of one resource: engaging, following, leaving, gaps. Methods run in the loop and do not wait."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from services.aggregator.clock import metrics
from services.aggregator.clock.feed import Feed
from services.aggregator.clock.membership import MemberState, selected
from services.aggregator.clock.metadata import MetadataClient
from services.aggregator.clock.position import Position
from services.aggregator.clock.probe import Probe
from services.aggregator.clock.sequencer import Sequencer
from services.aggregator.clock.soon import Soon
from services.aggregator.clock.view import Snapshot
from services.aggregator.clock.work import Bookmark, DiffRun, GapRun, LeaveRun
from services.aggregator.types import HOST
from services.common.fleet import Member
from services.common.tasks import Tasks

if TYPE_CHECKING:
    from services.aggregator.clock.answers import Answers

log = logging.getLogger(__name__)


class Members:
    """Owned by a resource's clock. Feeds run within a term; states outlive it."""

    def __init__(self, clock: Answers) -> None:
        self.clock = clock
        self.states: dict[str, MemberState] = {}
        self._feeds: dict[str, tuple[Feed, asyncio.Task[None]]] = {}
        self._tasks: Tasks | None = None
        self._probe = Probe(self._unknown)
        self.changed = Soon(self.check, lambda: len(self.states))
        """Something changed of a member: `check` soon."""
        self.joined = Soon(self.refresh, lambda: len(self.states))
        """The fleet changed: `refresh` soon."""

    # Terms.

    def start(self) -> None:
        """A term began: follow everything."""
        self._probe.stop()
        self._tasks = Tasks(f"clock/{self.clock.label}", on_failure=self._failed)
        self.refresh()
        for state in self.states.values():
            if state.leaving:
                self._leave(state.cluster)
            else:
                self._follow(state)
        self.check()

    async def stop(self) -> None:
        """The term is over: no feed may enqueue any more."""
        tasks, self._tasks = self._tasks, None
        self._feeds.clear()
        if tasks is not None:
            await tasks.close()
        for state in list(self.states.values()):  # a report may forget those that have left
            if not state.leaving and state.state != "NoType":
                state.report("Connecting")
        self.refresh()

    async def close(self) -> None:
        """The clock ends."""
        self.changed.done()
        self.joined.done()
        await self._probe.close()

    def _failed(self, name: str, error: BaseException | None) -> None:
        """A bug in one feed must not leave its cluster unfollowed: a new term starts all of them again."""
        log.error("task %s failed: the clock of %s starts again", name, self.clock.label)
        self.clock.depose()

    # Membership.

    def refresh(self) -> None:
        """Bring the states in line with fleet and aggregation."""
        self.joined.done()
        clock = self.clock
        wanted = selected(clock.aggregated, clock.context.fleet)
        for cluster, member in wanted.items():
            state = self.states.get(cluster)
            # Another Member object: it left and came back while we looked elsewhere. One on its way out is followed
            # again when it is gone; where another process lets it go, its position says how far that is.
            if state is None or (self._tasks is None if state.leaving else state.member is not member):
                if state is not None:
                    self._unfollow(cluster)
                self._engage(cluster, member)
            state = self.states[cluster]
            state.export()
        for cluster in [name for name in self.states if name not in wanted]:
            if not self.states[cluster].leaving:
                self._disengage(cluster)
        if clock.context.fleet.synced.is_set():
            self._drop_strangers(wanted)
        self.check()

    def _unknown(self) -> list[tuple[MemberState, MetadataClient]]:
        """Clusters of which the log says nothing, or not enough, while another process feeds it."""
        if self._tasks is not None or not self.clock.loaded.is_set():
            return []
        return [
            (state, self._api(state)) for state in self.states.values()
            if not state.leaving and state.position is None and (state.member is None or state.member.reachable)
        ]  # fmt: skip

    def _engage(self, cluster: str, member: Member | None) -> None:
        clock = self.clock
        state = self.states[cluster] = MemberState(
            cluster, member, clock.context.host if member is None else member.client, clock.context.fleet_id,
            clock.label, self._position, self._diffing, self.changed, lambda: self._tasks is not None,
        )  # fmt: skip
        if self._tasks is not None:
            self._follow(state)

    def _disengage(self, cluster: str) -> None:
        state = self.states[cluster]
        state.leaving = True
        state.export()
        self._unfollow(cluster)
        if self._tasks is not None:
            self._leave(cluster)
        else:
            self._forget_left()

    def _forget_left(self) -> None:
        """While another process lets a cluster go: its position goes last."""
        for cluster in [name for name, state in self.states.items() if state.leaving and state.position is None]:
            del self.states[cluster]
            metrics.forget(self.clock.label, cluster)

    def _drop_strangers(self, wanted: dict[str, Member | None]) -> None:
        """What etcd holds of clusters that left while nobody looked. Those that discovery names without usable
        credentials have not left: their objects stay, as an unreachable cluster's do."""
        if self._tasks is None:
            return
        away = self.clock.context.fleet.inaccessible
        for cluster in self.clock.state.clusters() - set(wanted) - set(self.states) - away:
            log.info("%s: cluster %r has left the fleet: its objects go", self.clock.label, cluster)
            self._leave(cluster)

    def _leave(self, cluster: str) -> None:
        sequencer, tasks = self.clock.sequencer, self._tasks
        if sequencer is None or tasks is None or sequencer.is_leaving(cluster):
            return
        sequencer.clear(cluster)
        sequencer.put_nowait(cluster, LeaveRun(cluster))
        tasks.spawn(self._left(cluster), f"leave {cluster}")

    async def _left(self, cluster: str) -> None:
        """When its last object is gone: forget it, or follow it again if it has come back."""
        sequencer = self.clock.sequencer
        if sequencer is None:
            return
        await sequencer.drained(cluster)
        state = self.states.get(cluster)
        if state is not None and state.leaving:
            del self.states[cluster]
            metrics.forget(self.clock.label, cluster)
            log.info("%s: cluster %r is gone", self.clock.label, cluster)
        self.refresh()

    # Feeds.

    def _follow(self, state: MemberState, *, relist: bool = False) -> None:
        clock, tasks, sequencer = self.clock, self._tasks, self.clock.sequencer
        if tasks is None or sequencer is None or state.cluster in self._feeds:
            return
        feed = Feed(state, self._api(state), sequencer, clock.label, relist=relist)
        self._feeds[state.cluster] = feed, tasks.spawn(feed.run(), f"feed {state.cluster}")

    def _api(self, state: MemberState) -> MetadataClient:
        clock = self.clock
        hide = clock.context.fleet_id if clock.aggregated.include_host and state.cluster != HOST else ""
        return MetadataClient(state.client, clock.aggregated.at(), state.cluster, hide)

    def _unfollow(self, cluster: str) -> None:
        feed = self._feeds.pop(cluster, None)
        if feed is not None:
            feed[1].cancel()

    def restart(self) -> None:
        """Follow all anew (the type's version has changed)."""
        for state in self.states.values():
            if not state.leaving:
                self._unfollow(state.cluster)
                self._follow(state)

    def relist(self, cluster: str) -> None:
        """Follow anew, beginning with a list; not again while one is under way."""
        state, sequencer = self.states.get(cluster), self.clock.sequencer
        if state is None or state.leaving or sequencer is None or state.state != "Live":
            return
        self._unfollow(cluster)
        state.report("Connecting")
        self._follow(state, relist=True)

    def kick(self, cluster: str) -> None:
        """Its reachability, credentials or types have changed: a feed that waits tries again at once."""
        if cluster in self._feeds:
            self._feeds[cluster][0].kick()
        self._probe.kick()

    def overdue(self, cluster: str) -> None:
        """An event of it has not come to the log. What is here already waits for etcd, and its feed is well."""
        sequencer, feed = self.clock.sequencer, self._feeds.get(cluster)
        if feed is not None and sequencer is not None and not sequencer.has(cluster):
            feed[0].overdue()

    def refresh_positions(self) -> None:
        """Write every position, moved or not: historic vectors need one within the window."""
        sequencer = self.clock.sequencer
        if sequencer is not None:
            for cluster in self.clock.state.positions:
                sequencer.put_nowait(cluster, Bookmark(0, forced=True))

    # Gaps and sync.

    def check(self) -> None:
        """Something changed: recommit members whose gap can be closed, and see whether all are in."""
        self.changed.done()
        clock = self.clock
        if clock.sequencer is not None:
            self._close_gaps(clock.sequencer)
        elif self._tasks is None:
            self._forget_left()
            if self._unknown():
                self._probe.start()
        for state in self.states.values():
            state.export()
        if not clock.synced.is_set() and clock.loaded.is_set() and self.waiting() == "":
            clock.synced.set()
            log.info("%s: in sync, %d objects", clock.label, clock.state.index.live)

    def _close_gaps(self, sequencer: Sequencer) -> None:
        clock = self.clock
        for cluster, revision in list(clock.state.gaps.items()):
            state = self.states.get(cluster)
            if state is None:
                if clock.context.fleet.synced.is_set() and cluster not in clock.context.fleet.inaccessible:
                    self._leave(cluster)
            elif state.state == "Live" and sequencer.gap_run(cluster) != revision:
                log.info("%s: cluster %r is back: its objects are sent anew", clock.label, cluster)
                sequencer.put_nowait(cluster, GapRun(cluster, revision))

    def waiting(self) -> str:
        """What the first sync waits for; "" when nothing."""
        if not self.clock.context.fleet.synced.is_set() or self.joined.due:
            return "the fleet is not known yet"
        names = [repr(name) for name, state in self.states.items() if not state.settled]
        return f"first list of cluster {', '.join(names)}" if names else ""

    def _position(self, cluster: str) -> Position | None:
        return self.clock.state.positions.get(cluster)

    def _diffing(self, cluster: str) -> bool:
        sequencer = self.clock.sequencer
        return sequencer is not None and sequencer.holds(cluster, DiffRun)

    def diffing(self) -> bool:
        """Is a member's list being compared that a reader should wait for?"""
        return any(
            state.state in ("Connecting", "Diffing") and self._open(state) for state in self.states.values()
        )

    @staticmethod
    def _open(state: MemberState) -> bool:
        position = state.position
        return position is None or position.diff

    def snapshot(self) -> Snapshot:
        """The log's head, and every member's position there."""
        clock = self.clock
        members: dict[str, Position] = {}
        out: list[str] = []
        for cluster, state in self.states.items():
            position = state.position
            if state.state == "NoType":
                continue
            if position is None or position.diff or state.state in ("Unreachable", "Disengaging"):
                if not (state.leaving and position is None):
                    out.append(cluster)
            else:
                members[cluster] = position
        # Those whose leaving was interrupted by a restart.
        out += [name for name in clock.state.positions if name not in self.states]
        return Snapshot(clock.state.head, members, out)
