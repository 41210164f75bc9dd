"""Simulated clusters behind the real clock, reads and front, on a real etcd: what clients see while members misbehave."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Self, cast

import aiohttp

from deploy.local.sim import Cluster, Rule, World
from deploy.local.sim.core import User
from deploy.local.sim.server import Server
from services.aggregator.clock.clock import Clock
from services.aggregator.clock.resource import ResourceClock
from services.aggregator.config import Limits
from services.aggregator.front.front import Front
from services.aggregator.reads import Reads
from services.aggregator.types import Aggregated
from services.aggregator.writes.context import WriteContext
from services.aggregator.writes.writes import Writes
from services.common.etcd import Etcd
from services.common.fleet import Member
from services.common.kube.client import KubeClient
from tests.integration.clock_rig import FLEET, PODS, FakeFleet, eventually
from tests.integration.etcd_server import EtcdServer
from tests.integration.reads_rig import Owners
from tests.kube.front_rig import Config, OneMember

TOKEN, OTHER_TOKEN = "root-token", "other-token"
POD_PATH = "/api/v1/pods"


def pod(name: str, size: int = 0, node: str = "", **labels: str) -> dict[str, Any]:
    """A pod of about `size` bytes more than it needs."""
    meta: dict[str, Any] = {"name": name, "namespace": "default", "labels": labels}
    if size:
        meta["annotations"] = {"size": "x" * size}
    spec: dict[str, Any] = {"containers": [{"name": "main", "image": "example/web:1"}]}
    if node:
        spec["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


@dataclass
class Told:
    """One answer: status, decoded body, headers."""

    status: int
    body: Any
    headers: Any

    @property
    def names(self) -> list[str]:
        """Names of a list's items."""
        return [one["metadata"]["name"] for one in self.body["items"]]

    @property
    def version(self) -> str:
        return str(self.body["metadata"]["resourceVersion"])

    @property
    def warnings(self) -> str:
        return " ".join(self.headers.getall("Warning", []))


@dataclass
class Watched:
    """A watch that is read in the background."""

    events: list[dict[str, Any]] = field(default_factory=list)
    status: int = 0
    refused: str = ""
    """The answer where it is no watch."""
    ended: bool = False

    def names(self, *types: str) -> list[str]:
        return [
            one["object"]["metadata"]["name"] for one in self.events
            if one["type"] in (types or ("ADDED", "MODIFIED", "DELETED"))
        ]  # fmt: skip

    @property
    def ends(self) -> list[str]:
        """Versions of the bookmarks that end the initial events."""
        return [
            one["object"]["metadata"]["resourceVersion"] for one in self.events if one["type"] == "BOOKMARK"
            and "k8s.io/initial-events-end" in one["object"]["metadata"].get("annotations", {})
        ]  # fmt: skip


class Fleet(FakeFleet):
    """Known from the start."""

    def check(self) -> str | None:
        return None


class SimRig:
    """Host and members of one world, and one front before them. `clusters`: the members."""

    def __init__(self, etcd: EtcdServer, aggregated: list[Aggregated]) -> None:
        self.world = World(11, time.time)
        self.server = Server(self.world, anonymous=True)
        self.fleet = Fleet()
        self.clusters: dict[str, Cluster] = {}
        self.port = 0
        self.token = TOKEN
        self._etcd, self._aggregated = etcd, aggregated
        self._stack = AsyncExitStack()

    async def start(self, members: list[str], limits: Limits | None = None) -> Self:
        """Serve; every member is engaged."""
        stack = self._stack
        host = self.world.add("host", role="none")
        host.core.tokens[TOKEN] = User("root", ("system:masters",))
        host.core.tokens[OTHER_TOKEN] = User("other", ("system:masters",))
        await stack.enter_async_context(self.server.serving())
        self.host = await self._client("host")
        for name in members:
            await self.join(name)
        return await self.serve(limits)

    async def serve(self, limits: Limits | None = None) -> Self:
        """The front, once there are `host` and members."""
        stack = self._stack
        etcd = Etcd.connect([self._etcd.endpoint])
        stack.push_async_callback(etcd.close)
        self.clock = Clock(
            etcd=etcd, prefix="/reclock/v1/", fleet_id=FLEET, fleet=cast(Any, self.fleet), host=self.host,
            window_seconds=900, window_revisions=2_000_000,
        )  # fmt: skip
        self.clock.apply(self._aggregated)
        self.fleet.synced.set()
        running = asyncio.create_task(self.clock.run())
        stack.push_async_callback(_ended, running)
        for one in self._aggregated:
            await asyncio.wait_for(self.of(one).synced.wait(), 20)
        self.reads = Reads(
            cast(Any, self.clock), cast(Any, Owners()), fleet_id=FLEET, token_secret=b"secret",
            identity=lambda call, aggregated: {},
        )  # fmt: skip
        stack.push_async_callback(self.reads.close)
        known = OneMember("", None, self._aggregated)
        writes = Writes(
            WriteContext(
                host=self.host, fleet=cast(Any, self.fleet), fleet_id=FLEET, clock=cast(Any, self.clock),
                aggregations=cast(Any, known), owners=cast(Any, Owners()), reads=self.reads,
                placement=cast(Any, SimpleNamespace()), identity=lambda call, aggregated: {},
            )
        )  # fmt: skip
        front = Front(
            Config(), host=self.host, fleet=cast(Any, self.fleet), aggregations=cast(Any, known),
            clock=cast(Any, self.clock), reads=self.reads, writes=writes,
            version_markers=cast(Any, SimpleNamespace()), limits=limits,
        )  # fmt: skip
        self.port = await front.start()
        stack.push_async_callback(front.stop)
        self.http = await stack.enter_async_context(
            aiohttp.ClientSession(
                headers={"Authorization": f"Bearer {self.token}"}, connector=aiohttp.TCPConnector(limit=0),
                read_bufsize=1 << 20,
            )
        )  # fmt: skip
        return self

    async def close(self) -> None:
        """End everything."""
        for cluster in self.clusters.values():
            cluster.faults.lift()
            cluster.find_network()
        await self._stack.aclose()

    async def _client(self, name: str) -> KubeClient:
        client = await KubeClient.connect(
            {
                "apiVersion": "v1", "kind": "Config", "current-context": "x",
                "clusters": [{"name": "x", "cluster": {"server": self.server.url_of(name)}}],
                "users": [{"name": "x", "user": {}}],
                "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            },
            name=name,
        )  # fmt: skip
        self._stack.push_async_callback(client.close)
        return client

    async def join(self, name: str) -> Cluster:
        """A new member, engaged. Its pods are the test's: no controller touches them."""
        cluster = self.clusters[name] = self.world.add(name, role="basic", managed_fields=False)
        member = Member(name, uid=cluster.uid, reachable=True, ready=True, client=await self._client(name))
        await self.fleet.engage(member)
        return cluster

    def of(self, aggregated: Aggregated | None = None) -> ResourceClock:
        """The clock of a resource."""
        one = aggregated or self._aggregated[0]
        found = self.clock.get(one.group, one.resource)
        assert found is not None
        return found

    def state(self, name: str, aggregated: Aggregated = PODS) -> tuple[str, str]:
        """What the clock says of a member: state and reason, as `reclock markers stats` shows them."""
        one = self.of(aggregated).members.get(name)
        return (one.state, one.message) if one is not None else ("", "")

    def misbehave(self, name: str, kind: str, *verbs: str, **more: Any) -> Rule:
        """A fault for requests of pods; open watches break, so that new ones meet it."""
        cluster = self.clusters[name]
        rule = cluster.faults.add(Rule(kind, verbs=verbs, resources=("pods",), **more))
        if "watch" in verbs or not verbs:
            cluster.drop_watches()
        return rule

    async def get(self, path: str = POD_PATH, accept: str = "application/json", **query: str) -> Told:
        """Ask the front."""
        url = f"http://127.0.0.1:{self.port}{path}"
        async with self.http.get(url, params=query, headers={"Accept": accept}) as answer:
            return Told(answer.status, json.loads(await answer.read()), answer.headers)

    @asynccontextmanager
    async def watch(self, path: str = POD_PATH, **query: str) -> AsyncIterator[Watched]:
        """Watch through the front while the block runs."""
        watched = Watched()
        reading = asyncio.create_task(self._read(path, query, watched))
        try:
            yield watched
        finally:
            await _ended(reading)

    async def _read(self, path: str, query: dict[str, str], watched: Watched) -> None:
        url = f"http://127.0.0.1:{self.port}{path}"
        timeout = aiohttp.ClientTimeout(total=None)
        async with self.http.get(url, params={"watch": "1", **query}, timeout=timeout) as answer:
            watched.status = answer.status
            if answer.status != 200:
                watched.refused = await answer.text()
                return
            async for line in answer.content:
                watched.events.append(json.loads(line))
        watched.ended = True

    async def streamed(self, watched: Watched) -> None:
        """Wait for the end of the initial events."""
        await eventually(lambda: watched.ends, "the initial events' end")

    def truth(self) -> set[tuple[str, str, str]]:
        """(member, name, member version) of all pods."""
        return {
            (name, one["metadata"]["name"], one["metadata"]["resourceVersion"])
            for name, cluster in self.clusters.items() if name in self.fleet.members
            for one in cluster.objects("pods")
        }  # fmt: skip

    async def settled(self) -> None:
        """Wait until the markers are what the members have."""
        def have() -> set[tuple[str, str, str]]:
            return {(one.cluster, one.name, str(one.version)) for one in self.of().iter_markers()}

        await eventually(lambda: have() == self.truth(), "markers as members have them", timeout=30)


#: What starts a watch as client-go's reflector does with WatchList.
STREAM = {
    "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true",
}  # fmt: skip


async def _ended(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
