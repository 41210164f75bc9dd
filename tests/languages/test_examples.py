"""The same controllers in four languages, on real clusters: what they print is equal after sorting."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from deploy.local.process import Process
from reclock.discovery.v1 import discovery_pb2, discovery_pb2_grpc
from tests.languages.conftest import Running, World, namespace
from tests.languages.toolchains import LANGUAGES, Missing, Programs

LABEL = "examples.reclock.dev/copy"


def expected(world: World) -> list[str]:
    """What a logger prints of the ConfigMaps that are there."""
    lines = []
    for cluster in world.fleet.members:
        for item in json.loads(world.kubectl(cluster, "get", "configmaps", "-A", "-o", "json"))["items"]:
            metadata, keys = item["metadata"], ",".join(sorted(item.get("data") or {})) or "-"
            lines.append(f"{cluster} {metadata['namespace']}/{metadata['name']} {keys}")
    return sorted(lines)


@pytest.mark.timeout(1200)
def test_loggers_print_the_same(
    world: World, programs: Callable[[str], Programs], start: Callable[..., Running]
) -> None:
    commands: dict[str, Any] = {}
    left_out: list[str] = []
    for language, tools in LANGUAGES.items():
        try:
            commands[language] = tools().logger
        except Missing as missing:
            left_out.append(f"{language}: {missing}")
    running = {language: start(f"logger-{language}", command) for language, command in commands.items()}
    there = expected(world)
    for one in running.values():
        one.until(lambda lines: set(there) <= set(lines))
    world.kubectl("east", "create", "configmap", "logged", "--from-literal=b=1", "--from-literal=a=2")
    world.kubectl("west", "create", "configmap", "logged")
    for one in running.values():
        one.until(lambda lines: {"east default/logged a,b", "west default/logged -"} <= set(lines))
    world.kubectl("west", "delete", "configmap", "logged")
    for one in running.values():
        one.until(lambda lines: "west default/logged gone" in lines)
    codes = {language: one.stop() for language, one in running.items()}
    outputs = {language: one.lines() for language, one in running.items()}
    assert all(output == outputs["python"] for output in outputs.values()), outputs
    assert codes["python"] == 0 and codes.get("go", 0) == 0 and codes.get("typescript", 0) == 0, codes
    if left_out:
        pytest.skip(f"equal of {', '.join(outputs)}; {'; '.join(left_out)}")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("language", LANGUAGES)
def test_copiers_do_the_same(
    language: str, world: World, programs: Callable[[str], Programs], start: Callable[..., Running]
) -> None:
    command = programs(language).copier
    with namespace(world, f"copies-{language}") as space:
        world.kubectl("", "create", "configmap", "shared", "-n", space, "--from-literal=k=v")
        world.kubectl("", "label", "configmap", "shared", "-n", space, f"{LABEL}=true")
        one = start(f"copier-{language}", command)
        one.until(lambda lines: len(lines) == 2)
        for cluster in world.fleet.members:
            copy = json.loads(world.kubectl(cluster, "get", "configmap", "shared", "-n", space, "-o", "json"))
            assert copy["data"] == {"k": "v"}
        world.kubectl("", "label", "configmap", "shared", "-n", space, f"{LABEL}-")
        one.until(lambda lines: len(lines) == 4)
        for cluster in world.fleet.members:
            assert "shared" not in world.kubectl(cluster, "get", "configmaps", "-n", space, "-o", "name")
        one.stop()
        copied = [f"copied {space}/shared to {cluster}" for cluster in ("east", "west")]
        assert one.lines() == [*copied, *(f"removed {space}/shared from {cluster}" for cluster in ("east", "west"))]


@pytest.mark.asyncio(loop_scope="session")
async def test_clusters_of_a_provider_in_go(
    world: World, programs: Callable[[str], Programs], start: Callable[..., Running], tmp_path: Path
) -> None:
    import asyncio
    import sys

    folder = tmp_path / "clusters"
    folder.mkdir()
    for name, member in world.fleet.members.items():
        (folder / f"{name}.kubeconfig").write_bytes(member.kubeconfig.read_bytes())
    ports = [world.fleet._ports.take(), world.fleet._ports.take()]
    command = await asyncio.to_thread(lambda: programs("go").provider)
    start("provider", [*command, "-listen", f"127.0.0.1:{ports[0]}", "-dir", str(folder)])
    config = tmp_path / "discovery.yaml"
    address = f"127.0.0.1:{ports[1]}"
    provider = {"type": "remote", "address": f"127.0.0.1:{ports[0]}"}
    config.write_text(yaml.safe_dump({"grpcAddress": address, "providers": [provider], "host": {"kubeconfig": ""}}))
    discovery = Process(
        "discovery", [sys.executable, "-m", "services.discovery", "--config", config], log=tmp_path / "discovery.log"
    )
    await discovery.start()
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            stub = discovery_pb2_grpc.DiscoveryServiceStub(channel)
            await _until(stub, lambda found: found == {"east": "remote", "west": "remote"})
            (folder / "west.kubeconfig").unlink()
            await _until(stub, lambda found: set(found) == {"east"})
    finally:
        await discovery.stop()


async def _until(stub: Any, condition: Callable[[dict[str, str]], bool]) -> None:
    """Wait until discovery's clusters, name to provider, are so."""
    import asyncio

    async with asyncio.timeout(60):
        while True:
            listed = await stub.ListClusters(discovery_pb2.ListClustersRequest(), wait_for_ready=True, timeout=30)
            if condition({one.name: one.provider for one in listed.clusters}):
                return
            await asyncio.sleep(0.1)
