"""The scheduler as a process: refused starts, both roles without the others there, /readyz, ordered stop."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from reclock.scheduler.v1 import scheduler_pb2 as pb
from reclock.scheduler.v1 import scheduler_pb2_grpc

LIMIT = 30.0


async def spawn(*argv: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.scheduler", *argv, stdout=pipe, stderr=pipe
    )


async def run(*argv: str) -> tuple[int | None, str, str]:
    child = await spawn(*argv)
    out, err = await asyncio.wait_for(child.communicate(), LIMIT)
    return child.returncode, out.decode(), err.decode()


def kubeconfig(path: Path) -> str:
    """Access to a cluster that is not there."""
    path.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "c", "user": {}}], "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    }))  # fmt: skip
    return str(path)


class Running:
    """A process whose ports are read from its log."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self.child, self.log = child, ""
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.child.stderr is not None
        while line := await self.child.stderr.readline():
            self.log += line.decode()

    async def find(self, pattern: str) -> str:
        async with asyncio.timeout(LIMIT):
            while not (found := re.search(pattern, self.log)):
                assert self.child.returncode is None, self.log
                await asyncio.sleep(0.02)
        return found[1]

    async def end(self) -> int:
        self.child.send_signal(signal.SIGTERM)
        code = await asyncio.wait_for(self.child.wait(), LIMIT)
        await self._reader
        return code


@asynccontextmanager
async def running(tmp_path: Path, **config: Any) -> AsyncIterator[Running]:
    path = tmp_path / "scheduler.yaml"
    host = {"kubeconfig": kubeconfig(tmp_path / "host.kubeconfig")}
    path.write_text(
        yaml.safe_dump(
            {"grpcAddress": "127.0.0.1:0", "discoveryAddress": "127.0.0.1:9", "host": host, **config}
        )
    )
    process = Running(await spawn("--config", str(path)))
    try:
        yield process
    finally:
        if process.child.returncode is None:
            process.child.kill()
            await process.child.wait()


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--bogus", "1"], "--bogus: unknown flag"),
        (["--role", "boss"], "role"),
        (["--role", "worker"], "a worker needs the name of its member"),
        (["--admitTimeout", "0"], "must be more than 0 seconds"),
        (["--leaseSeconds", "1"], "must be at least 2"),
        (["--workers", "[east]"], "workers"),
        (["--grpcAddress", "0.0.0.0:0"], "tls.cert"),
        (["--host.kubeconfig", "/does/not/exist"], "/does/not/exist"),
    ],
)
async def test_start_is_refused_in_one_line(argv: list[str], expected: str) -> None:
    code, _, err = await run("--httpAddress", "", *argv)
    assert code == 2, err
    assert expected in err.splitlines()[-1]


async def test_the_effective_configuration_is_printed() -> None:
    code, out, _ = await run("--workers", "{east: '127.0.0.1:1'}", "--admitTimeout", "3", "--print-config")
    found = yaml.safe_load(out)
    assert code == 0
    assert (found["role"], found["admitTimeout"], found["workers"]) == (
        "manager",
        3.0,
        {"east": "127.0.0.1:1"},
    )
    assert (found["reservationTtl"], found["workerLostTimeout"], found["podsReadyTimeout"]) == (
        30.0,
        900.0,
        300.0,
    )


async def ready(process: Running) -> tuple[int, str]:
    address = await process.find(r"operations on (http://\S+)")
    async with aiohttp.ClientSession() as session, session.get(f"{address}/readyz?verbose") as answer:
        return answer.status, await answer.text()


async def test_a_manager_alone_says_what_is_missing_and_stops_in_order(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        address = await process.find(r"gRPC on (\S+)")
        await process.find(r"(waiting for discovery)")
        code, text = await ready(process)
        assert code == 503
        assert "Workloads were not read from the host yet" in text
        assert "[-]discovery failed" in text
        async with grpc.aio.insecure_channel(address) as channel:
            health = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=5
            )
            assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING
            stub = scheduler_pb2_grpc.PlacementServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await stub.Explain(
                    pb.ExplainRequest(owner=pb.OwnerRef(kind="Job", namespace="a", name="b")), timeout=5
                )
            assert failure.value.code() is grpc.StatusCode.NOT_FOUND
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await stub.PlaceObject(pb.PlaceObjectRequest(api_version="v1", kind="Pod"), timeout=5)
            assert failure.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert failure.value.details() == "the fleet has no member"
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                request = pb.PlaceObjectRequest(api_version="v1", kind="Pod", manifest=b"{")
                await stub.PlaceObject(request, timeout=5)
            assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert await process.end() == 0
        assert "stopped" in process.log


async def test_a_worker_without_its_member_says_so(tmp_path: Path) -> None:
    member = {"kubeconfig": kubeconfig(tmp_path / "east.kubeconfig")}
    async with running(tmp_path, role="worker", cluster="east", member=member) as process:
        address = await process.find(r"gRPC on (\S+)")
        code, text = await ready(process)
        assert code == 503
        assert "[-]member east failed: its nodes and pods are not read yet" in text
        async with grpc.aio.insecure_channel(address) as channel:
            stub = scheduler_pb2_grpc.AdmissionServiceStub(channel)
            answer = await stub.Reserve(pb.ReserveRequest(cluster="east", id="w"), timeout=5)
            assert not answer.admitted
            assert answer.verdict.filter == "Worker"
        assert await process.end() == 0
