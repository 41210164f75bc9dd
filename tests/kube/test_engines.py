"""kube-apiserver still answers as recorded: what the simulated cluster is held to (tests/unit/test_sim_conformance.py)."""

from __future__ import annotations

import aiohttp
import pytest

from deploy.local.fleet import Fleet
from tests.conformance.run import HttpEngine, differences, play, recorded
from tests.conformance.scenarios import SCENARIOS, TIMED


@pytest.mark.parametrize("name", SCENARIOS | TIMED)
async def test_kube_apiserver_answers_as_recorded(name: str, clusters: Fleet) -> None:
    async with aiohttp.ClientSession() as session:
        # The host: no controller of it makes pods or places them, so nothing happens between requests.
        answered = await play(HttpEngine(session, clusters.host.api), name, (SCENARIOS | TIMED)[name])
    found = differences(answered, recorded(name))
    assert not found, "now | recorded\n" + "\n".join(found)
