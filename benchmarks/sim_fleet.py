"""A fleet for benchmarks: simulated members (one process), a real etcd, discovery and the aggregator, each its own process."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from deploy.local.engines import own_etcd
from deploy.local.kubeconfig import Access
from deploy.local.pki import Authority
from deploy.local.ports import Ports
from deploy.local.probes import http
from services.common.errors import StatusError
from services.common.kube.client import KubeClient
from tests.integration.etcd_server import EtcdServer

ROOT = Path(__file__).resolve().parents[1]
PODS = "/api/v1/pods"
MIB = 1 << 20


def _with_parent() -> None:
    """In a child: end with this process, however that ends (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def cpu(*pids: int) -> float:
    """Seconds of CPU that the processes' threads have used, to the nanosecond."""
    each = (one for pid in pids for one in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(one.read_text().split()[0]) for one in each) / 1e9


def resident(*pids: int) -> float:
    """MiB."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGESIZE") / MIB


def children(pid: int) -> list[int]:
    """Its child processes."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class SimFleet:
    """Made by `SimFleet.start`. `front` asks the front as an administrator, `members` the members themselves."""

    def __init__(self, directory: Path, etcd: EtcdServer, processes: int) -> None:
        self.directory, self.etcd, self.processes = directory, etcd, processes
        self.members: list[KubeClient] = []
        self.front: KubeClient
        self.sim: asyncio.subprocess.Process
        self.aggregator: subprocess.Popen[bytes]
        self.url = ""
        self.ready_seconds = 0.0
        self._running: list[subprocess.Popen[bytes]] = []
        self._ports = Ports()  # outside of those that the kernel gives to connections
        self._discovery_port, self._front_port, self._grpc_port = (self._ports.take() for _ in range(3))
        authority = Authority(directory / "pki", "fleet")
        serving = authority.server("front", ["127.0.0.1"])
        admin = authority.client("admin", ["system:masters"])
        self.access = Access("front", f"https://127.0.0.1:{self._front_port}", authority.pair.cert, "admin", admin)
        self.kubeconfig = self.access.write(directory / "front.kubeconfig")
        self._tls = {"cert": str(serving.cert), "key": str(serving.key)}
        self._authority = authority

    @classmethod
    @asynccontextmanager
    async def start(cls, members: int, pods: int, *, processes: int = 1) -> AsyncIterator[SimFleet]:
        """Everything, until the aggregator has answered its first list. `ready_seconds`: since the services started."""
        with tempfile.TemporaryDirectory(prefix="reclock-bench-") as name:
            directory = Path(name)
            etcd = EtcdServer(str(own_etcd()), directory / "etcd")
            await etcd.start()
            fleet = cls(directory, etcd, processes)
            try:
                await fleet._start_members(members, pods)
                await fleet._start_services()
                yield fleet
            finally:
                await asyncio.shield(asyncio.ensure_future(fleet._stop()))

    async def _start_members(self, count: int, pods: int) -> None:
        self.sim = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.sim_members", str(count), str(pods), str(self.directory),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT,
        )  # fmt: skip
        self.url = (await self._said())["url"]
        for number in range(min(count, 100)):
            path = self.directory / "clusters" / f"m{number}.kubeconfig"
            self.members.append(await KubeClient.connect(path, name=path.stem))

    async def _said(self) -> Any:
        assert self.sim.stdout is not None
        line = await self.sim.stdout.readline()
        if not line:
            raise RuntimeError("the members' process has ended")
        return json.loads(line)

    async def tell(self, **what: Any) -> dict[str, Any]:
        """A command of `sim_members`."""
        assert self.sim.stdin is not None
        self.sim.stdin.write(json.dumps(what).encode() + b"\n")
        await self.sim.stdin.drain()
        done: dict[str, Any] = await self._said()
        return done

    async def fault(self, cluster: str, action: str, **given: Any) -> None:
        """An action of docs/sim.md."""
        status, body = await http("POST", f"{self.url}/sim/{cluster}/{action}", body=json.dumps(given).encode())
        if status != 200:
            raise RuntimeError(body.decode())

    async def _start_services(self) -> None:
        began = time.perf_counter()
        common = {"host": {"kubeconfig": str(self.directory / "host.kubeconfig")}, "logLevel": os.environ.get("BENCH_LOG", "warning")}
        providers = [{"type": "kubeconfig-file", "name": "sim", "paths": [str(self.directory / "clusters")]}]
        grpc = {"grpcAddress": f"127.0.0.1:{self._discovery_port}", "httpAddress": "127.0.0.1:0"}
        self._run("discovery", {**common, **grpc, "providers": providers})
        await self.start_aggregator()
        self.ready_seconds = time.perf_counter() - began

    def _run(self, name: str, config: dict[str, Any]) -> subprocess.Popen[bytes]:
        path = self.directory / f"{name}.yaml"
        path.write_text(yaml.safe_dump(config))
        environment = {**os.environ, "no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}
        with (self.directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"services.{name}", "--config", str(path)], stdout=log, stderr=log,
                env=environment, cwd=ROOT, preexec_fn=_with_parent,
            )  # fmt: skip
        self._running.append(process)
        return process

    async def start_aggregator(self) -> float:
        """Start it; return the seconds until it has answered a list of all members."""
        began = time.perf_counter()
        self.aggregator = self._run("aggregator", {
            "host": {"kubeconfig": str(self.directory / "host.kubeconfig")}, "logLevel": os.environ.get("BENCH_LOG", "warning"),
            "frontAddress": f"127.0.0.1:{self._front_port}", "grpcAddress": f"127.0.0.1:{self._grpc_port}",
            "httpAddress": "127.0.0.1:0", "etcd": {"endpoints": [self.etcd.endpoint]},
            "frontTls": self._tls, "clientCa": str(self._authority.pair.cert), "processes": self.processes,
            "discoveryAddress": f"127.0.0.1:{self._discovery_port}", "schedulerAddress": "127.0.0.1:1",
        })  # fmt: skip
        self.front = await KubeClient.connect(self.kubeconfig, name="front")
        while True:
            asked = time.perf_counter()
            if await self._complete():
                return time.perf_counter() - began
            if self.aggregator.poll() is not None or time.perf_counter() - began > 600:
                raise RuntimeError((self.directory / "aggregator.log").read_text()[-3000:])
            # A list asks every member: what looks whether they are all there must not be the load.
            await asyncio.sleep(max(0.02, 3 * (time.perf_counter() - asked)))

    async def _complete(self) -> bool:
        """Does a list hold every member? One without some says so by a Warning."""
        try:
            answer = await self.front.request("GET", PODS, query={"limit": 1}, timeout=30)
        except StatusError:
            return False
        return "Warning" not in answer.headers and bool(answer.json()["items"])

    async def stop_aggregator(self) -> None:
        """In order, as a roll-out does."""
        await self.front.close()
        self.aggregator.terminate()
        await asyncio.to_thread(self.aggregator.wait, 60)
        self._running.remove(self.aggregator)

    def serving(self) -> list[int]:
        """Pids of the aggregator's processes that serve."""
        return children(self.aggregator.pid) if self.processes > 1 else [self.aggregator.pid]

    async def _stop(self) -> None:
        for client in (*self.members, *([self.front] if hasattr(self, "front") else [])):
            await client.close()
        for process in reversed(self._running):
            process.terminate()
        for process in self._running:
            try:
                await asyncio.to_thread(process.wait, 15)
            except subprocess.TimeoutExpired:
                process.kill()
        self.etcd.kill()
        self._ports.release()
        if hasattr(self, "sim") and self.sim.returncode is None:
            self.sim.kill()
            await self.sim.wait()
