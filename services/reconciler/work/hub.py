"""All controllers of one replica, and the clusters that it owns."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from reclock.reconciler.v1 import reconciler_pb2 as pb
from services.common.fleet import FleetWatcher, Member
from services.common.kube.client import KubeClient
from services.common.kube.resource import CLUSTERS
from services.common.tasks import FailureCallback, Tasks
from services.reconciler.work.controller import Controller
from services.reconciler.work.feeds import Feeds
from services.reconciler.work.mapping import HOST, Target
from services.reconciler.work.ownership import Ownership
from services.reconciler.work.parts import Engaged
from services.reconciler.work.predicates import ADDED, DELETED, MODIFIED
from services.reconciler.work.seat import Seat
from services.reconciler.work.spec import BadRegister, ControllerSpec

log = logging.getLogger(__name__)

RETENTION = 300.0
"""Seconds for which a controller without workers keeps its queue and its sources."""
Watcher = Callable[[str, str], None]
"""Told (cluster, replica) when a cluster's owner changes."""


class Hub:
    """Fleet listener, and owner of clusters; brings both together with the controllers. Nothing here waits."""

    def __init__(self, fleet: FleetWatcher, host: KubeClient, lease: float, replica: str, failed: FailureCallback) -> None:
        self.fleet = fleet
        self.host = host
        self.lease = lease
        self.replica = replica
        self.controllers: dict[str, Controller] = {}
        self.engaged_here: dict[str, Engaged] = {}
        self.ownership: Ownership | None = None
        self.watchers: list[Watcher] = []
        self.route: Callable[[str, Target, int], None] | None = None
        """Takes requests for clusters of other replicas."""
        self.valid: Callable[[], bool] = lambda: True
        """Whether this replica owns for sure what it owns."""
        self.leading, self.following = asyncio.Event(), asyncio.Event()
        """Whether this replica owns the host, and with it is who runs the built-in controllers: one of them is set."""
        self.following.set()
        self._failed = failed
        self._tasks = Tasks("feeds", failed)
        self.feeds = Feeds(self._tasks)
        self._retention: dict[str, asyncio.TimerHandle] = {}
        self._registered: dict[str, int] = {}

    # Controllers.

    def register(self, spec: ControllerSpec, seat: Seat, at: int) -> Controller:
        """Seat a worker that registered `at` (µs since the epoch). BadRegister where it cannot be.

        The controller is what its newest registration says: one that is only relayed anew, later, changes nothing.
        """
        controller = self.controllers.get(spec.name)
        if controller is not None:
            self.check(spec, seat.worker, seat.user.name)
            if controller.spec.priority_first != spec.priority_first:
                self._drop(controller)
                controller = None
        if controller is None:
            controller = self._make(spec)
        elif controller.spec != spec and at >= self._registered.get(spec.name, 0):
            controller.update(spec)
            self._select(controller)
        self._registered[spec.name] = max(at, self._registered.get(spec.name, 0))
        if handle := self._retention.pop(spec.name, None):
            handle.cancel()
        seat.at = at
        controller.sit(seat)
        return controller

    def check(self, spec: ControllerSpec, worker: str, user: str) -> None:
        """BadRegister for what the workers that are connected do not allow."""
        controller = self.controllers.get(spec.name)
        if controller is None:
            return
        others = [seat for seat in controller.seats if seat.worker != worker]
        if others and controller.spec.priority_first != spec.priority_first:
            raise BadRegister([("mode", "the controller's connected workers have the other mode: it cannot change now")])
        if any(seat.worker == worker and seat.user.name != user for seat in controller.seats):
            raise BadRegister([("worker", f"{worker!r} is connected under another identity")])

    def leave(self, controller: Controller, seat: Seat, *, orderly: bool) -> None:
        """A worker is gone; the last one's controller is kept for a while."""
        controller.leave(seat, orderly=orderly)
        if not controller.seats and self.controllers.get(controller.name) is controller:
            loop = asyncio.get_running_loop()
            if handle := self._retention.pop(controller.name, None):
                handle.cancel()
            self._retention[controller.name] = loop.call_later(RETENTION, self._give_up, controller)

    def _give_up(self, controller: Controller) -> None:
        self._retention.pop(controller.name, None)
        if not controller.seats and self.controllers.get(controller.name) is controller:
            log.info("controller %s has had no worker for %.0f s: forgotten", controller.name, RETENTION)
            self._drop(controller)

    def _make(self, spec: ControllerSpec) -> Controller:
        controller = Controller(spec, self.feeds, self.lease, self._failed, self._elsewhere, lambda: self.valid())
        self.controllers[spec.name] = controller
        self._select(controller)
        return controller

    def _drop(self, controller: Controller) -> None:
        del self.controllers[controller.name]
        self._registered.pop(controller.name, None)
        self._tasks.spawn(controller.close(), f"close {controller.name}")

    def _elsewhere(self, controller: str, target: Target, priority: int) -> None:
        if self.route is not None:
            self.route(controller, target, priority)

    # Clusters of this replica.

    def gained(self, cluster: str, fence: int, closed_until: float) -> None:
        """See Owner."""
        client = self.client(cluster)
        if client is None:
            return
        member = self.fleet.members.get(cluster)
        self.engaged_here[cluster] = Engaged(cluster, client, fence, member.uid if member else "", closed_until)
        for controller in self.controllers.values():
            self._select(controller, cluster)
        if cluster == HOST:
            self.following.clear()
            self.leading.set()
        self.moved(cluster, self.replica)

    def host_fence(self) -> int:
        """Fencing token of the host; 0 while this replica does not have it."""
        engaged = self.engaged_here.get(HOST)
        return engaged.fence if engaged is not None else 0

    def holds_host(self, fence: int) -> bool:
        """Whether this replica has had the host for sure since it took it with that fencing token."""
        return fence != 0 and fence == self.host_fence() and self.valid()

    def lost(self, cluster: str) -> None:
        """See Owner. A cluster that left the fleet is nobody's; another replica's may be in flight there."""
        if self.engaged_here.pop(cluster, None) is None:
            return
        if cluster == HOST:
            self.leading.clear()
            self.following.set()
        here = cluster == HOST or cluster in self.fleet.members
        for controller in self.controllers.values():
            controller.disengage(cluster, pb.CANCEL_REASON_MOVED if here else pb.CANCEL_REASON_CLUSTER_LEFT)

    async def release(self, cluster: str, limit: float) -> bool:
        """See Releaser."""
        engaged = self.engaged_here.get(cluster)
        if engaged is None:
            return True
        engaged.held = True
        deadline = time.monotonic() + limit
        while True:
            # All are asked, so that all hold.
            idle = [each.hold(cluster) for each in self.controllers.values()]
            if all(idle):
                return True
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(0.05)

    def moved(self, cluster: str, replica: str) -> None:
        """See Owner. What objects of clusters here said about that one may have been lost with its owner."""
        for controller in self.controllers.values() if replica else ():
            controller.replay(cluster)
        for watcher in self.watchers:
            watcher(cluster, replica)

    def client(self, cluster: str) -> KubeClient | None:
        """A client of a cluster of the fleet, or of the host."""
        if cluster == HOST:
            return self.host
        member = self.fleet.members.get(cluster)
        return member.client if member is not None else None

    def _wants(self, controller: Controller, cluster: str) -> bool:
        """Whether a cluster is a controller's business; one that is leaving has left for most."""
        member = self.fleet.members.get(cluster)
        if member is not None and member.leaving_since is not None and not controller.spec.leaving:
            return False
        return controller.wants(cluster, dict(member.labels) if member is not None else {})

    def _select(self, controller: Controller, only: str | None = None) -> None:
        """Engage and disengage what the controller's scope and selector say."""
        for cluster, engaged in list(self.engaged_here.items()):
            if only is not None and cluster != only:
                continue
            wanted = self._wants(controller, cluster)
            if wanted and cluster not in controller.parts:
                controller.engage(engaged)
                if cluster == HOST:
                    for member in self.fleet.members.values():
                        if member.leaving_since is None:
                            controller.cluster_event(ADDED, cluster_object(member), None, initial=True)
            elif not wanted:
                controller.disengage(cluster, pb.CANCEL_REASON_CLUSTER_LEFT)

    # Fleet.

    async def engaged(self, member: Member) -> None:
        """See FleetListener."""
        self._take_over(member)
        self.want()
        if member.leaving_since is None:
            self._tell(ADDED, cluster_object(member), None)

    def _take_over(self, member: Member) -> None:
        """A cluster that was gone and back before the ownership had looked: the client that it is read with is closed."""
        engaged = self.engaged_here.get(member.name)
        if engaged is None or engaged.client is member.client:
            return
        engaged.client, engaged.incarnation = member.client, member.uid
        for controller in self.controllers.values():
            controller.disengage(member.name, pb.CANCEL_REASON_CLUSTER_LEFT)
            self._select(controller, member.name)

    async def updated(self, member: Member, old: Member) -> None:
        """See FleetListener. Another incarnation is another cluster under the same name."""
        engaged = self.engaged_here.get(member.name)
        if engaged is not None and member.uid != engaged.incarnation:
            if engaged.incarnation:
                for controller in self.controllers.values():
                    controller.disengage(member.name, pb.CANCEL_REASON_CLUSTER_LEFT)
            engaged.incarnation = member.uid
        for controller in self.controllers.values():
            self._select(controller, member.name)
        if (member.leaving_since is None) != (old.leaving_since is None):
            self._tell(ADDED if member.leaving_since is None else DELETED, cluster_object(member), None)
        elif member.leaving_since is None:
            self._tell(MODIFIED, cluster_object(member), cluster_object(old))

    async def disengaged(self, member: Member) -> None:
        """See FleetListener."""
        self.want()
        if member.leaving_since is None:
            self._tell(DELETED, cluster_object(member), None)

    def want(self) -> None:
        """Tell the ownership which clusters there are, once the fleet is known."""
        if self.ownership is not None and self.fleet.synced.is_set():
            self.ownership.want([HOST, *self.fleet.members])

    def _tell(self, event: str, obj: dict[str, Any], old: dict[str, Any] | None) -> None:
        for controller in self.controllers.values():
            if HOST in controller.parts:
                controller.cluster_event(event, obj, old)

    async def close(self) -> None:
        """Stop all controllers."""
        for handle in self._retention.values():
            handle.cancel()
        for controller in list(self.controllers.values()):
            await controller.close()
        self.controllers.clear()
        await self._tasks.close()


def cluster_object(member: Member) -> dict[str, Any]:
    """A cluster as an object of the source `clusters.reclock.dev`."""
    metadata: Mapping[str, Any] = {
        "name": member.name, "uid": member.uid, "labels": dict(member.labels), "annotations": dict(member.annotations),
    }  # fmt: skip
    return {"apiVersion": CLUSTERS.group_version, "kind": "Cluster", "metadata": dict(metadata)}
