"""Members as they come and go: one task group and one set of caches each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from services.common.fleet import Member
from services.common.kube.resource import Resource
from services.common.tasks import FailureCallback, Tasks
from services.reconciler.controllers import garbage, leaving
from services.reconciler.controllers.context import Context
from services.reconciler.member_cache import MemberCache
from services.reconciler.owned import OwnedObjects
from services.reconciler.router import Router

log = logging.getLogger(__name__)


class Members:
    """Fleet listener. Leaving a member is one cancellation."""

    def __init__(self, context: Context, router: Router, sweep_seconds: float, failed: FailureCallback) -> None:
        self._context = context
        self._router = router
        self._sweep = sweep_seconds
        self._failed = failed
        self._tasks: dict[str, Tasks] = {}
        self._aggregated: list[Resource] = []

    def follow(self, resources: Iterable[Resource]) -> None:
        """Set which aggregated resources may have owners on the host."""
        self._aggregated = list(resources)
        for member in self._context.world.members.values():
            if member.owned is not None:
                member.owned.apply(self._aggregated)

    async def engaged(self, member: Member) -> None:
        """Follow a new member."""
        tasks = self._tasks[member.name] = Tasks(f"member {member.name}", self._failed)
        cache = MemberCache(member, self._context.world.fleet_id, self._router.member_event, tasks)

        def owned_changed(resource: str, namespace: str, name: str) -> None:
            self._router.owned_event(cache.name, resource, namespace, name)

        cache.owned = OwnedObjects(member.client, tasks, owned_changed, self._context.applier.check)
        self._context.world.members[member.name] = cache
        cache.start()
        cache.owned.apply(self._aggregated)
        tasks.spawn(self._look_after(cache), "sweep", root=True)
        if member.leaving_since is not None:
            self._context.add(member.name, *leaving.KEY)

    async def updated(self, member: Member, old: Member) -> None:
        """Start over with another incarnation; see to everything there when it is lost or back."""
        cache = self._context.world.members.get(member.name)
        if cache is None:
            return
        if old.uid and member.uid != old.uid:
            log.warning("member %s is another cluster now", member.name)
            await self.disengaged(member)
            await self.engaged(member)
            return
        if (member.leaving_since, member.forgotten) != (old.leaving_since, old.forgotten) or member.taints != old.taints:
            if old.leaving_since is not None and member.leaving_since is None:
                log.info("member %s is back before it had left", member.name)
                self._context.world.departing.pop(member.name, None)
                self._router.member_changed(cache)
            self._context.add(member.name, *leaving.KEY)
        if member.reachable != old.reachable and cache.synced:
            log.info("member %s is %s", member.name, "back" if member.reachable else "not reachable")
            self._router.member_changed(cache)

    async def disengaged(self, member: Member) -> None:
        """Stop following a member; what is there stays, and is noted as left behind."""
        cache = self._context.world.members.get(member.name)
        tasks = self._tasks.pop(member.name, None)
        if cache is None or tasks is None:
            return
        await tasks.close()
        del self._context.world.members[member.name]
        self._context.world.departing.pop(member.name, None)
        self._router.member_changed(cache)
        if left := cache.count():
            log.warning("member %s left the fleet with %d objects of ours on it", member.name, left)

    async def _look_after(self, cache: MemberCache) -> None:
        """Once read, everything is due; after that, a sweep now and then."""
        for informer in cache.informers.values():
            await informer.synced.wait()
        log.info("member %s: read, %d objects of ours", cache.name, cache.count())
        self._router.member_changed(cache)
        while True:
            await asyncio.sleep(self._sweep)
            if cache.member.leaving_since is not None:
                self._context.add(cache.name, *leaving.KEY)
            if cache.reachable:
                garbage.sweep(self._context, cache)

    async def close(self) -> None:
        """Stop following all."""
        for tasks in list(self._tasks.values()):
            await tasks.close()
        self._tasks.clear()
