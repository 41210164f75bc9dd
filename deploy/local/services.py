"""Reclock itself on a local fleet: its etcd, the four services, and the controller manager that works at the front."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from deploy.local import commands
from deploy.local.binaries import etcd_version
from deploy.local.commands import LOOPBACK
from deploy.local.follow import follow
from deploy.local.kubeconfig import Access
from deploy.local.layout import Layout
from deploy.local.manifests import install
from deploy.local.pki import Authority, write_private
from deploy.local.plane import Plane, Say
from deploy.local.ports import Ports
from deploy.local.probes import http_ready
from deploy.local.process import Process

_CHECKOUT = Path(__file__).resolve().parents[2]
FRONT_PORT = 6443
#: The documented gRPC ports, taken when they are free and the fleet was asked to prefer them.
GRPC_PORTS = {"discovery": 7401, "scheduler": 7402, "aggregator": 7403, "reconciler": 7404}
FRONT_CONTROLLER_MANAGER = "front-controller-manager"
_STOP_SECONDS = 10.0


Route = Callable[[str, int], int]
"""Given a link's name (`client->aggregator`) and the port behind it, the port that clients use."""


def direct(link: str, port: int) -> int:
    """No links: clients use the port itself."""
    return port


class Services:
    """Reclock's processes by name: `etcd` (or `etcd-1`, `etcd-2`, …), `discovery`, `scheduler`, `scheduler-worker-<member>`, `aggregator` (then
    `aggregator-2`, …), `reconciler`, `sinker`, `front-controller-manager`. Nothing runs before `start`.
    """

    def __init__(
        self,
        layout: Layout,
        host: Plane,
        members: Sequence[str],
        *,
        etcd: Path,
        ports: Ports,
        keep_alive: bool,
        usual_ports: bool,
        providers: Sequence[dict[str, Any]] = (),
        placement: bool = True,
        aggregators: int = 1,
        etcd_members: int = 1,
        route: Route = direct,
        sinker: bool = False,
    ) -> None:
        """`providers`: discovery's, instead of the one that finds the fleet's own members. Without `placement`
        there is no scheduler and no deployment controller: enough for controllers. With `sinker` that runs too. `route` puts links that can be made
        to fail before aggregators' etcd and clients' fronts.
        """
        self._route = route
        self.etcds = ["etcd"] if etcd_members == 1 else [f"etcd-{number + 1}" for number in range(etcd_members)]
        self._layout = layout
        self._host = host
        self._providers = list(providers)
        self._placement = placement
        self._keep_alive = keep_alive
        self._ports = ports
        self._state = layout.state("reclock")
        self.processes: dict[str, Process] = {}
        self._following: asyncio.Task[None] | None = None
        self.aggregators = ["aggregator", *(f"aggregator-{number}" for number in range(2, aggregators + 1))]
        self.front_ports = {
            name: ports.take(FRONT_PORT if usual_ports and name == "aggregator" else 0) for name in self.aggregators
        }
        usual = {name: port if usual_ports else 0 for name, port in GRPC_PORTS.items()}
        self.grpc = {name: ports.take(usual.get(name, 0)) for name in (*GRPC_PORTS, *self.aggregators[1:])}
        self.users = {name: ports.take() for name in self.grpc}
        if sinker:
            self.grpc["sinker"] = ports.take()
        self.http = {name: ports.take() for name in self.grpc}
        self.workers = {member: ports.take() for member in members} if placement else {}
        self._authority = Authority(self._state / "pki", "front-ca")
        self._add_etcd(etcd)
        self._add_services()
        if placement:
            self._add_controller_manager()

    @property
    def fronts(self) -> dict[str, str]:
        """The URL of each aggregator's front."""
        return {
            name: f"https://{LOOPBACK}:{self._route(f'client->{name}', port)}"
            for name, port in self.front_ports.items()
        }

    def front_access(
        self, user: str = "admin", groups: Sequence[str] = ("system:masters",), aggregator: str = "aggregator"
    ) -> Access:
        """Access to a front as `user`: the host's authority vouches for users, the front's own for the front."""
        identity = self._host.authority.client(user, groups, file=f"front-{user.replace(':', '-')}")
        return Access("reclock", self.fronts[aggregator], self._authority.pair.cert, user, identity)

    async def start(self, say: Say, timeout: float = 120.0) -> None:
        """Installs the CRDs and defaults on the host, starts everything, and returns when all of it is ready."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        etcds = [self.processes[name] for name in self.etcds]
        await asyncio.gather(install(self._host.api, say), *(etcd.start() for etcd in etcds))
        await asyncio.gather(*(etcd.wait_ready(timeout) for etcd in etcds))
        last = self.processes.get(FRONT_CONTROLLER_MANAGER)
        services = [process for process in self.processes.values() if process not in (*etcds, last)]
        await asyncio.gather(*(process.start() for process in services))
        say(f"starting {', '.join(process.name for process in services)}")
        for process in services:
            await process.wait_ready(timeout)
            say(f"{process.name} ready ({loop.time() - began:.0f} s)")
        if last is not None:
            await last.start()
            await last.wait_ready(timeout)
            if self._keep_alive:
                front = self.processes[self.aggregators[0]]
                self._following = asyncio.create_task(follow(front, last), name=f"follow {front.name}")
        for number, name in enumerate(self.aggregators, start=1):
            self.front_access(aggregator=name).write(self._layout.front_kubeconfig(number))

    async def stop(self, grace: float = _STOP_SECONDS) -> None:
        """Ends the services in order (each gets `grace` seconds), their etcd last."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait({self._following})
        everything = dict(self.processes)
        etcds = [everything.pop(name) for name in self.etcds]
        if (last := everything.pop(FRONT_CONTROLLER_MANAGER, None)) is not None:
            await last.stop(0)
        await asyncio.gather(*(process.stop(grace) for process in everything.values()))
        await asyncio.gather(*(etcd.stop(0) for etcd in etcds))

    def describe(self) -> dict[str, Any]:
        """What `fleet.json` says of the services."""
        return {
            name: {
                "grpcAddress": f"{LOOPBACK}:{port}", "httpAddress": f"{LOOPBACK}:{self.http[name]}",
                **({"userAddress": f"{LOOPBACK}:{self.users[name]}"} if name in self.users else {}),
            }
            for name, port in self.grpc.items()
        }  # fmt: skip

    def _add_etcd(self, etcd: Path) -> None:
        self.etcd_ports = {name: self._ports.take() for name in self.etcds}
        peers = {name: self._ports.take() for name in self.etcds}
        for name, port in self.etcd_ports.items():
            command = commands.etcd(
                etcd, self._state / name, port, peers[name], fsync=True, name=name, peers=peers, compacts=False,
                old=etcd_version(str(etcd)) < (3, 6),
            )  # fmt: skip
            ports = {"client": port, "peer": peers[name]}
            self._add(name, command, ready=f"http://{LOOPBACK}:{port}/health", ports=ports)

    def _add_services(self) -> None:
        addresses = {f"{name}Address": f"{LOOPBACK}:{self.grpc[name]}" for name in GRPC_PORTS}
        self._serving = serving = self._authority.server(
            "front", [LOOPBACK, "localhost", "kubernetes", "kubernetes.default.svc"]
        )
        discovery, scheduler = addresses["discoveryAddress"], addresses["schedulerAddress"]
        local = {"type": "kubeconfig-file", "name": "local-fleet", "paths": [str(self._layout.members)]}
        self._service("discovery", {"providers": self._providers or [local]})
        workers = {member: f"{LOOPBACK}:{port}" for member, port in self.workers.items()}
        if self._placement:
            self._service("scheduler", {"role": "manager", "discoveryAddress": discovery, "workers": workers})
        for member, port in self.workers.items():
            self._worker(member, port)
        front = {
            "frontTls": {"cert": str(serving.cert), "key": str(serving.key)},
            "clientCa": str(self._host.authority.pair.cert),
            "discoveryAddress": discovery,
            "schedulerAddress": scheduler,
        }
        for name, port in self.front_ports.items():
            etcds = [f"{LOOPBACK}:{self._route(f'{name}->{etcd}', at)}" for etcd, at in self.etcd_ports.items()]
            place: dict[str, Any] = {"frontAddress": f"{LOOPBACK}:{port}", "etcd": {"endpoints": etcds}}
            self._python(name, "aggregator", {**place, **front}, self.grpc[name], self.http[name], {"https": port})
        self._service("reconciler", {"discoveryAddress": discovery})
        if "sinker" in self.grpc:
            self._add_sinker(addresses["reconcilerAddress"])

    def _add_sinker(self, reconciler: str) -> None:
        front = self.front_access("system:reclock:sinker").write(self._state / "sinker-front.kubeconfig")
        self._service("sinker", {"reconcilerAddress": reconciler, "frontKubeconfig": str(front)})

    def _service(self, name: str, config: dict[str, Any]) -> None:
        self._python(name, name, config, self.grpc[name], self.http[name], {})

    def _worker(self, member: str, port: int) -> None:
        name = f"scheduler-worker-{member}"
        access = {"kubeconfig": str(self._layout.member_kubeconfig(member))}
        config = {"role": "worker", "cluster": member, "member": access}
        self._python(name, "scheduler", config, port, self._ports.take(), {})

    def _python(
        self, name: str, service: str, config: dict[str, Any], grpc: int, http: int, ports: dict[str, int]
    ) -> None:
        user = f"system:reclock:{service}"
        host = self._host.access(user).write(self._state / f"{name}-host.kubeconfig")
        whole = {
            "grpcAddress": f"{LOOPBACK}:{grpc}",
            "httpAddress": f"{LOOPBACK}:{http}",
            "host": {"kubeconfig": str(host)},
            **(self._for_users(self.users[name]) if name in self.users else {}),
            **({} if service == "sinker" else {"stateFile": str(self._state / f"{name}.state")}),
            **config,
        }
        path = write_private(self._state / f"{name}.yaml", yaml.safe_dump(whole, sort_keys=False))
        self._add(
            name,
            [sys.executable, "-m", f"services.{service}", "--config", str(path)],
            ready=f"http://{LOOPBACK}:{http}/readyz",
            ports={"grpc": grpc, "http": http, **({"users": self.users[name]} if name in self.users else {}), **ports},
        )

    def _for_users(self, port: int) -> dict[str, Any]:
        """gRPC for who has a token, with TLS; among themselves the services of one machine do without."""
        pair = {"cert": str(self._serving.cert), "key": str(self._serving.key)}
        return {"userAddress": f"{LOOPBACK}:{port}", "userTls": pair}

    def _add_controller_manager(self) -> None:
        access = self.front_access("system:kube-controller-manager")
        kubeconfig = access.write(self._state / "controller-manager-front.kubeconfig")
        process = self._host.build_controller_manager(
            FRONT_CONTROLLER_MANAGER, self._ports.take(), kubeconfig, commands.FRONT_CONTROLLERS
        )
        if process is not None:
            self.processes[process.name] = process

    def _add(self, name: str, command: list[str], *, ready: str, ports: dict[str, int]) -> None:
        self.processes[name] = Process(
            name,
            command,
            log=self._layout.logs / f"{name}.log",
            env=_environment(),
            cwd=_CHECKOUT,
            ready=http_ready(ready),
            grace=_STOP_SECONDS,
            keep_alive=self._keep_alive,
            ports=ports,
        )


def _environment() -> dict[str, str]:
    """The caller's environment; proxies of it have no business with loopback (gRPC would use them)."""
    without = [os.environ.get(name) for name in ("no_proxy", "NO_PROXY")]
    exempt = ",".join(filter(None, [*without, LOOPBACK, "localhost"]))
    return {**os.environ, "no_proxy": exempt, "NO_PROXY": exempt, "PYTHONUNBUFFERED": "1"}
