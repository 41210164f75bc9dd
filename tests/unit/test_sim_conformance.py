"""The simulated cluster answers as kube-apiserver was recorded to answer."""

from __future__ import annotations

import pytest

from deploy.local.sim import World
from tests.conformance.run import SimEngine, differences, play, recorded
from tests.conformance.scenarios import SCENARIOS


@pytest.mark.parametrize("name", SCENARIOS)
async def test_the_sim_answers_as_kube_apiserver_does(name: str) -> None:
    world = World(1)
    engine = SimEngine(world, world.add("sim", role="basic"))
    world.settle()
    found = differences(await play(engine, name, SCENARIOS[name]), recorded(name))
    assert not found, "sim | kube-apiserver\n" + "\n".join(found)
