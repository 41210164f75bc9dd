"""The local fleet: a host and members side by side, with or without Reclock's services.

    async with Fleet.start(directory, members=["east", "west"], services=True) as fleet:
        fleet.host, fleet.members["east"]       # Plane: kubeconfig, processes, api, pod_log
        await fleet.processes["east-apiserver"].kill9()
        await fleet.add_member("north")

Leaving the block, however it is left, ends every process and removes every file that the fleet made.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from deploy.local.engines import KUBE, make_engine
from deploy.local.layout import Layout
from deploy.local.links import Links
from deploy.local.pki import write_private
from deploy.local.plane import Engine, Plane, Say
from deploy.local.ports import Ports
from deploy.local.probes import until
from deploy.local.process import Process
from deploy.local.services import Services

HOST = "host"
_TICK_SECONDS = 5.0


def quiet(text: str) -> None:
    """A `say` that says nothing."""


async def together(jobs: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs the jobs at once; the first failure cancels the others and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(job)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


class Fleet:
    """A running fleet; made by `Fleet.start` only."""

    def __init__(
        self,
        directory: Path,
        *,
        keep_alive: bool,
        usual_ports: bool,
        aggregators: int,
        etcd_members: int,
        faults: bool,
        say: Say,
        providers: Sequence[dict[str, Any]] = (),
        placement: bool = True,
        engine: str = KUBE,
        sinker: bool = False,
        versions: Mapping[str, str] | None = None,
    ) -> None:
        self.layout = Layout(directory.resolve())
        self.host: Plane
        self.members: dict[str, Plane] = {}
        self.services: Services | None = None
        self._keep_alive = keep_alive
        self._usual_ports = usual_ports
        self._aggregators = aggregators
        self._etcd_members = etcd_members
        self._say = say
        self._providers = providers
        self._placement = placement
        self._sinker = sinker
        self._ports = Ports()
        self.links = Links(self._ports, on=faults)
        self._numbers = itertools.count()
        self._versions = versions
        self._engine_name = engine
        self.engine: Engine
        self._ticker: asyncio.Task[None] | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def start(
        cls,
        directory: Path,
        *,
        members: Sequence[str] = ("east", "west"),
        services: bool = False,
        usual_ports: bool = False,
        keep_alive: bool = False,
        ticks: bool = False,
        aggregators: int = 1,
        etcd_members: int = 1,
        faults: bool = False,
        say: Say = quiet,
        providers: Sequence[dict[str, Any]] = (),
        placement: bool = True,
        engine: str = KUBE,
        sinker: bool = False,
        versions: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Fleet]:
        """Starts everything side by side and yields when it is ready; stops it all on the way out.

        `services` starts Reclock too; `usual_ports` takes the documented ports when they are free; `keep_alive`
        restarts what ends by itself (but API servers and their etcd); `ticks` lets the pods' log grow;
        `aggregators` over one etcd, each with a front and a kubeconfig of its own; `etcd_members` of that etcd;
        `faults`: links between the parts that can be made to fail (`links`); `providers`, `placement` and `sinker` as
        `Services` has them; `engine` is kube or sim; `versions`: members with another Kubernetes (`deploy.local.older`).
        Raises FleetFailed: BinariesMissing, DirectoryInUse, ProcessFailed (with the end of the log) and others.
        """
        fleet = cls(
            directory, keep_alive=keep_alive, usual_ports=usual_ports, aggregators=aggregators, say=say,
            etcd_members=etcd_members, faults=faults,
            providers=providers, placement=placement, engine=engine, sinker=sinker, versions=versions,
        )  # fmt: skip
        claim = fleet.layout.prepare()
        try:
            await fleet._start(members, services)
            if ticks:
                fleet._ticker = asyncio.create_task(fleet._tick(), name="pod log ticker")
            yield fleet
        finally:
            # Shielded: a second Ctrl-C must not leave processes behind.
            await asyncio.shield(asyncio.ensure_future(fleet._stop()))
            claim.release()

    @property
    def clusters(self) -> dict[str, Plane]:
        """Host and members by name."""
        return {HOST: self.host, **self.members}

    @property
    def processes(self) -> dict[str, Process]:
        """Every process by its full name, such as `east-apiserver`."""
        groups = [self.engine.processes.values()]
        groups += [cluster.processes.values() for cluster in self.clusters.values()]
        if self.services is not None:
            groups.append(self.services.processes.values())
        return {process.name: process for group in groups for process in group}

    @property
    def kubeconfig(self) -> Path:
        """The front's kubeconfig, as an administrator; there when the fleet has services."""
        return self.layout.kubeconfig

    async def add_member(self, name: str, *, nodes: int = 2) -> Plane:
        """Starts one more member and writes its kubeconfigs, by which discovery finds it."""
        if name in self.clusters:
            raise ValueError(f"there is a cluster {name} already")
        cluster = self._cluster(name, nodes)
        self.members[name] = cluster
        try:
            await cluster.start(self._say)
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(cluster.stop(grace=0)))
            del self.members[name]
            raise
        self._publish(cluster)
        await self.links.start()
        self.write_json()
        return cluster

    async def remove_member(self, name: str) -> None:
        """Ends a member for good; its kubeconfigs go first, so that discovery lets go of it."""
        cluster = self.members.pop(name)
        for path in (self.layout.member_kubeconfig(name), self.layout.cluster_kubeconfig(name)):
            path.unlink(missing_ok=True)
        await cluster.stop(grace=0)
        self.write_json()

    def write_json(self) -> None:
        """Refreshes `fleet.json`."""
        write_private(self.layout.fleet_json, json.dumps(self.describe(), indent=1) + "\n")

    def describe(self) -> dict[str, Any]:
        """The contents of `fleet.json`; see `deploy.local.layout`."""
        return {
            "engine": self.engine.name,
            "pid": os.getpid(),
            "kubeconfig": str(self.kubeconfig) if self.services else "",
            "front": self.services.fronts["aggregator"] if self.services else "",
            "fronts": self._fronts(),
            "services": self.services.describe() if self.services else {},
            "clusters": {
                name: {
                    "kubeconfig": str(self.layout.cluster_kubeconfig(name)),
                    "server": cluster.server,
                    "member": cluster.is_member,
                }
                for name, cluster in self.clusters.items()
            },
            "links": {
                name: {"port": link.port, "target": link.target, "fault": link.fault, "connections": link.connections}
                for name, link in self.links.named.items()
            },
            "processes": [
                {
                    "name": process.name,
                    "pid": process.pid,
                    "state": process.state,
                    "ports": process.ports,
                    "log": str(process.log),
                    "restarts": process.restarts,
                    "command": process.command,
                }
                for process in self.processes.values()
            ],
        }

    def _fronts(self) -> dict[str, dict[str, str]]:
        if self.services is None:
            return {}
        return {
            name: {"url": url, "kubeconfig": str(self.layout.front_kubeconfig(number))}
            for number, (name, url) in enumerate(self.services.fronts.items(), start=1)
        }

    async def _start(self, members: Sequence[str], services: bool) -> None:
        began = time.monotonic()
        self.engine = make_engine(
            self._engine_name, self.layout, ports=self._ports, keep_alive=self._keep_alive, versions=self._versions
        )
        self._say(
            f"starting the host and {len(members)} members ({', '.join(members)}) on {self.engine.title}"
        )
        await self.engine.start(self._say)
        self.host = self._cluster(HOST, 0)
        self.members = {name: self._cluster(name, 2) for name in members}
        await together(cluster.start(self._say) for cluster in self.clusters.values())
        for cluster in self.clusters.values():
            self._publish(cluster)
        await self.links.start()
        self.write_json()
        if services:
            await self._start_services()
        self._say(f"{len(members) + 1} clusters ready ({time.monotonic() - began:.0f} s)")

    async def _start_services(self) -> None:
        self.services = Services(
            self.layout,
            self.host,
            list(self.members),
            etcd=self.engine.etcd,
            ports=self._ports,
            keep_alive=self._keep_alive,
            usual_ports=self._usual_ports,
            providers=self._providers,
            placement=self._placement,
            sinker=self._sinker,
            aggregators=self._aggregators,
            etcd_members=self._etcd_members,
            route=self.links.route,
        )
        await self.links.start()
        await self.services.start(self._say)
        # What is placed before a member is known goes to the others.
        await until(self._engaged, "the members are not ready")
        self.write_json()

    async def _engaged(self) -> str | None:
        """Which members discovery has not found Ready; None when all are, or when others than ours are to be found."""
        if self._providers:
            return None
        clusters = await self.host.api.request("GET", "/apis/reclock.dev/v1alpha1/clusters")
        ready = {
            one["metadata"]["name"]
            for one in clusters["items"]
            for condition in one.get("status", {}).get("conditions") or ()
            if (condition["type"], condition["status"]) == ("Ready", "True")
        }
        missing = sorted(set(self.members) - ready)
        return f"not Ready: {', '.join(missing)}" if missing else None

    def _cluster(self, name: str, nodes: int) -> Plane:
        return self.engine.cluster(name, nodes=nodes, number=next(self._numbers))

    def _publish(self, cluster: Plane) -> None:
        write_private(self.layout.cluster_kubeconfig(cluster.name), cluster.kubeconfig.read_bytes())
        if cluster.is_member:
            access = cluster.access("system:reclock")
            port = self.links.route(f"services->{cluster.name}", cluster.port)
            access = replace(access, server=access.server.replace(f":{cluster.port}", f":{port}", 1))
            access.write(self.layout.member_kubeconfig(cluster.name))

    async def _stop(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        if self.services is not None:
            await self.services.stop()
        clusters = [self.host, *self.members.values()] if hasattr(self, "host") else []
        # The data goes with the processes, so nothing is gained by letting them finish.
        await asyncio.gather(*(cluster.stop(grace=0) for cluster in clusters))
        if hasattr(self, "engine"):
            await self.engine.stop()
        await self.links.stop()
        self._ports.release()

    async def _tick(self) -> None:
        count = 0
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            count += 1
            for cluster in list(self.members.values()):
                if cluster.pod_log is not None:
                    cluster.pod_log.write(f"tick {count}")
