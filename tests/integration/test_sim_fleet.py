"""The whole of Reclock on simulated clusters: a Deployment placed over members, seen through the front, through a fault."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.local.api import Api
from deploy.local.engines import SIM, EtcdMissing, own_etcd
from deploy.local.fleet import Fleet
from deploy.local.sim.plane import SimEngine


async def until(ask: Callable[[], Any], is_so: Callable[[Any], bool], seconds: float = 60) -> Any:
    found = None
    try:
        async with asyncio.timeout(seconds):
            while not is_so(found := await ask()):  # noqa: ASYNC110
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise AssertionError(f"it stayed so: {found}") from None
    return found


async def test_a_deployment_comes_up_on_simulated_members(tmp_path: Path) -> None:
    try:
        own_etcd()
    except EtcdMissing as missing:
        pytest.skip(str(missing))
    async with Fleet.start(tmp_path / "fleet", members=["east", "west"], services=True, engine=SIM) as fleet:
        assert fleet.services is not None
        front = Api(fleet.services.front_access())
        template = {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "web", "image": "nginx:1"}]},
        }
        spec = {"replicas": 4, "selector": {"matchLabels": {"app": "web"}}, "template": template}
        web = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}
        await front.create(web)
        path = "/apis/apps/v1/namespaces/default/deployments/web"
        await until(
            lambda: front.request("GET", path), lambda got: got["status"].get("availableReplicas") == 4
        )
        pods = await front.request("GET", "/api/v1/namespaces/default/pods?labelSelector=app%3Dweb")
        nodes = sorted(pod["spec"]["nodeName"].partition("-")[0] for pod in pods["items"])
        assert nodes == ["east", "east", "west", "west"]
        assert isinstance(fleet.engine, SimEngine)
        await fleet.engine.tell("west", "drop-watches")
        await front.request("DELETE", path)
        await until(
            lambda: front.request("GET", "/api/v1/namespaces/default/pods"), lambda got: not got["items"]
        )
