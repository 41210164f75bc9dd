"""A member that runs an older Kubernetes than the others: read, watched and written like them.

Before 1.34 an API server does not list Exact from its cache, and Kubernetes before 1.33 has other defaults of WatchList.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from deploy.local.binaries import Binaries, BinariesMissing
from deploy.local.fleet import Fleet
from services.common.kube.client import KubeClient
from tests.integration.clock_rig import eventually
from tests.integration.sim_rig import STREAM
from tests.kube.conftest import Kubectl

OLDER = "v1.32.0"
PODS = "/api/v1/namespaces/default/pods"
FORMS = (
    "application/json", "application/json;as=Table;v=v1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "application/vnd.kubernetes.protobuf",
)  # fmt: skip


@pytest_asyncio.fixture(loop_scope="session")
async def mixed(tmp_path: Path) -> AsyncIterator[Fleet]:
    """east is of the usual version, west of the older one."""
    try:
        Binaries.of_version(OLDER)
    except BinariesMissing as missing:
        pytest.skip(str(missing))
    async with Fleet.start(tmp_path / "fleet", members=["east", "west"], services=True, versions={"west": OLDER}) as started:
        yield started


async def watch(client: KubeClient, into: list[dict[str, Any]], **query: str) -> None:
    async with client.stream("GET", PODS, query={"watch": "1", **query}, timeout=300, sock_read=300) as response:
        async for line in response.content:
            into.append(json.loads(line))


def told(events: list[dict[str, Any]], *types: str) -> list[str]:
    return [one["object"]["metadata"]["name"] for one in events if one["type"] in types]


async def test_an_older_member_beside_a_newer_one(mixed: Fleet, kubectl: Callable[[Path], Kubectl]) -> None:
    front, west = kubectl(mixed.kubeconfig), kubectl(mixed.members["west"].kubeconfig)
    assert json.loads(await west("version", "-o", "json"))["serverVersion"]["gitVersion"] == OLDER
    for name in ("east", "west"):
        member = kubectl(mixed.members[name].kubeconfig)
        for number in range(4):
            await member("run", f"{name}{number}", "--image=example/web:1", "--labels=app=web")
    names = sorted(f"{name}{number}" for name in ("east", "west") for number in range(4))
    await front("wait", "--for=condition=Ready", "pod", "-l", "app=web", "--timeout=90s")
    client = await KubeClient.connect(mixed.kubeconfig, name="front")
    streamed: list[dict[str, Any]] = []
    plain: list[dict[str, Any]] = []
    tasks: list[asyncio.Task[None]] = []
    try:
        for form in FORMS:
            answer = await client.request("GET", PODS, headers={"Accept": form}, check=False)
            assert answer.status == 200 and not answer.headers.getall("Warning", []), (form, answer)
            assert all(name.encode() in answer.body for name in names), form
        listed = (await client.request("GET", PODS)).json()
        assert [one["metadata"]["name"] for one in listed["items"]] == names
        version = listed["metadata"]["resourceVersion"]
        assert (await walked(client)) == names
        exact = {"resourceVersion": version, "resourceVersionMatch": "Exact"}
        assert (await client.request("GET", PODS, query=exact)).json()["items"] == listed["items"]
        selected = (await client.request("GET", PODS, query={"fieldSelector": "spec.nodeName=west-n0"})).json()["items"]
        assert {one["metadata"]["annotations"]["reclock.dev/cluster"] for one in selected} <= {"west"}

        tasks = [asyncio.create_task(watch(client, streamed, **STREAM)), asyncio.create_task(watch(client, plain, resourceVersion=version))]
        await eventually(lambda: [one["type"] for one in streamed].count("BOOKMARK") == 1, timeout=30)
        assert sorted(told(streamed, "ADDED")) == names
        await front("label", "pod", "west1", "at=front")
        stale = next(one for one in listed["items"] if one["metadata"]["name"] == "west1")
        refused = await front.run("replace", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "Pod", **stale}))
        assert refused.code and "Conflict" in refused.err, refused
        applied = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "west2", "namespace": "default", "labels": {"by": "apply"}}}
        await front("apply", "--server-side", "-f", "-", stdin=json.dumps(applied))
        assert (await west.json("get", "pod", "west2"))["metadata"]["labels"]["by"] == "apply"
        await west("delete", "pod", "west3", "--grace-period=0", "--force")
        for seen in (streamed, plain):
            await eventually(lambda seen=seen: {"west1", "west2"} <= set(told(seen, "MODIFIED")) and "west3" in told(seen, "DELETED"), timeout=30)
        assert "west3" not in (await front("get", "pods"))
        assert "west" in await front("logs", "west0")
        assert "hello" in await front("exec", "west0", "--", "echo", "hello")
        await front("delete", "pod", "west0", "--grace-period=0", "--force")
        await eventually(lambda: "west0" in told(plain, "DELETED"), timeout=30)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.close()


async def walked(client: KubeClient) -> list[str]:
    """Names of all pods, in pages of three."""
    found: list[str] = []
    query = {"limit": "3"}
    while True:
        page = (await client.request("GET", PODS, query=query)).json()
        found += [one["metadata"]["name"] for one in page["items"]]
        if not (token := page["metadata"].get("continue")):
            return found
        query["continue"] = token
