"""The `sim` engine of the local fleet: one process serves every simulated cluster of the fleet."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deploy.local.api import Api
from deploy.local.errors import FleetFailed
from deploy.local.kubeconfig import Access
from deploy.local.plane import ADMINISTRATORS, Engine, Plane, Say
from deploy.local.ports import Ports
from deploy.local.probes import http, http_ready, tls_context, until
from deploy.local.process import Process
from deploy.local.sim.access import Credentials
from deploy.local.sim.controllers.nodes import node_object

_CHECKOUT = Path(__file__).resolve().parents[3]
_STOP_SECONDS = 5.0


class SimEngine(Engine):
    """Simulated clusters: no binaries, ready at once, faults on request (`fault`)."""

    name = "sim"
    title = "simulated clusters"

    def __init__(self, directory: Path, *, logs: Path, ports: Ports, etcd: Path, seed: int = 0) -> None:
        self.etcd = etcd
        self.directory = directory
        self.credentials = Credentials(directory / "pki")
        self.port = ports.take()
        self.url = f"https://127.0.0.1:{self.port}"
        admin = self.credentials.client("admin")
        self._tls = tls_context(self.credentials.authority.pair.cert, admin)
        command = [sys.executable, "-m", "deploy.local.sim", "--members", "", "--dir", str(directory),
                   "--port", str(self.port), "--seed", str(seed), "--existing-pki"]  # fmt: skip
        self._process = Process(
            "sim",
            command,
            log=logs / "sim.log",
            cwd=_CHECKOUT,
            ready=http_ready(f"{self.url}/sim/healthz", tls_context(self.credentials.authority.pair.cert)),
            grace=_STOP_SECONDS,
            # Not kept alive: what its clusters hold is gone with it.
            ports={"https": self.port},
        )

    @property
    def processes(self) -> dict[str, Process]:
        return {self._process.name: self._process}

    async def start(self, say: Say) -> None:
        await self._process.start()
        await self._process.wait_ready()

    async def stop(self) -> None:
        await self._process.stop(0)

    def cluster(self, name: str, *, nodes: int, number: int) -> SimPlane:
        return SimPlane(self, name, nodes)

    async def tell(self, name: str, action: str, given: dict[str, Any] | None = None) -> dict[str, Any]:
        """Has something happen to a cluster: see `deploy.local.sim.admin.ACTIONS`. Raises FleetFailed."""
        body = json.dumps(given or {}).encode()
        status, answer = await http("POST", f"{self.url}/sim/{name}/{action}", tls=self._tls, body=body)
        decoded: dict[str, Any] = json.loads(answer)
        if status >= 400:
            raise FleetFailed(f"{name} {action}: {decoded.get('error', status)}")
        return decoded


class SimPlane(Plane):
    """One simulated cluster. It has no process of its own: `engine.tell` makes it fail."""

    def __init__(self, engine: SimEngine, name: str, nodes: int) -> None:
        self.engine = engine
        self.name = name
        self.port = engine.port
        self.nodes = nodes
        self.is_member = nodes > 0
        self.authority = engine.credentials.authority
        self.processes = {}
        self.pod_log = None
        self.kubeconfig = self.access("admin").write(engine.directory / name / "admin.kubeconfig")
        self.api = Api(self.access("admin"))

    @property
    def server(self) -> str:
        return f"{self.engine.url}/members/{self.name}"

    def access(self, user: str, groups: Sequence[str] = ADMINISTRATORS) -> Access:
        return self.engine.credentials.access(self.name, self.server, user, groups)

    async def start(self, say: Say, timeout: float = 120.0) -> None:
        role = "member" if self.is_member else "host"
        await self.engine.tell(self.name, "add", {"nodes": self.nodes, "role": role})
        path = "/api/v1/namespaces/default/serviceaccounts/default"
        await until(lambda: self.api.check(path), f"cluster {self.name} is not usable", timeout)
        say(f"{self.name}: simulated at {self.server}")

    async def stop(self, *, grace: float | None = None) -> None:
        if self.engine.processes["sim"].running:
            await self.engine.tell(self.name, "remove")

    async def add_nodes(self, count: int, first: int = 0, **capacity: str) -> None:
        for number in range(first, first + count):
            await self.api.create(node_object(self.name, number, **capacity))

    def build_controller_manager(
        self, name: str, port: int, kubeconfig: Path, controllers: Sequence[str]
    ) -> Process | None:
        """None: the simulated host makes Deployments' ReplicaSets itself."""
        return None
