"""The Python SDK and its commands on real clusters."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from reclock import Fleet, Index, Queues, Request, Requeue, Result, SyncRequest, Worker, controller
from tests.languages.conftest import Running, World

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "python"
pytestmark = pytest.mark.asyncio(loop_scope="session")


async def kubectl(world: World, *arguments: str) -> str:
    return await asyncio.to_thread(world.kubectl, *arguments)


async def eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - any condition
            await asyncio.sleep(0.05)


async def test_a_worker_outlives_the_reconciler(world: World) -> None:
    seen: list[str] = []
    release = asyncio.Event()

    @controller(for_="v1/configmaps", selector="sdk=yes", name="outlives", indexes=[Index(name="team", label="team")])
    async def outlives(request: Request) -> None:
        seen.append(f"begin {request}")
        await release.wait()
        found = await request.indexed("team", "blue")
        seen.append(f"end {request} {[one.cluster for one in found.objects]}")

    @controller(for_="v1/configmaps", selector="sdk=yes")
    def plain(request: SyncRequest) -> Result:
        obj = request.get()
        seen.append(f"plain {request} {obj and obj['data']}")
        return Requeue(after=1)

    address = world.environment["RECLOCK_RECONCILER"]
    async with Worker(outlives, plain, kubeconfig=world.fleet.kubeconfig, reconciler=address):
        for cluster in ("east", "west"):
            await kubectl(world, cluster, "create", "configmap", "sdk", f"--from-literal=k={cluster}")
            await kubectl(world, cluster, "label", "configmap", "sdk", "sdk=yes", "team=blue")
        await eventually(lambda: {"begin east/default/sdk", "begin west/default/sdk"} <= set(seen))
        await world.fleet.processes["reconciler"].kill9()
        await world.fleet.processes["reconciler"].start()
        await world.fleet.processes["reconciler"].wait_ready()
        release.set()
        await eventually(lambda: len([one for one in seen if one.startswith("end")]) >= 2)
        # Of a reconciler that has just started the index may lack what it has not read yet: asked again after its list.
        await eventually(lambda: "end east/default/sdk ['east', 'west']" in seen)
        await eventually(lambda: seen.count("plain east/default/sdk {'k': 'east'}") >= 3)
        async with Queues(kubeconfig=world.fleet.kubeconfig, reconciler=address) as queues:
            rows = (await queues.list("plain")).queues
            assert {row.cluster for row in rows if row.served} == {"east", "west"}


async def test_queues_are_shown_and_steered(world: World) -> None:
    seen: list[str] = []

    @controller(for_="v1/configmaps", selector="queue=yes", name="steered")
    async def steered(request: Request) -> None:
        seen.append(request.cluster_name)

    address = world.environment["RECLOCK_RECONCILER"]

    async def command(*arguments: str) -> str:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "reclock.cli", "queue", *arguments, "--reconciler", address,
            "--kubeconfig", str(world.fleet.kubeconfig), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        out = (await child.communicate())[0].decode()
        assert child.returncode == 0, out
        return out

    async with Worker(steered, kubeconfig=world.fleet.kubeconfig, reconciler=address):
        await command("pause", "east", "-c", "steered")
        for cluster in ("east", "west"):
            await kubectl(world, cluster, "create", "configmap", "queue")
            await kubectl(world, cluster, "label", "configmap", "queue", "queue=yes")
        await eventually(lambda: "west" in seen)
        shown = await command("-c", "steered")
        assert "east" not in seen
        east = next(line.split() for line in shown.splitlines() if line.startswith("steered   ") and " east " in line)
        assert (east[2], east[-1]) == ("1", "paused"), shown
        await command("resume", "east", "-c", "steered")
        await eventually(lambda: "east" in seen)


async def test_a_fleet_through_the_front(world: World) -> None:
    async with Fleet.connect(world.fleet.kubeconfig) as fleet:
        assert [one.name for one in await fleet.clusters()] == ["east", "west"]
        east = await fleet.provider("east")
        assert east.provider.startswith("kubeconfig-file") and east.kube_version.startswith("v1.")
        cache = fleet.cache("v1/nodes", indexes={"all": lambda obj: ["yes"]})
        await cache.synced()
        assert {one.cluster for one in fleet.query("all", "yes")} == {"east", "west"}
        made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied", "namespace": "default"}}
        await fleet.cluster("west").apply({**made, "data": {"a": "1"}})
        assert "applied" in await kubectl(world, "west", "get", "configmaps", "-o", "name")
        await fleet.cluster("west").delete("v1/configmaps", "applied", "default")
        async for change in fleet.cluster("west").watch("v1/namespaces", labels="kubernetes.io/metadata.name=default"):
            assert change.object["metadata"]["name"] == "default"
            break


async def test_the_host_issues_something_for_each_cluster(world: World, start: Callable[..., Running]) -> None:
    one = start("identity", [sys.executable, str(EXAMPLES / "cluster_identity.py")])
    await asyncio.to_thread(one.until, lambda lines: len([line for line in lines if "has a token" in line]) == 2)
    secrets = await kubectl(world, "east", "get", "secrets", "-n", "fleet-identities", "-o", "name")
    assert secrets.split() == ["secret/fleet-identity"]
    one.stop()


async def test_a_command_once_for_each_cluster(world: World, start: Callable[..., Running]) -> None:
    command = ["sh", "-c", f"{world.program} get nodes -o name; exec sleep 600"]
    kubeconfig = ["--kubeconfig", str(world.fleet.kubeconfig)]
    one = start("each", [sys.executable, "-m", "reclock.cli", "run", "--each-cluster", *kubeconfig, "--", *command])
    await asyncio.to_thread(one.until, lambda lines: {"[east] node/east-n0", "[west] node/west-n0"} <= set(lines))
    assert not any(line.startswith("[east] node/west") for line in one.lines())
    assert await asyncio.to_thread(one.stop) == 0
    assert {"[east] stopped (signal 15)", "[west] stopped (signal 15)"} <= set(one.lines())
