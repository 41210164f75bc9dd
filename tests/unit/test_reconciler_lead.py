"""A replica that loses the host: its built-in handlers end at once, and write nothing, even if it is back at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from reconciler_world import FLEET, Client, Made
from sdk_tools import until
from test_reconciler_dispatch import JOB, Recording
from test_reconciler_leaving import Leaves

from reclock import Fleet, Worker
from services.common.errors import StatusError
from services.common.kube.resource import Resource
from services.common.tasks import Tasks
from services.reconciler.applier import Applier
from services.reconciler.controllers import leaving, namespaces
from services.reconciler.keys import Key
from services.reconciler.lead import Lead
from services.reconciler.manifests import manifest
from services.reconciler.names import HOST, HOST_UID, NAMESPACE_FINALIZER, ORIGIN
from services.reconciler.owned import OwnedObjects
from services.reconciler.work.hub import Hub
from tests.integration.work_rig import Rig, rig

DRAIN = 60.0
PODS = Resource("", "v1", "pods", "Pod")


class Held(Recording):
    """Its reconciles make a Job on a member that does not say which cluster it is before `answer` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.made = Made("east")
        self.client: Client = self.made.member("east").client  # type: ignore[assignment]
        self.asked, self.answer = asyncio.Event(), asyncio.Event()
        self.applier = Applier()
        self.ended: list[str] = []
        request = self.client.request

        async def held(*args: Any, **how: Any) -> Any:
            self.asked.set()
            await self.answer.wait()
            return await request(*args, **how)

        self.client.request = held  # type: ignore[method-assign]

    async def write(self) -> None:
        """Make the Job."""
        job = self.made.host("job", "a", spec={"template": {"spec": {"containers": []}}})
        await self.applier.sync(self.made.member("east"), "job", manifest("job", job, FLEET))

    async def _reconcile(self, cluster: str, key: Any) -> None:
        await super()._reconcile(cluster, key)
        try:
            await self.write()
        except asyncio.CancelledError:
            self.ended.append(cluster)
            raise


def lead_of(it: Rig, held: Held, tasks: Tasks) -> tuple[Lead, Hub, list[Worker]]:
    """The built-in controllers, led as the service does."""
    hub = it.work.parts.hub
    assert hub is not None
    workers: list[Worker] = []

    def make() -> Worker:
        workers.append(Worker(
            *held.controllers, fleet=Fleet.without_front(it.work.token), reconciler=it.server.bound, tls_cert="",
            drain=DRAIN,
        ))  # fmt: skip
        return workers[-1]

    lead = Lead(hub, tasks, make)
    held.applier = Applier(lead.holds)
    tasks.spawn(lead.run(), "lead")
    return lead, hub, workers


def blip(hub: Hub) -> None:
    """The lease lapses, and the replica takes part again before anything else has run: without the host."""
    hub.valid = lambda: False
    hub.lost(HOST)
    hub.valid = lambda: True


async def test_handlers_end_at_once_when_the_host_is_lost_and_start_anew_when_it_is_back() -> None:
    held = Held()
    tasks = Tasks("test")
    async with rig("east", lease=60) as it:
        lead, hub, workers = lead_of(it, held, tasks)
        try:
            held.listed = [JOB]
            await until(lambda: ("east", JOB) in held.ran)
            assert lead.holds()
            blip(hub)
            assert hub.valid() and not lead.holds()
            # East is still this replica's: nobody but the worker ends what runs there. Nor is it drained: that takes longer.
            await until(lambda: "east" in held.ended)
            async with asyncio.timeout(20):
                await workers[0].stop()
            assert not [call for call in held.client.calls if call[0] == "create"]
            held.answer.set()
            hub.gained(HOST, 7, 0.0)
            await until(lambda: len(workers) == 2 and any(call[0] == "create" for call in held.client.calls))
            assert lead.holds()
        finally:
            await tasks.close()


@pytest.mark.parametrize("back", [False, True])
async def test_what_began_before_the_host_was_lost_writes_nothing_after_it(back: bool) -> None:
    held = Held()
    tasks = Tasks("test")
    async with rig("east", lease=60) as it:
        lead, hub, workers = lead_of(it, held, tasks)
        try:
            await until(lambda: workers and workers[0].connected)
            # Not a handler: as one that is about to be cancelled, but has not been yet.
            writing = asyncio.create_task(held.write())
            await asyncio.wait_for(held.asked.wait(), 20)
            blip(hub)
            if back:
                # Another replica had it meanwhile, for all that is known.
                hub.gained(HOST, 7, 0.0)
                assert hub.leading.is_set() and not lead.holds()
            held.answer.set()
            with pytest.raises(StatusError, match="another replica"):
                await writing
            assert not [call for call in held.client.calls if call[0] == "create"]
        finally:
            await tasks.close()


async def test_nothing_else_is_written_on_members_either() -> None:
    leaves = Leaves()
    leaves.valid = False
    with pytest.raises(StatusError, match="another replica"):
        await leaving._delete_namespace(leaves.context, leaves.east, "ns", "uid")
    owned = OwnedObjects(leaves.member, Tasks("test"), lambda *_: None, leaves.context.applier.check)  # type: ignore[arg-type]
    owned.informers["pods"] = type("Known", (), {"resource": PODS})()
    pod = {"metadata": {"namespace": "ns", "name": "a", "uid": "u"}}
    meta = {"name": "made", "uid": "n", "resourceVersion": "1", "finalizers": [NAMESPACE_FINALIZER]}
    leaves.made.seen("namespace", {"metadata": meta})
    gone = {"metadata": {"name": "gone", "uid": "g", "annotations": {HOST_UID: "h"}, "labels": {ORIGIN: FLEET}}}
    leaves.made.cached("namespace", gone, "east")
    writes: list[Callable[[], Awaitable[object]]] = [
        lambda: namespaces.ensure_namespace(leaves.context, leaves.east, "made"),
        lambda: namespaces.reconcile_member(leaves.context, leaves.east, Key("namespace", "", "gone")),
        lambda: owned.remove("pods", pod, "Background"), lambda: owned.remove_routed(PODS, pod),
        lambda: owned.disown("pods", pod, []),
    ]  # fmt: skip
    for write in writes:
        with pytest.raises(StatusError, match="another replica"):
            await write()
    leaves.made.member("east").member.reachable = False
    leaves.leave(50_000)
    with pytest.raises(StatusError, match="another replica"):
        await leaves.step()
    assert not leaves.member.calls and not leaves.released
    leaves.valid = True
    leaves.made.world.departing.clear()
    for write in writes:
        await write()
    assert [call[0].split()[0] for call in leaves.member.calls] == ["create", *["delete"] * 3, "patch"]
