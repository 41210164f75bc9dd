"""One Kubernetes control plane of the `kube` engine: the host, or a member with nodes that KWOK plays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from deploy.local import commands
from deploy.local.api import Api
from deploy.local.binaries import Binaries
from deploy.local.commands import LOOPBACK
from deploy.local.kubeconfig import Access
from deploy.local.nodes import STAGES_DIR, PodLog, kwok_environment, node, write_kwok_config
from deploy.local.pki import Authority, KeyPair, write_signing_key
from deploy.local.plane import ADMINISTRATORS, Engine, Plane, Say
from deploy.local.ports import Ports
from deploy.local.probes import http_ready, tls_context, until
from deploy.local.process import Process

# An API server waits for its watches to end, for up to a minute.
_STOP_SECONDS = 5.0
#: In the version that members before 1.34 know, too.
_AUTHENTICATION = """\
apiVersion: apiserver.config.k8s.io/v1beta1
kind: AuthenticationConfiguration
anonymous:
  enabled: true
  conditions: [{path: /livez}, {path: /readyz}, {path: /healthz}]
"""


class KubeEngine(Engine):
    """Real Kubernetes: a control plane's processes for each cluster."""

    name = "kube"
    title = "real Kubernetes"

    def __init__(
        self, state: Callable[[str], Path], *, logs: Path, ports: Ports, binaries: Binaries, keep_alive: bool,
        older: Mapping[str, Binaries] | None = None,
    ) -> None:  # fmt: skip
        """`older`: clusters whose programs are others than `binaries`."""
        self.etcd = binaries.etcd
        self._state = state
        self._logs = logs
        self._ports = ports
        self._binaries = binaries
        self._older = older or {}
        self._keep_alive = keep_alive

    def cluster(self, name: str, *, nodes: int, number: int) -> ControlPlane:
        return ControlPlane(
            name,
            self._state(name),
            logs=self._logs,
            binaries=self._older.get(name, self._binaries),
            ports=self._ports,
            number=number,
            nodes=nodes,
            keep_alive=self._keep_alive,
        )


class ControlPlane(Plane):
    """A control plane with everything it owns on disk under `directory`; `processes` by short name.

    The host has etcd, apiserver and controller-manager; a member also scheduler and kwok. Nothing runs before
    `start`. Process names (logs, fleet.json) are `<cluster>-<short name>`.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        logs: Path,
        binaries: Binaries,
        ports: Ports,
        number: int,
        nodes: int = 2,
        keep_alive: bool = False,
    ) -> None:
        self.name = name
        self.directory = directory
        self.is_member = nodes > 0
        self.nodes = nodes
        self._number = number
        self._logs = logs
        self._binaries = binaries
        self._keep_alive = keep_alive
        self.port = ports.take()
        self._ports = {
            short: ports.take() for short in ("etcd", "etcd-peer", "controller-manager", "scheduler", "kwok")
        }
        self._certificates()
        self.kubeconfig = self.access("admin").write(directory / "admin.kubeconfig")
        self._components = self.access("system:reclock:local-fleet").write(
            directory / "components.kubeconfig"
        )
        self.api = Api(self.access("admin"))
        self.pod_log = PodLog(directory / "podlogs", name) if self.is_member else None
        self.processes: dict[str, Process] = {}
        self._build_processes()

    @property
    def server(self) -> str:
        """The API server's URL."""
        return f"https://{LOOPBACK}:{self.port}"

    @property
    def etcd_url(self) -> str:
        return f"http://{LOOPBACK}:{self._ports['etcd']}"

    def access(self, user: str, groups: Sequence[str] = ADMINISTRATORS) -> Access:
        """Access to this cluster as `user`, with a new certificate (an administrator's unless `groups` says else)."""
        return Access(
            self.name, self.server, self.authority.pair.cert, user, self.authority.client(user, groups)
        )

    async def start(self, say: Say, timeout: float = 120.0) -> None:
        """Starts everything and returns when the API answers and the nodes are Ready. Raises ProcessFailed."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        etcd, apiserver = self.processes["etcd"], self.processes["apiserver"]
        await etcd.start()
        await apiserver.start()
        await etcd.wait_ready(timeout)
        await apiserver.wait_ready(timeout)
        say(f"{self.name}: API server up at {self.server} ({loop.time() - began:.0f} s)")
        others = [process for process in self.processes.values() if process not in (etcd, apiserver)]
        await asyncio.gather(*(process.start() for process in others))
        if self.is_member:
            await self.add_nodes(self.nodes)
        await asyncio.gather(*(process.wait_ready(timeout) for process in others))
        await self.wait_usable(timeout)
        ready = f", {self.nodes} nodes Ready" if self.is_member else ""
        say(f"{self.name}: control plane ready{ready} ({loop.time() - began:.0f} s)")

    async def add_nodes(self, count: int, first: int = 0, **capacity: str) -> None:
        """Registers nodes `<name>-n<first>` and on; KWOK makes them Ready.

        `capacity`: cpu, memory, pods (at most 250: a node's addresses), if not 8, 16Gi and 110.
        """
        for number in range(first, first + count):
            await self.api.create(node(self.name, number, member=self._number, **capacity))

    async def wait_usable(self, timeout: float = 90.0) -> None:
        """Waits until pods can be created and placed: service account `default`, every node Ready and untainted."""

        async def probe() -> str | None:
            if self.is_member:
                nodes = (await self.api.request("GET", "/api/v1/nodes"))["items"]
                tainted = [n["metadata"]["name"] for n in nodes if n["spec"].get("taints") or not _ready(n)]
                if tainted or not nodes:
                    return f"nodes not ready: {tainted or 'none registered'}"
            return await self.api.check("/api/v1/namespaces/default/serviceaccounts/default")

        await until(probe, f"cluster {self.name} is not usable", timeout)

    async def stop(self, *, grace: float | None = None) -> None:
        """Stops all its processes, the API server's clients first."""
        ordered = list(self.processes.values())[::-1]
        await asyncio.gather(*(process.stop(grace) for process in ordered[:-2]))
        for process in ordered[-2:]:
            await process.stop(grace)

    def _certificates(self) -> None:
        pki = self.directory / "pki"
        names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"]
        service_address = f"10.{96 + self._number}.0.1"
        self.authority = Authority(pki, "ca")
        self._proxy_authority = Authority(pki, "front-proxy-ca")
        self._proxy_client = self._proxy_authority.client("front-proxy-client")
        self._server = self.authority.server("server", [*names, LOOPBACK, service_address])
        self._kubelet_client = self.authority.client("kube-apiserver-kubelet-client", ADMINISTRATORS)
        self._service_accounts: KeyPair = write_signing_key(pki, "service-accounts")

    def _build_processes(self) -> None:
        authentication = self.directory / "authentication.yaml"
        authentication.write_text(_AUTHENTICATION)
        etcd_port, peer_port = self._ports["etcd"], self._ports["etcd-peer"]
        self._add(
            "etcd",
            commands.etcd(self._binaries.etcd, self.directory / "etcd", etcd_port, peer_port, fsync=False),
            {"client": etcd_port, "peer": peer_port},
            f"http://{LOOPBACK}:{etcd_port}/health",
        )
        command = commands.apiserver(
            self._binaries.apiserver,
            port=self.port,
            etcd_port=etcd_port,
            service_range=f"10.{96 + self._number}.0.0/16",
            authentication_config=authentication,
            authority=self.authority.pair,
            server=self._server,
            kubelet_client=self._kubelet_client,
            service_accounts=self._service_accounts,
            proxy_authority=self._proxy_authority.pair,
            proxy_client=self._proxy_client,
        )
        self._add("apiserver", command, {"https": self.port}, f"{self.server}/readyz")
        self.processes["controller-manager"] = self.build_controller_manager(
            f"{self.name}-controller-manager",
            self._ports["controller-manager"],
            self._components,
            ("*",) if self.is_member else commands.HOST_CONTROLLERS,
        )
        if self.is_member:
            self._build_node_processes()

    def _build_node_processes(self) -> None:
        port = self._ports["scheduler"]
        command = commands.scheduler(
            self._binaries.scheduler, port=port, kubeconfig=self._components, server=self._server
        )
        self._add(
            "scheduler", command, {"https": port}, f"https://{LOOPBACK}:{port}/healthz", keep_alive=True
        )
        port = self._ports["kwok"]
        assert self.pod_log is not None
        rootfs = self.directory / "rootfs"
        config = write_kwok_config(
            self.directory / "kwok.yaml", cluster=self.name, log=self.pod_log.path, rootfs=rootfs
        )
        command = commands.kwok(
            self._binaries.kwok,
            port=port,
            kubeconfig=self._components,
            configs=[config, *sorted(STAGES_DIR.glob("*.yaml"))],
            server=self._server,
        )
        self._add("kwok", command, {"https": port}, f"https://{LOOPBACK}:{port}/healthz", keep_alive=True)
        self.processes["kwok"].env = kwok_environment(rootfs)

    def build_controller_manager(
        self, name: str, port: int, kubeconfig: Path, controllers: Sequence[str]
    ) -> Process:
        """A controller manager with the `controllers` named, against the server of `kubeconfig`; not started."""
        command = commands.controller_manager(
            self._binaries.controller_manager,
            port=port,
            kubeconfig=kubeconfig,
            controllers=controllers,
            authority=self.authority.pair,
            server=self._server,
            service_accounts=self._service_accounts,
        )
        return self._process(
            name, command, {"https": port}, f"https://{LOOPBACK}:{port}/healthz", keep_alive=True
        )

    def _add(
        self, short: str, command: list[str], ports: dict[str, int], ready: str, *, keep_alive: bool = False
    ) -> None:
        process = self._process(f"{self.name}-{short}", command, ports, ready, keep_alive=keep_alive)
        self.processes[short] = process

    def _process(
        self, name: str, command: list[str], ports: dict[str, int], ready: str, *, keep_alive: bool
    ) -> Process:
        tls = tls_context(self.authority.pair.cert) if ready.startswith("https") else None
        return Process(
            name,
            command,
            log=self._logs / f"{name}.log",
            cwd=self.directory,
            ready=http_ready(ready, tls),
            grace=_STOP_SECONDS,
            keep_alive=keep_alive and self._keep_alive,
            ports=ports,
            inotify=command[0] == str(self._binaries.kwok),
        )


def _ready(node_object: dict[str, object]) -> bool:
    status = node_object.get("status")
    conditions = status.get("conditions", []) if isinstance(status, dict) else []
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
