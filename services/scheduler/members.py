"""The manager's members: engages each as discovery tells, by its worker or read in-process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import cast

from services.common.config import TLS
from services.common.errors import StatusError
from services.common.fleet import Member
from services.common.kube.identity import identity
from services.common.tasks import Tasks
from services.scheduler.admission import LocalAdmission
from services.scheduler.admission_api import Signal
from services.scheduler.clock import Clock
from services.scheduler.feed import MemberFeed
from services.scheduler.fleet import Fleet, MemberView
from services.scheduler.heartbeats import Heartbeats
from services.scheduler.member import MemberState
from services.scheduler.remote import RemoteAdmission

log = logging.getLogger(__name__)

PROBE_LIMIT = 3.0


def _matters(member: Member) -> tuple[object, ...]:
    """What of a member bears on placement; latencies and the like do not."""
    return (
        member.labels, member.taints, member.reachable, member.ready, member.unreachable_since, member.forgotten,
        member.uid, member.leaving_since,
    )  # fmt: skip


class Members:
    """A FleetListener that keeps `Fleet` true. One task group per member: leaving is one cancellation.

    `on_change(cluster)` is called after every change of a member that bears on placement, `on_state(cluster, freed)` when its
    capacity changed; `resync(cluster)` is awaited when a worker must be told what is placed; whether that is done.
    """

    def __init__(
        self, fleet: Fleet, clock: Clock, *, workers: Mapping[str, str], tls: TLS | None, ttl: float, deadline: float,
        on_change: Callable[[str], None], on_state: Callable[[str, bool], None],
        resync: Callable[[str], Awaitable[bool]], heartbeats: Heartbeats, fleet_id: Callable[[], str] = lambda: "",
    ) -> None:  # fmt: skip
        self.fleet = fleet
        self.local: dict[str, LocalAdmission] = {}
        self.signals: dict[str, Signal] = {}
        self._clock, self._workers, self._tls = clock, workers, tls
        self._ttl, self._deadline = ttl, deadline
        self._on_change, self._on_state, self._resync = on_change, on_state, resync
        self._heartbeats, self._fleet_id = heartbeats, fleet_id
        self._tasks: dict[str, Tasks] = {}
        self._remote: dict[str, RemoteAdmission] = {}

    async def engaged(self, member: Member) -> None:
        """See FleetListener."""
        tasks = self._tasks[member.name] = Tasks(f"member {member.name}")
        self.fleet.members[member.name] = cast(MemberView, member)
        if member.name in self._workers:
            self._engage_worker(member, tasks)
        else:
            self._engage_local(member, tasks)
        self.fleet.joined(member.name, self._clock.monotonic())
        self.fleet.touch()
        self._on_change(member.name)

    def _engage_worker(self, member: Member, tasks: Tasks) -> None:
        remote = RemoteAdmission(
            member.name, self._workers[member.name], self._tls, ttl=self._ttl, deadline=self._deadline,
            on_state=self._on_state, on_connected=self._resync, fleet_id=self._fleet_id,
        )  # fmt: skip
        self._remote[member.name] = self.fleet.admissions[member.name] = remote
        tasks.spawn(remote.run(), "worker")
        self._heartbeats.engage(member.name, remote.heartbeat)

    def _engage_local(self, member: Member, tasks: Tasks) -> None:
        name = member.name
        signal = self.signals[name] = Signal()

        def changed(freed: bool) -> None:
            signal.changed(freed)
            self._on_state(name, freed)

        state = MemberState(name, on_change=changed)
        feed = MemberFeed(member.client, state, self._fleet_id)
        admission = LocalAdmission(state, self._clock, ttl=self._ttl, clash=feed.clash, problem=feed.problem)
        self.local[name] = self.fleet.admissions[name] = admission
        feed.start(tasks)
        tasks.spawn(self._look_after(name, state), "expiry")
        tasks.spawn(self._after_sync(name, feed), "sync")

    async def _look_after(self, name: str, state: MemberState) -> None:
        while True:
            await asyncio.sleep(1.0)
            state.expire(self._clock.monotonic())

    async def _after_sync(self, name: str, feed: MemberFeed) -> None:
        await feed.wait_synced()
        await self._resync(name)
        self._on_state(name, True)

    async def updated(self, member: Member, old: Member) -> None:
        """See FleetListener."""
        if member.uid != old.uid and old.uid:
            # What was said of the old one (room, fences) holds no more; what was placed there had left before.
            log.warning("%s: it is another cluster now", member.name)
            await self.disengaged(member)
            await self.engaged(member)
            return
        if _matters(member) != _matters(old):
            if member.ready and not old.ready:
                self.fleet.joined(member.name, self._clock.monotonic())
            self.fleet.touch()
            self._on_change(member.name)

    async def disengaged(self, member: Member) -> None:
        """See FleetListener."""
        name = member.name
        self.fleet.members.pop(name, None)
        self.fleet.admissions.pop(name, None)
        self.local.pop(name, None)
        self.signals.pop(name, None)
        self._heartbeats.disengage(name)
        self.fleet.touch()
        tasks = self._tasks.pop(name, None)
        if tasks is not None:
            await tasks.close()
        remote = self._remote.pop(name, None)
        if remote is not None:
            await remote.close()
        self._on_change(name)

    async def probe(self, cluster: str) -> bool:
        """Ask a cluster directly whether it is there, before its loss is acted on: it, not another in its place."""
        member = self.fleet.members.get(cluster)
        client = getattr(member, "client", None)
        if member is None or client is None:
            return False
        try:
            found = await identity(client, PROBE_LIMIT)
        except StatusError as error:
            # An answer that is an error is an answer; of one that leaves it may be the next one's.
            return error.code in (401, 403) and member.leaving_since is None
        return not member.uid or found == member.uid

    def unready(self) -> str | None:
        """For /readyz: members that cannot be asked are no reason not to serve, unless it is all of them."""
        problems = {name: admission.problem() for name, admission in self.fleet.admissions.items()}
        if problems and all(problems.values()):
            return "; ".join(f"{name}: {problem}" for name, problem in sorted(problems.items()))
        return None

    async def close(self) -> None:
        """Leave all members."""
        for tasks in list(self._tasks.values()):
            await tasks.close()
        for remote in self._remote.values():
            await remote.close()
