"""The etcd of the version markers is lost whole, on real clusters: clients list anew once, and the markers are verified,
rebuilt and counted with the command line."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

from deploy.local.fleet import Fleet
from services.common.errors import StatusError
from services.common.kube.client import KubeClient
from tests.integration.clock_rig import eventually
from tests.kube.conftest import Kubectl, Result


async def markers(fleet: Fleet, *arguments: str) -> Result:
    """`reclock markers …` at the front."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "reclock.cli", "markers", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "KUBECONFIG": str(fleet.kubeconfig)},
    )  # fmt: skip
    out, err = await asyncio.wait_for(child.communicate(), 90)
    assert child.returncode is not None
    return Result(child.returncode, out.decode(), err.decode())


async def agrees(fleet: Fleet) -> dict[str, Any]:
    """What `verify` compared, once nothing differs: events of a busy fleet may be under way."""
    for attempt in range(10):
        done = await markers(fleet, "verify", "-o", "json")
        if done.code == 0:
            found: dict[str, Any] = json.loads(done.out)
            assert not found["differences"]
            return found
        assert attempt < 9, done
        await asyncio.sleep(1)
    raise AssertionError


class Follower:
    """Lists a namespace's pods and watches them; lists anew when it is told 410. `held`: name -> uid, as it would show."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self.held: dict[str, str] = {}
        self.lists = 0
        self.expired = False
        self.versions: list[int] = []
        """Of every list and event, in the order in which they came."""
        self._client, self._path = client, f"/api/v1/namespaces/{namespace}/pods"
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            try:
                if not self.versions or self.expired:
                    await self._list()
                await self._watch()
            except (aiohttp.ClientError, OSError, StatusError) as error:
                self.expired = isinstance(error, StatusError) and error.code == 410
            await asyncio.sleep(0.1)

    async def _list(self) -> None:
        body = (await self._client.request("GET", self._path)).json()
        self.held = {one["metadata"]["name"]: one["metadata"]["uid"] for one in body["items"]}
        self.versions.append(int(body["metadata"]["resourceVersion"]))
        self.lists += 1
        self.expired = False

    async def _watch(self) -> None:
        query = {"watch": "true", "resourceVersion": str(self.versions[-1]), "allowWatchBookmarks": "true"}
        async with self._client.stream("GET", self._path, query=query, timeout=600, sock_read=600) as response:
            async for line in response.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    self.expired = event["object"]["code"] == 410
                    return
                metadata = event["object"]["metadata"]
                self.versions.append(int(metadata["resourceVersion"]))
                if event["type"] == "DELETED":
                    self.held.pop(metadata["name"], None)
                elif event["type"] != "BOOKMARK":
                    self.held[metadata["name"]] = metadata["uid"]


async def shown(front: Kubectl, namespace: str) -> dict[str, str]:
    items = (await front.json("-n", namespace, "get", "pods"))["items"]
    return {one["metadata"]["name"]: one["metadata"]["uid"] for one in items}


async def test_etcd_is_lost_whole_and_the_markers_are_rebuilt(fleet: Fleet, kubectl: Callable[[Path], Kubectl]) -> None:
    fronts = [Path(front["kubeconfig"]) for front in fleet.describe()["fronts"].values()]
    front, namespace = kubectl(fronts[0]), f"lost-{uuid.uuid4().hex[:6]}"
    etcd = fleet.processes["etcd"]
    data = Path(next(part.partition("=")[2] for part in etcd.command if part.startswith("--data-dir=")))
    clients = [await KubeClient.connect(path, name="front") for path in fronts]
    await front("create", "namespace", namespace)
    for name in ("a", "b"):
        await front("-n", namespace, "run", name, "--image=example/web:1")
    await front("-n", namespace, "wait", "--for=condition=Ready", "pod/a", "pod/b", "--timeout=60s")
    followers = [Follower(client, namespace) for client in clients]
    try:
        await eventually(lambda: all(one.held.keys() == {"a", "b"} for one in followers), timeout=30)
        before = await agrees(fleet)
        highest = max(one.versions[-1] for one in followers)
        await etcd.kill9()
        shutil.rmtree(data)
        await etcd.start()
        await etcd.wait_ready()
        await eventually(lambda: all(one.lists == 2 for one in followers), "each client lists anew", 90)
        await front.until("-n", namespace, "run", "c", "--image=example/web:1", is_so=lambda _: True)
        await eventually(lambda: all("c" in one.held for one in followers), timeout=60)
        after = await agrees(fleet)
        assert {one["cluster"] for one in after["compared"]} == {one["cluster"] for one in before["compared"]}

        rebuilt = await markers(fleet, "rebuild", "--yes")
        assert rebuilt.code == 0 and "rebuilt" in rebuilt.out + rebuilt.err, rebuilt
        await eventually(lambda: all(one.lists == 3 for one in followers), "each client lists anew, once more", 90)
        await front("-n", namespace, "delete", "pod", "a", "--grace-period=0", "--force")
        await eventually(lambda: all("a" not in one.held for one in followers), timeout=60)
        await agrees(fleet)
        stats = json.loads((await markers(fleet, "stats", "-o", "json")).out)
        pods = next(one for one in stats["resources"] if one["resource"] == "pods")
        assert pods["head"] > highest and {"east", "west"} <= {one["cluster"] for one in pods["members"] if one["state"] == "Live"}
        for one in followers:
            assert one.lists == 3 and one.versions == sorted(one.versions), "410 once each time, and versions never go back"
            assert one.held == await shown(front, namespace)
    finally:
        for one in followers:
            one.task.cancel()
        await asyncio.gather(*(one.task for one in followers), return_exceptions=True)
        for client in clients:
            await client.close()
        await front("delete", "namespace", namespace, "--wait=false")
