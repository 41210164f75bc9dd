"""Two aggregators over one etcd on real clusters: kubectl against each, a client that moves when one is killed, and
several processes on one port."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import IO, Any

import aiohttp
import pytest_asyncio
import yaml

from deploy.local.fleet import Fleet
from deploy.local.pki import write_private
from services.common.errors import StatusError
from services.common.kube.client import KubeClient
from tests.integration.clock_rig import eventually
from tests.integration.etcd_server import free_port
from tests.kube.conftest import Kubectl


class RetryWatcher:
    """As client-go's: a watch of a namespace's pods that goes on at its last version, at whichever front answers."""

    def __init__(self, clients: list[KubeClient], namespace: str, version: str) -> None:
        self.events: list[dict[str, Any]] = []
        self.errors: list[dict[str, Any]] = []
        self._clients, self._version = clients, version
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        turn = 0
        while True:
            try:
                await self._watch(self._clients[turn % len(self._clients)])
            except (aiohttp.ClientError, OSError, StatusError) as error:
                if isinstance(error, StatusError) and error.code == 410:
                    self.errors.append({"code": 410, "message": error.message})
                turn += 1  # that front is gone: the other one
            await asyncio.sleep(0.05)

    async def _watch(self, client: KubeClient) -> None:
        query = {"watch": "true", "resourceVersion": self._version, "allowWatchBookmarks": "true"}
        async with client.stream("GET", self._path, query=query, timeout=600, sock_read=600) as response:
            async for line in response.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    self.errors.append(event["object"])
                    continue
                self._version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    self.events.append(event)

    def told(self) -> dict[str, list[str]]:
        """Types of the events, by pod."""
        out: dict[str, list[str]] = {}
        for event in self.events:
            out.setdefault(event["object"]["metadata"]["name"], []).append(event["type"])
        return out


@pytest_asyncio.fixture(loop_scope="session")
async def kubectls(fleet: Fleet, kubectl: Callable[[Path], Kubectl]) -> list[Kubectl]:
    """One for each aggregator."""
    return [kubectl(Path(front["kubeconfig"])) for front in fleet.describe()["fronts"].values()]


@pytest_asyncio.fixture(loop_scope="session")
async def namespace(kubectls: list[Kubectl]) -> AsyncIterator[str]:
    name = f"replicas-{uuid.uuid4().hex[:6]}"
    await kubectls[0]("create", "namespace", name)
    yield name
    await kubectls[0]("delete", "namespace", name, "--wait=false")


def numbers(pods: dict[str, Any]) -> dict[str, str]:
    return {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in pods["items"]}


async def test_a_client_writes_at_one_and_reads_at_another(kubectls: list[Kubectl], namespace: str) -> None:
    one, two = kubectls
    await one("-n", namespace, "run", "a", "--image=example/web:1")
    await two("-n", namespace, "get", "pod", "a")
    await two("-n", namespace, "run", "b", "--image=example/web:1")
    await one("-n", namespace, "wait", "--for=condition=Ready", "pod/a", "pod/b", "--timeout=60s")
    for writer, reader, value in ((one, two, "x"), (two, one, "y"), (one, two, "z")):
        await writer("-n", namespace, "label", "pod", "a", f"at={value}", "--overwrite")
        assert (await reader.json("-n", namespace, "get", "pod", "a"))["metadata"]["labels"]["at"] == value
    # An edit that was read at one and is written at the other: its version means the same, a stale one conflicts.
    pod = await one.json("-n", namespace, "get", "pod", "a")
    pod["metadata"]["labels"]["at"] = "replaced"
    await two("replace", "-f", "-", stdin=json.dumps(pod))
    stale = await one.run("replace", "-f", "-", stdin=json.dumps(pod))
    assert stale.code and "Conflict" in stale.err, stale
    for attempt in range(20):
        lists = [await each.json("-n", namespace, "get", "pods") for each in kubectls]
        if numbers(lists[0]) == numbers(lists[1]):
            break
        assert attempt < 19, "the same versions at every replica"
    assert "hello" in await two("-n", namespace, "exec", "b", "--", "echo", "hello")
    await two("-n", namespace, "delete", "pod", "b", "--wait=false")
    shown = await one.json("-n", namespace, "get", "pods")
    assert all(pod["metadata"].get("deletionTimestamp") for pod in shown["items"] if pod["metadata"]["name"] == "b")


def sequencer(fleet: Fleet) -> str:
    """The aggregator that leads for pods: of all, it has said least recently (or never) that another one does."""

    def followed_at(name: str) -> str:
        lines = fleet.processes[name].log.read_text().splitlines()
        return max((line for line in lines if "pods: another process is the sequencer" in line), default="")

    return min(("aggregator", "aggregator-2"), key=followed_at)


async def test_a_retrying_watcher_moves_when_the_sequencer_is_killed(
    fleet: Fleet, kubectls: list[Kubectl], namespace: str
) -> None:
    lead = sequencer(fleet)
    order = [front["kubeconfig"] for name, front in fleet.describe()["fronts"].items() if name == lead]
    order += [front["kubeconfig"] for name, front in fleet.describe()["fronts"].items() if name != lead]
    clients = [await KubeClient.connect(Path(path), name=f"front-{n}") for n, path in enumerate(order)]
    stays = kubectls[1] if lead == "aggregator" else kubectls[0]
    version = (await stays.json("-n", namespace, "get", "pods"))["metadata"]["resourceVersion"]
    watcher = RetryWatcher(clients, namespace, version)
    try:
        for number in range(3):
            await stays("-n", namespace, "run", f"before{number}", "--image=example/web:1")
        await fleet.processes[lead].kill9()
        for number in range(3):
            await stays("-n", namespace, "run", f"after{number}", "--image=example/web:1")
        names = [f"{when}{number}" for when in ("before", "after") for number in range(3)]
        await stays("-n", namespace, "delete", "pod", *names, "--grace-period=0", "--force")
        await eventually(lambda: all("DELETED" in watcher.told().get(name, []) for name in names), timeout=60)
    finally:
        watcher.task.cancel()
        await asyncio.gather(watcher.task, return_exceptions=True)
        for client in clients:
            await client.close()
        await fleet.processes[lead].start()
        await fleet.processes[lead].wait_ready()
    assert not watcher.errors, "no 410"
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in watcher.events]
    assert versions == sorted(set(versions)), "nothing twice, nothing back"
    for name in names:
        types = watcher.told()[name]
        assert types[0] == "ADDED" and types.count("ADDED") == types.count("DELETED") == 1, (name, types)
    # The killed one is back, as a follower, with the same versions.
    lists = [numbers(await one.json("-n", namespace, "get", "pods")) for one in kubectls]
    assert lists[0] == lists[1]


async def test_processes_on_one_port(
    fleet: Fleet, kubectl: Callable[[Path], Kubectl], tmp_path: Path, namespace: str
) -> None:
    config, kubeconfig, log = two_processes(fleet, tmp_path)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.aggregator", "--config", str(config), stderr=log, env=environment()
    )
    call = kubectl(kubeconfig)
    said = tmp_path / "log"
    try:
        first = await replicas(process.pid, 2)
        await call.until("get", "pods", "-A", is_so=lambda out: True, timeout=60)
        await eventually(lambda: said.read_text().count("common.service: ready") >= 2, "both are ready", 60)
        for _ in range(4):
            await call("get", "pods", "-n", namespace)
        os.kill(first[0], signal.SIGKILL)
        for _ in range(4):
            await call("get", "pods", "-n", namespace)
        again = await replicas(process.pid, 2)
        assert first[1] in again and first[0] not in again
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            assert await process.wait() == 0, said.read_text()[-3000:]
        assert not any(alive(pid) for pid in again)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        log.close()


def two_processes(fleet: Fleet, place: Path) -> tuple[Path, Path, IO[bytes]]:
    """Configuration of two more replicas on one port, a kubeconfig for them, and their log."""
    port = free_port()
    config = yaml.safe_load(Path(fleet.processes["aggregator"].command[-1]).read_text())
    config |= {
        "processes": 2, "frontAddress": f"127.0.0.1:{port}", "grpcAddress": f"127.0.0.1:{free_port()}",
        "userAddress": f"127.0.0.1:{free_port()}", "httpAddress": "127.0.0.1:0", "stateFile": str(place / "state"),
    }  # fmt: skip
    access = yaml.safe_load(fleet.kubeconfig.read_text())
    access["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
    return (
        write_private(place / "config.yaml", yaml.safe_dump(config)),
        write_private(place / "kubeconfig", yaml.safe_dump(access)),
        (place / "log").open("wb"),
    )


def environment() -> dict[str, str]:
    """Without proxies: the front is on this machine."""
    return {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}


async def replicas(supervisor: int, count: int) -> list[int]:
    """Wait until the supervisor has so many processes; their pids."""
    async with asyncio.timeout(30):
        while True:
            pids = children(supervisor)
            if len(pids) == count and all(alive(pid) for pid in pids):
                return pids
            await asyncio.sleep(0.05)


def children(pid: int) -> list[int]:
    """The processes that it started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    """Is it running (and no zombie)?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
