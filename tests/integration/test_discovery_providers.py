"""Several providers at once in a discovery process; one of them away over its restart."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import yaml

from reclock.discovery.v1 import discovery_pb2 as pb
from reclock.discovery.v1 import discovery_pb2_grpc
from services.common.grpc import GrpcServer
from tests.integration.test_discovery_process import Process, condition, discovery, listed, put, spawn
from tests.unit.kube_fake import kubeconfig


def config_of(name: str) -> dict[str, Any]:
    """A kubeconfig of a cluster that does not answer: none is waited for."""
    return kubeconfig(name, {"server": f"https://127.0.0.1:1/{name}"}, {"token": "t"})


class Provider(discovery_pb2_grpc.ClusterProviderServiceServicer):
    """Provides one cluster."""

    async def ProvideClusters(self, request: Any, context: Any) -> AsyncIterator[Any]:
        found = pb.ProvideClustersResponse.Found(name="far", kubeconfig=json.dumps(config_of("far")).encode())
        yield pb.ProvideClustersResponse(found=found)
        yield pb.ProvideClustersResponse(synced=True)
        await asyncio.Event().wait()


async def serve(address: str) -> GrpcServer:
    server = GrpcServer(address)
    register = discovery_pb2_grpc.add_ClusterProviderServiceServicer_to_server
    server.add(register, Provider(), "reclock.discovery.v1.ClusterProviderService")
    await server.start()
    return server


def stand_in(folder: Path, name: str) -> str:
    """A `kind` that knows one cluster."""
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(config_of(name)))
    command = folder / f"kind-{name}"
    command.write_text(f'#!/bin/sh\n[ "$2" = clusters ] && echo {name} || cat {folder}/{name}.yaml\n')
    command.chmod(0o755)
    return str(command)


async def test_several_at_once_and_a_restart_while_one_is_away(tmp_path: Path) -> None:
    server = await serve("127.0.0.1:0")
    providers = [
        {"type": "kubeconfig-file", "paths": [str(tmp_path / "clusters")]},
        {"type": "kind", "name": "a", "command": stand_in(tmp_path, "one")},
        {"type": "kind", "name": "b", "command": stand_in(tmp_path, "two")},
        {"type": "remote", "address": server.bound},
    ]
    put(tmp_path, "file.yaml", config_of("file"))
    everything = {"file": "kubeconfig-file", "one": "kind#a", "two": "kind#b", "far": "remote"}
    config = {"providers": providers, "stateFile": str(tmp_path / "state")}

    def shown(answer: Any) -> dict[str, str]:
        return {cluster.name: cluster.provider for cluster in answer.clusters}

    async with discovery(tmp_path, **config) as process:
        await listed(process, lambda answer: shown(answer) == everything)
        await server.stop(0)
        answer = await listed(process, lambda answer: [p.provider for p in answer.problems] == ["remote"])
        assert shown(answer) == everything
        assert condition(answer, "far", "Configured").reason == "SourceUnreadable"
        assert await process.end() == 0
    # Its clusters outlive a restart without it, and the others do not wait for it.
    again = Process(await spawn("--config", str(tmp_path / "discovery.yaml")))
    try:
        await again.until(lambda: bool(again.grpc))
        answer = await listed(again, lambda answer: any(p.provider == "remote" for p in answer.problems))
        assert shown(answer) == everything
        assert condition(answer, "far", "Configured").status == "False"
        await listed(again, lambda answer: condition(answer, "file", "Configured").status == "True")
        assert "ready" not in again.log.split()
        server = await serve(server.bound)
        await again.until(lambda: "ready" in again.log.split())
        answer = await listed(again, lambda answer: not answer.problems)
        assert shown(answer) == everything
        assert "disengaged" not in again.log
        assert await again.end() == 0
    finally:
        if again.child.returncode is None:
            await again.end()
        await server.stop(0)
