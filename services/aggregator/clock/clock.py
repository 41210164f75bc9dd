"""The clock: one per etcd, with a ResourceClock for each aggregated resource."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence

from _fastpath.marker import Marker
from services.aggregator.clock.claims import Claim
from services.aggregator.clock.context import Context
from services.aggregator.clock.cursor import Cursor
from services.aggregator.clock.membership import MemberState
from services.aggregator.clock.position import Position
from services.aggregator.clock.resource import ResourceClock
from services.aggregator.clock.retention import Window
from services.aggregator.clock.store import StartRefused, Store
from services.aggregator.clock.view import Snapshot
from services.aggregator.types import Aggregated
from services.common.etcd import Etcd, EtcdCompacted, EtcdError
from services.common.fleet import FleetWatcher, Member
from services.common.kube.client import KubeClient
from services.common.tasks import Backoff, Tasks

__all__ = [
    "Claim", "Clock", "Cursor", "Entry", "Marker", "MemberState", "Position", "ResourceClock", "Snapshot",
    "StartRefused",
]  # fmt: skip

log = logging.getLogger(__name__)

Entry = Marker
"""An entry of the log is the marker that was put: fleet, type, marker, before."""
ALIASES = {("events.k8s.io", "events"): ("", "events")}
REFRESHES = 3
"""Positions are written this many times per window, moved or not."""


class Clock:
    """All aggregated resources on one etcd. `run` is a root task: it ends only by StartRefused or a bug."""

    def __init__(
        self, *, etcd: Etcd, prefix: str, fleet_id: str, window_seconds: float, window_revisions: int,
        fleet: FleetWatcher, host: KubeClient, max_ops: int = 128,
    ) -> None:  # fmt: skip
        self.resources: dict[str, ResourceClock] = {}
        self.context = Context(
            Store(etcd, prefix, fleet_id),
            fleet,
            host,
            fleet_id,
            window_seconds,
            window_revisions,
            max_ops=max_ops,
            resources=self._all,
        )
        self.upkeep = self.context.upkeep
        self._window = Window(window_seconds, window_revisions)
        self._tasks: Tasks | None = None
        self._running: dict[str, asyncio.Task[None]] = {}
        self._failure: asyncio.Future[None] | None = None
        self._opened = False
        self._trouble = "not started"
        self.context.leases.on_gone = self._lease_gone
        fleet.subscribe(_Listener(self))

    def _all(self) -> Collection[ResourceClock]:
        return self.resources.values()

    # Readers.

    def get(self, group: str, resource: str) -> ResourceClock | None:
        """The clock of a resource; events.k8s.io events are the core's."""
        group, resource = ALIASES.get((group, resource), (group, resource))
        return self.resources.get(f"{resource}.{group}" if group else resource)

    def ready(self) -> str | None:
        """For `Service.checks`: what is missing."""
        if not self._opened:
            return f"the store of fleet versions: {self._trouble}"
        return next((reason for one in self.resources.values() if (reason := one.ready())), None)

    async def wait_loaded(self, timeout: float) -> bool:
        """Wait until the log of every resource has been read from etcd: from then on watches can be resumed.
        False when that takes longer than `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                for one in list(self.resources.values()):
                    await one.loaded.wait()
        except TimeoutError:
            return False
        return True

    # What changes.

    def apply(self, aggregated: Sequence[Aggregated]) -> None:
        """Take over the current set of aggregations: start, change and stop resources."""
        wanted = {one.key: one for one in aggregated if (one.group, one.resource) not in ALIASES}
        for key in [key for key in self.resources if key not in wanted]:
            log.info("%s is aggregated no more", key)
            self._stop(key)
        for key, one in wanted.items():
            known = self.resources.get(key)
            if known is None:
                known = self.resources[key] = ResourceClock(self.context, one)
                self._start(known)
            elif known.aggregated != one:
                known.update(one)

    def _start(self, resource: ResourceClock) -> None:
        if self._tasks is not None and self._opened:
            self._running[resource.label] = self._tasks.spawn(resource.run(), resource.label, root=True)

    def _stop(self, key: str) -> None:
        del self.resources[key]
        task = self._running.pop(key, None)
        if task is not None:
            task.cancel()

    def refresh(self) -> None:
        """The fleet changed."""
        for one in self.resources.values():
            one.update()

    def joined(self) -> None:
        """One cluster of maybe a thousand joined or changed."""
        for one in self.resources.values():
            one.joined()

    def _lease_gone(self) -> None:
        for one in self.resources.values():
            one.depose()

    # Tasks.

    async def run(self) -> None:
        """Run until cancelled. StartRefused where the store belongs to somebody else."""
        self._failure = asyncio.get_running_loop().create_future()
        tasks = self._tasks = Tasks("clock", on_failure=self._failed)
        leases = asyncio.create_task(self.context.leases.run(), name="clock/lease")
        try:
            tasks.spawn(self.upkeep.run(), "upkeep", root=True)
            await self._open()
            tasks.spawn(self.context.follower.run(), "follower", root=True)
            tasks.spawn(self._retain(), "retention", root=True)
            tasks.spawn(self._await_fleet(), "fleet")
            for one in self.resources.values():
                self._start(one)
            await self._failure
        finally:
            # Resources first: they give their leader keys up; then the lease ends.
            await tasks.close()
            self._tasks = None
            leases.cancel()
            await asyncio.gather(leases, return_exceptions=True)

    def _failed(self, name: str, error: BaseException | None) -> None:
        if self._failure is not None and not self._failure.done():
            self._failure.set_exception(error or RuntimeError(f"{name} ended"))

    async def _open(self) -> None:
        backoff = Backoff(initial=0.2, maximum=3.0)
        while True:
            try:
                await self.context.store.open()
            except EtcdError as error:
                if str(error) != self._trouble:
                    log.warning("the store of fleet versions is not there yet: %s", error)
                self._trouble = str(error)
                await backoff.wait()
            else:
                self._opened = True
                return

    async def _await_fleet(self) -> None:
        await self.context.fleet.synced.wait()
        self.refresh()

    async def _retain(self) -> None:
        """Keep the log, the tombstones and etcd's history to the window."""
        loop = asyncio.get_running_loop()
        refreshed, compacted = loop.time(), 0
        while True:
            await asyncio.sleep(self._window.step)
            try:
                revision, _ = await self.context.leaders.get()
                start = self._window.sample(loop.time(), revision)
                due = loop.time() - refreshed >= self._window.seconds / REFRESHES - self._window.step
                if due:
                    refreshed = loop.time()
                self.refresh()  # a cluster that never became a member leaves without a word to listeners
                for one in list(self.resources.values()):
                    await one.retain(start, due)
                if start > compacted and any(one.term for one in self.resources.values()):
                    await self._compact(start)
                    compacted = start
            except EtcdError as error:
                log.info("retention waits for etcd: %s", error)

    async def _compact(self, revision: int) -> None:
        try:
            await self.context.store.etcd.compact(revision)
        except EtcdCompacted:
            pass  # somebody else did


class _Listener:
    """Tells the clock of the fleet's changes; must not wait."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def engaged(self, member: Member) -> None:
        """A cluster joined."""
        self._clock.joined()

    async def updated(self, member: Member, old: Member) -> None:
        """Labels, reachability or credentials changed."""
        self._clock.joined()
        if (member.reachable and not old.reachable) or member.digest != old.digest or member.uid != old.uid:
            for one in self._clock.resources.values():
                one.kick(member.name)

    async def disengaged(self, member: Member) -> None:
        """A cluster left: the watcher has removed it from its members already."""
        self._clock.refresh()
