"""The simulated cluster answers as kube-apiserver was recorded to answer."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest

from deploy.local.sim import World
from deploy.local.sim.server import Server
from tests.conformance.run import HttpEngine, SimEngine, differences, play, recorded
from tests.conformance.scenarios import SCENARIOS, TIMED


@pytest.mark.parametrize("name", SCENARIOS)
async def test_the_sim_answers_as_kube_apiserver_does(name: str) -> None:
    world = World(1)
    engine = SimEngine(world, world.add("sim", role="basic"))
    world.settle()
    found = differences(await play(engine, name, SCENARIOS[name]), recorded(name))
    assert not found, "sim | kube-apiserver\n" + "\n".join(found)


@pytest.mark.parametrize("name", TIMED)
async def test_the_sim_server_keeps_the_time_that_kube_apiserver_does(name: str) -> None:
    world = World(1, time.time)
    server = Server(world, anonymous=True)
    async with server.serving(), aiohttp.ClientSession() as session:
        world.add("sim", role="basic")
        engine = HttpEngine(session, cast(Any, SimpleNamespace(server=server.url_of("sim"), tls=False)))
        found = differences(await play(engine, name, TIMED[name]), recorded(name))
    assert not found, "sim | kube-apiserver\n" + "\n".join(found)
