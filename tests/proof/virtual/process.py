"""A replica: the real clock, reads and writes, served from memory. It can be killed between any two awaits."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

from aiohttp import web

from services.aggregator.clock.clock import Clock, ResourceClock
from services.aggregator.front.errors import response as error_response
from services.aggregator.front.request_info import parse
from services.aggregator.reads import Reads
from services.aggregator.types import Aggregated, Call
from services.aggregator.writes import Writes
from services.aggregator.writes.context import WriteContext
from services.common.errors import StatusError
from services.common.etcd import Etcd
from services.common.fleet import FleetListener, Member
from services.common.kube.reviews import User
from tests.proof.virtual.etcd import EtcdStore
from tests.proof.virtual.link import Link
from tests.proof.virtual.members import Path, Site

PODS = Aggregated("pods", "", "v1", "pods", "Pod", True)
FLEET = "11111111-2222-4333-8444-555555555555"
PREFIX = "/reclock/v1/"


class Fleet:
    """What FleetWatcher offers: what discovery has told this replica."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.inaccessible: set[str] = set()
        self.synced = asyncio.Event()
        self._listeners: list[FleetListener] = []

    def subscribe(self, listener: FleetListener) -> None:
        self._listeners.append(listener)

    async def engage(self, member: Member) -> None:
        self.members[member.name] = member
        for one in self._listeners:
            await one.engaged(member)

    async def disengage(self, name: str) -> None:
        member = self.members.pop(name)
        for one in self._listeners:
            await one.disengaged(member)

    async def told(self, name: str, **changes: Any) -> None:
        member = self.members[name]
        old = member.snapshot()
        for field, value in changes.items():
            setattr(member, field, value)
        if not member.same_as(old):
            for one in self._listeners:
                await one.updated(member, old)


class _Owners:
    """Nothing is owned here."""

    def outgoing(self, cluster: str, uids: Any) -> dict[str, str | None]:
        return {}

    def object_uids(self, cluster: str) -> dict[str, str]:
        return {}

    def incoming(self, cluster: str) -> Mapping[str, str]:
        return {}

    async def copy_uid(self, cluster: str, reference: Any, namespace: str) -> None:
        return None


class Replica:
    """One aggregator process; `start` begins a new one under the same name."""

    def __init__(self, name: str, store: EtcdStore, host: Site, source: random.Random, **options: Any) -> None:
        self.name, self.store, self.host = name, store, host
        self.options = options
        self.random = source
        self.fleet = Fleet()
        self.paths: dict[str, Path] = {}
        self.clock: Clock | None = None
        self.link = Link(store, source)
        self.server: web.Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._reads: Reads | None = None
        self.lives = 0
        self.bugs: list[Exception] = []
        """What a request ended with that is no answer."""

    @property
    def pods(self) -> ResourceClock:
        assert self.clock is not None
        found = self.clock.get("", "pods")
        assert found is not None
        return found

    @property
    def up(self) -> bool:
        return self.clock is not None

    @property
    def owes(self) -> bool:
        return self._reads is not None and self._reads.owes

    @property
    def leads(self) -> bool:
        return self.clock is not None and bool(self.pods.term)

    def member(self, site: Site) -> Member:
        """A Member of this replica's own, for its own way there."""
        path = self.paths[site.name] = Path(site, self.random)
        return Member(site.name, uid=site.cluster.uid, reachable=not site.down, ready=True, client=path)  # type: ignore[arg-type]

    def start(self, engaged: list[Site]) -> None:
        """A new process, which knows the fleet as discovery has it."""
        self.lives += 1
        self.link = Link(self.store, self.random)
        self.fleet = Fleet()
        etcd = Etcd([self.link], 5.0)  # type: ignore[list-item]
        host: Any = Path(self.host, self.random)
        self.clock = Clock(
            etcd=etcd, prefix=PREFIX, fleet_id=FLEET, fleet=self.fleet, host=host, **self.options  # type: ignore[arg-type]
        )  # fmt: skip
        self.clock.context.me = f"{self.name}/{self.lives} - -"
        for site in engaged:
            self.fleet.members[site.name] = self.member(site)
        self.fleet.synced.set()
        self.clock.apply([PODS])
        owners: Any = _Owners()
        clocks: Any = self.clock
        self._reads = Reads(
            clocks, owners, fleet_id=FLEET, token_secret=b"secret", identity=lambda call, aggregated: {}
        )
        context: Any = SimpleNamespace(lookup_kind=lambda *_: None)
        writes = Writes(WriteContext(
            host=host, fleet=self.fleet, fleet_id=FLEET, clock=clocks, aggregations=context, owners=owners,  # type: ignore[arg-type]
            reads=self._reads, placement=self, identity=lambda call, aggregated: {},  # type: ignore[arg-type]
        ))  # fmt: skip
        self.server = web.Server(partial(self._serve, self._reads, writes), handler_cancellation=True, access_log=None)
        self._task = asyncio.create_task(self.clock.run(), name=f"replica {self.name}")

    async def PlaceObject(self, request: Any, timeout: float) -> Any:
        """The scheduler's answer."""
        return SimpleNamespace(fits=True, cluster=self.random.choice(list(request.candidates)), verdicts=[])

    async def _serve(self, reads: Reads, writes: Writes, request: web.BaseRequest) -> web.StreamResponse:
        info = parse(request.method, request.rel_url.raw_path, request.rel_url.raw_query_string)
        call = Call(request, info, User("jane"))  # type: ignore[arg-type]
        try:
            handler = reads if info.verb in ("get", "list", "watch") else writes
            answer: web.StreamResponse = await getattr(handler, info.verb)(call, PODS)
            if not answer.prepared:
                for text in call.warnings:
                    answer.headers.add("Warning", f'299 - "{text}"')
        except StatusError as error:
            return error_response(error)
        except (ConnectionError, asyncio.CancelledError):
            raise  # the client went
        except Exception as error:
            self.bugs.append(error)
            raise
        return answer

    def kill(self) -> asyncio.Task[None]:
        """As kill -9: from this moment nothing of it reaches anybody; what it sent before is on its way. The task
        clears away what is left."""
        self.link.die()
        for path in self.paths.values():
            path.dead = True
            path.break_streams()
        return self.stop()

    def stop(self) -> asyncio.Task[None]:
        """In order: the leader key is given up."""
        ending = _end(self.server, self._task, self._reads, self.link)
        self.server = self.clock = self._task = self._reads = None
        return asyncio.create_task(ending)


async def _end(
    server: web.Server | None, task: asyncio.Task[None] | None, reads: Reads | None, link: Link
) -> None:  # fmt: skip
    """What is left of a process goes."""
    if server is not None:
        for connection in list(server.connections):
            if connection.transport is not None:
                connection.transport.abort()
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    if reads is not None:
        await reads.close()
    link.die()
