"""Ten thousand clusters that come and go: no task, socket, descriptor or memory stays, in any listener of the fleet."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
from collections.abc import Awaitable, Callable

import pytest
from kube_fake import KubeFake, kubeconfig

from reclock.discovery.v1 import discovery_pb2 as pb
from services.common.fleet import FleetWatcher, Member
from services.common.kube.kubeconfig import single
from services.common.kube.resource import PODS
from services.discovery.config import Probe
from services.discovery.hub import Hub
from services.discovery.probe import Prober, ProbeResult
from services.discovery.providers.base import Reading, found
from services.discovery.registry import Registry
from tests.integration.work_rig import for_configmaps, rig

CYCLES = 10_000
WARM = 500
"""Cycles before the first count: caches fill."""


def held() -> tuple[int, int, int]:
    """(tasks, file descriptors, objects) of this process."""
    gc.collect()
    return len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd")), len(gc.get_objects())


async def cycles(cycle: Callable[[int], Awaitable[None]]) -> None:
    """Run the cycles and compare what is held before and after."""
    for number in range(WARM):
        await cycle(number)
    await asyncio.sleep(0.2)
    before = held()
    for number in range(CYCLES - WARM):
        await cycle(number)
    await asyncio.sleep(0.2)
    tasks, descriptors, objects = (now - then for now, then in zip(held(), before, strict=True))
    # Less than one of anything for each hundredth cycle.
    assert tasks < 10, f"{tasks} tasks more"
    assert descriptors < 10, f"{descriptors} descriptors more"
    assert objects < CYCLES // 10, f"{objects} objects more"


class Calls:
    """A listener that uses the clusters, as services do."""

    def __init__(self) -> None:
        self.seen = 0

    async def engaged(self, member: Member) -> None:
        self.seen += 1
        if self.seen % 20 == 0:
            await member.client.list(PODS)

    async def updated(self, member: Member, old: Member) -> None:
        return

    async def disengaged(self, member: Member) -> None:
        return


async def test_a_fleet_watcher_keeps_nothing_of_clusters_that_left() -> None:
    async with KubeFake() as kube:
        access = json.dumps(kubeconfig("c", {"server": kube.url}, {"token": "t"})).encode()
        watcher, calls = FleetWatcher("127.0.0.1:1"), Calls()
        watcher.subscribe(calls)

        async def cycle(number: int) -> None:
            name = f"c{number}"
            await watcher._upsert(pb.Cluster(name=name, access=pb.Access(kubeconfig=access, digest="one")))
            if number % 50 == 0:
                await watcher._upsert(pb.Cluster(name=name, access=pb.Access(kubeconfig=access, digest="two")))
            await watcher._disengage(name)
            kube.requests.clear()
            kube.headers.clear()

        await cycles(cycle)
        assert calls.seen == CYCLES
        assert watcher.members == {}


async def test_discovery_keeps_nothing_of_clusters_that_left() -> None:
    async with KubeFake() as kube:
        registry, answered = Registry(Hub(), ["files"]), asyncio.Event()

        def probed(name: str, result: ProbeResult) -> None:
            registry.probed(name, result)
            answered.set()

        prober = Prober(Probe(interval=0.1), probed)
        registry.add_keeper(prober)
        config = single(kubeconfig("c", {"server": kube.url}, {"token": "t"}))

        async def cycle(number: int) -> None:
            answered.clear()
            registry.reading("files", Reading((found(f"c{number}", config, f"file#{number}"),)))
            if number % 50 == 0:
                await answered.wait()
            registry.reading("files", Reading(()))
            await asyncio.sleep(0)
            kube.requests.clear()
            kube.headers.clear()

        await cycles(cycle)
        await prober.close()


async def test_the_work_service_keeps_nothing_of_clusters_that_left(caplog: pytest.LogCaptureFixture) -> None:
    # The fake apiserver logs requests whose client left in the middle, and pytest keeps what is logged.
    caplog.set_level(logging.CRITICAL, "aiohttp.server")
    async with rig("stays") as it:
        worker = it.worker(for_configmaps())
        await worker.next("registered")
        guest = it.clusters.add("guest")

        async def cycle(number: int) -> None:
            await it.join("guest")
            if number % 20 == 0:  # far enough for a watch to be open
                await asyncio.sleep(0.01)
            await it.fleet.leave("guest")
            worker.seen.clear()
            guest.queries.clear()
            guest.accepts.clear()

        await cycles(cycle)
        hub = it.work.parts.hub
        assert hub is not None
        assert set(hub.engaged_here) == {"", "stays"}
        await worker.close()
