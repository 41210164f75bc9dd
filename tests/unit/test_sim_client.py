"""The services' informer on a simulated cluster, without sockets."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from deploy.local.sim import Rule, World
from deploy.local.sim.bulk import load_pods
from deploy.local.sim.driver import Driver
from services.common.errors import MemberUnreachable, StatusError
from services.common.kube.client import KubeClient
from services.common.kube.informer import Informer
from services.common.kube.resource import PODS, Resource
from tests.sim_client import SimClient

CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")


def config(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


async def test_an_informer_follows_through_faults() -> None:
    loop = asyncio.get_running_loop()
    world = World(3, now=loop.time)
    driver = Driver(world, loop)
    east = world.add("east", role="none")
    client = SimClient(east)
    informer = Informer(cast(KubeClient, client), CONFIG_MAPS, namespace="default")
    running = asyncio.create_task(informer.run())
    try:
        async with asyncio.timeout(20):
            await informer.synced.wait()
            east.create(config("a"))
            east.drop_watches()
            east.compact()
            east.create(config("b"))
            east.faults.add(Rule("error", status=503, count=1))
            while {name for _, name in informer.store} != {"a", "b", "kube-root-ca.crt"}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        driver.close()


async def test_answers_and_refusals_are_those_of_a_real_client() -> None:
    east = World(3).add("east")
    client = SimClient(east)
    made = await client.create(CONFIG_MAPS, "default", config("a"))
    assert (await client.get(CONFIG_MAPS, "default", "a")) == made
    with pytest.raises(StatusError) as refused:
        await client.create(CONFIG_MAPS, "default", config("a"))
    assert refused.value.code == 409
    east.faults.add(Rule("hang"))
    with pytest.raises(MemberUnreachable):
        await client.request("GET", "/version", timeout=0.05)


async def test_bulk_pods_are_as_good_as_created_ones() -> None:
    east = World(3).add("east")
    load_pods(east, 300, namespace="default", prefix="web")
    listed = await SimClient(east).list(PODS, "default", labelSelector="app=web", limit=200)
    assert len(listed["items"]) == 200 and listed["metadata"].get("remainingItemCount") is None
    versions = {int(pod["metadata"]["resourceVersion"]) for pod in listed["items"]}
    assert len(versions) == 200 and len({pod["metadata"]["uid"] for pod in listed["items"]}) == 200
    patched = east.patch("pods", "default", "web-000299", {"metadata": {"labels": {"app": "x"}}})
    assert patched["status"]["phase"] == "Running"
