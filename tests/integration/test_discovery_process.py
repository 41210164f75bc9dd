"""Discovery as a process of its own: start, bad configuration, bad kubeconfigs, restart, shutdown."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from reclock.discovery.v1 import discovery_pb2 as pb
from reclock.discovery.v1 import discovery_pb2_grpc
from services.common.config import TLS
from services.common.grpc import channel
from tests.unit.kube_fake import KubeFake, kubeconfig, make_ca, make_pair, pem, server_tls

LIMIT = 30.0


class Process:
    """A running discovery; its ports are read from its log."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self.child = child
        self.log = ""
        self.grpc = self.http = ""
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.child.stderr is not None
        while line := await self.child.stderr.readline():
            self.log += line.decode()
            if found := re.search(r"gRPC on (\S+)", self.log):
                self.grpc = found[1]
            if found := re.search(r"operations on (\S+)", self.log):
                self.http = found[1]

    async def until(self, check: Callable[[], bool]) -> None:
        end = asyncio.get_running_loop().time() + LIMIT
        while not check():
            assert self.child.returncode is None, self.log
            assert asyncio.get_running_loop().time() < end, self.log
            await asyncio.sleep(0.02)

    async def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        if self.child.returncode is None:
            self.child.send_signal(how)
        code = await asyncio.wait_for(self.child.wait(), LIMIT)
        await self._reader
        return code


async def spawn(*argv: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.discovery", *argv, stdout=pipe, stderr=pipe
    )


async def run(*argv: str) -> tuple[int | None, str, str]:
    child = await spawn(*argv)
    out, err = await asyncio.wait_for(child.communicate(), LIMIT)
    return child.returncode, out.decode(), err.decode()


@asynccontextmanager
async def discovery(tmp_path: Path, **config: Any) -> AsyncIterator[Process]:
    file = tmp_path / "discovery.yaml"
    file.write_text(yaml.safe_dump({
        "grpcAddress": "127.0.0.1:0", "httpAddress": "127.0.0.1:0", "probe": {"interval": 0.2, "timeout": 1},
        "providers": [{"type": "kubeconfig-file", "paths": [str(tmp_path / "clusters")]}], **config,
    }))  # fmt: skip
    (tmp_path / "clusters").mkdir(exist_ok=True)
    process = Process(await spawn("--config", str(file)))
    try:
        await process.until(lambda: "ready" in process.log.split())
        yield process
    finally:
        if process.child.returncode is None:
            await process.end()


def stub(process: Process) -> tuple[grpc.aio.Channel, Any]:
    chan = channel(process.grpc)
    return chan, discovery_pb2_grpc.DiscoveryServiceStub(chan)


async def listed(process: Process, check: Callable[[Any], bool]) -> Any:
    """The list, as soon as it satisfies `check`."""
    chan, discovery_stub = stub(process)
    end = asyncio.get_running_loop().time() + LIMIT
    async with chan:
        while True:
            answer = await discovery_stub.ListClusters(pb.ListClustersRequest())
            if check(answer):
                return answer
            assert asyncio.get_running_loop().time() < end, answer
            await asyncio.sleep(0.05)


def condition(answer: Any, cluster: str, kind: str) -> Any:
    for found in answer.clusters:
        if found.name == cluster:
            return next((c for c in found.conditions if c.type == kind), pb.Condition())
    return pb.Condition()


def put(tmp_path: Path, name: str, config: Any) -> None:
    (tmp_path / "clusters").mkdir(exist_ok=True)
    fresh = tmp_path / name
    fresh.write_text(config if isinstance(config, str) else json.dumps(config))
    fresh.rename(tmp_path / "clusters" / name)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--bogus", "1"], "--bogus: unknown flag; allowed: --accessFor, --config"),
        (["--probe.interval", "never"], "probe.interval"),
        (["--providers", "[{type: vm}]"], "providers[0].type: 'vm'; allowed: cluster-api, "),
        (["--providers", "[{type: static, cluster: []}]"], "providers[0].cluster: unknown key; allowed: name, clusters"),
        (["--providers", "[{type: kubeconfig-secret}]"], "provider kubeconfig-secret: kubeconfig is needed"),
        (["--grpcAddress", "0.0.0.0:0"], "tls.cert"),
        (["--host.kubeconfig", "/does/not/exist"], "/does/not/exist"),
        (["--config", "/does/not/exist"], "No such file"),
    ],
)  # fmt: skip
async def test_start_is_refused_in_one_line(argv: list[str], expected: str) -> None:
    code, _, err = await run("--httpAddress", "", *argv)
    assert code == 2, err
    assert expected in err.splitlines()[-1]
    assert "Traceback" not in err


async def test_print_config() -> None:
    code, out, _ = await run("--print-config", "--probe.interval", "2")
    assert code == 0
    assert yaml.safe_load(out)["probe"]["interval"] == 2


async def test_bad_kubeconfigs_are_reported_and_the_service_runs_on(tmp_path: Path) -> None:
    ca_key, ca = make_ca()
    _, wrong = make_ca("wrong")
    tls = server_tls(*make_pair(ca_key, "ca", "server"), tmp_path)
    async with KubeFake() as good, KubeFake(tls, pem(wrong)) as distrusted, KubeFake() as refusing:
        refusing.tokens = {"right"}
        refusing.uid, distrusted.uid = "2", "3"
        put(tmp_path, "a-good", good.kubeconfig("good"))
        put(tmp_path, "b-unreadable", "clusters: [")
        put(tmp_path, "c-wrong-ca", distrusted.kubeconfig("wrong-ca"))
        put(tmp_path, "d-unreachable", kubeconfig("unreachable", {"server": "http://127.0.0.1:1"}))
        put(tmp_path, "e-twice", kubeconfig("good", {"server": "http://127.0.0.1:2"}))
        put(tmp_path, "f-refused", refusing.kubeconfig("refused", token="wrong"))
        async with discovery(tmp_path) as process:
            answer = await listed(
                process,
                lambda a: (
                    len(a.clusters) == 5
                    and all(
                        c.status != "Unknown"
                        for x in a.clusters
                        for c in x.conditions
                        if c.type == "Reachable"
                    )
                ),
            )
            assert condition(answer, "good", "Ready").status == "True"
            assert condition(answer, "wrong-ca", "Reachable").reason == "CertificateNotTrusted"
            assert condition(answer, "unreachable", "Reachable").reason == "CannotConnect"
            assert condition(answer, "refused", "Reachable").status == "True"
            assert condition(answer, "refused", "Ready").reason == "Unauthorized"
            problems = "\n".join(f"{p.source}: {p.message}" for p in answer.problems)
            assert "b-unreadable: is no YAML" in problems
            assert "e-twice: context 'good': the name 'good' is taken" in problems
            async with aiohttp.ClientSession() as session:
                async with session.get(f"{process.http}/metrics") as response:
                    metrics = await response.text()
                async with session.get(f"{process.http}/readyz?verbose") as response:
                    assert response.status == 200
            assert 'reclock_discovery_source_problems{provider="kubeconfig-file"} 2.0' in metrics
            assert 'cluster_reachable{cluster="wrong-ca"} 0.0' in metrics
            assert 'reason="CertificateNotTrusted"' in metrics
            assert "Traceback" not in process.log
            # One of them is put right: it comes up by itself.
            distrusted._ca = pem(ca)
            put(tmp_path, "c-wrong-ca", distrusted.kubeconfig("wrong-ca"))
            await listed(process, lambda a: condition(a, "wrong-ca", "Ready").status == "True")


async def test_a_dead_cluster_delays_nobody(tmp_path: Path) -> None:
    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(never, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with KubeFake() as kube:
        put(tmp_path, "dead", kubeconfig("dead", {"server": f"http://127.0.0.1:{port}"}))
        put(tmp_path, "good", kube.kubeconfig("good"))
        async with discovery(tmp_path) as process:
            await listed(process, lambda a: condition(a, "good", "Ready").status == "True")
            answer = await listed(process, lambda a: condition(a, "dead", "Reachable").status == "False")
            assert condition(answer, "dead", "Reachable").reason == "Timeout"
    server.close()


async def test_kill_and_restart_keep_what_was_known(tmp_path: Path) -> None:
    state = str(tmp_path / "state.json")
    async with KubeFake() as kube, KubeFake() as other:
        other.uid = "2"
        put(tmp_path, "east", kube.kubeconfig("east"))
        async with discovery(tmp_path, stateFile=state) as process:
            chan, discovery_stub = stub(process)
            async with chan:
                await discovery_stub.RegisterCluster(pb.RegisterClusterRequest(
                    name="north", kubeconfig=json.dumps(other.kubeconfig("x")).encode()))  # fmt: skip
            assert "north" in await asyncio.to_thread(Path(state).read_text)
            await listed(process, lambda a: condition(a, "north", "Ready").status == "True")
            await kube.stop()
            answer = await listed(process, lambda a: condition(a, "east", "Reachable").status == "False")
            east = next(c for c in answer.clusters if c.name == "east")
            await process.until(lambda: "unreachableSince" in Path(state).read_text())
            await process.end(signal.SIGKILL)
        put(tmp_path, "east", "broken: [")
        async with discovery(tmp_path, stateFile=state) as process:
            answer = await listed(process, lambda a: len(a.clusters) == 2)
            again = next(c for c in answer.clusters if c.name == "east")
            assert (again.uid, again.unreachable_since) == (east.uid, east.unreachable_since)
            assert condition(answer, "east", "Configured").reason == "SourceUnreadable"
            await listed(process, lambda a: condition(a, "north", "Ready").status == "True")
            assert await process.end() == 0
            assert process.log.rstrip().endswith("stopped")


async def test_open_streams_do_not_keep_it_from_stopping(tmp_path: Path) -> None:
    async with discovery(tmp_path) as process:
        chan, discovery_stub = stub(process)
        async with chan:
            health = await health_pb2_grpc.HealthStub(chan).Check(health_pb2.HealthCheckRequest())
            assert health.status == health_pb2.HealthCheckResponse.SERVING
            call = discovery_stub.WatchClusters(pb.WatchClustersRequest())
            await call.read()
            assert await process.end() == 0


async def test_mutual_tls_between_processes(tmp_path: Path) -> None:
    ca_key, ca = make_ca()
    files = {}
    for name in ("discovery", "reclock-aggregator", "reclock-reconciler", "someone"):
        cert, key = make_pair(ca_key, "ca", name)
        for suffix, data in (("crt", cert), ("key", key), ("ca", pem(ca))):
            (tmp_path / f"{name}.{suffix}").write_bytes(data)
        files[name] = {"cert": f"{tmp_path}/{name}.crt", "key": f"{tmp_path}/{name}.key",
                       "ca": f"{tmp_path}/{name}.ca"}  # fmt: skip
    put(tmp_path, "east", kubeconfig("east", {"server": "http://127.0.0.1:1"}, {"token": "t"}))
    async with discovery(tmp_path, grpcAddress="0.0.0.0:0", tls=files["discovery"]) as process:
        address = process.grpc.replace("0.0.0.0", "127.0.0.1")
        async with channel(address, TLS(**files["reclock-aggregator"])) as chan:
            call = discovery_pb2_grpc.DiscoveryServiceStub(chan).WatchClusters(
                pb.WatchClustersRequest(with_access=True)
            )
            assert (await asyncio.wait_for(call.read(), LIMIT)).cluster.access.kubeconfig
        # Each service has only what it needs; others neither credentials nor what is between services.
        release, watch = pb.ReleaseClusterRequest(name="east"), pb.WatchClustersRequest(with_access=True)
        for name, code in (
            ("reclock-aggregator", grpc.StatusCode.PERMISSION_DENIED), ("someone", grpc.StatusCode.PERMISSION_DENIED),
            ("reclock-reconciler", grpc.StatusCode.FAILED_PRECONDITION),
        ):  # fmt: skip
            async with channel(address, TLS(**files[name])) as chan:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await discovery_pb2_grpc.DiscoveryServiceStub(chan).ReleaseCluster(release)
                assert caught.value.code() is code, name
        async with channel(address, TLS(**files["someone"])) as chan:
            there = discovery_pb2_grpc.DiscoveryServiceStub(chan)
            for call in (there.ListClusters(pb.ListClustersRequest()), there.WatchClusters(watch).read()):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call
                assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
                assert "with a token, at userAddress" in (caught.value.details() or "")
        async with channel(address) as chan:
            with pytest.raises(grpc.aio.AioRpcError):
                await discovery_pb2_grpc.DiscoveryServiceStub(chan).ListClusters(
                    pb.ListClustersRequest(), timeout=2
                )
