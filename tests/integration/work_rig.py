"""A reconciler's Work service in this process, and a worker in bare gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from reclock.reconciler.v1 import peer_pb2_grpc
from reclock.reconciler.v1 import reconciler_pb2 as pb
from reclock.reconciler.v1 import reconciler_pb2_grpc as rpc
from services.common.access import Access
from services.common.config import TLS, convert
from services.common.fleet import FleetListener, Member
from services.common.grpc import GrpcServer, channel
from services.common.kube.reviews import User
from services.common.recheck import Recheck
from services.reconciler.config import ReconcilerConfig
from services.reconciler.work.peer_servicer import PeerServicer
from services.reconciler.work.queues import QueueServicer
from services.reconciler.work.service import WorkService
from services.reconciler.work.servicer import WorkServicer
from tests.integration.work_fleet import HOST, FakeFleet

PATIENCE = 10.0


class Fleet:
    """What the service needs of a FleetWatcher, driven by the test."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.synced = asyncio.Event()
        self.listeners: list[FleetListener] = []

    def subscribe(self, listener: FleetListener) -> None:
        """As FleetWatcher."""
        self.listeners.append(listener)

    async def join(self, member: Member) -> None:
        """A cluster engages."""
        self.members[member.name] = member
        for listener in self.listeners:
            await listener.engaged(member)

    async def leave(self, name: str) -> None:
        """A cluster disengages."""
        member = self.members.pop(name)
        for listener in self.listeners:
            await listener.disengaged(member)
        await member.client.close()

    async def change(self, name: str, **fields: Any) -> None:
        """Fields of a member change."""
        member = self.members[name]
        old = member.snapshot()
        for key, value in fields.items():
            setattr(member, key, value)
        for listener in self.listeners:
            await listener.updated(member, old)


class Rig:
    """Fake clusters, the service, a channel to it."""

    def __init__(
        self, clusters: FakeFleet, fleet: Fleet, work: WorkService, server: GrpcServer, tls: TLS | None = None
    ) -> None:
        self.clusters, self.fleet, self.work, self.server = clusters, fleet, work, server
        self.failures: list[str] = []
        self.channel = channel(server.bound, tls)
        self.stub = rpc.ReconcilerServiceStub(self.channel)
        self.queues = rpc.QueueServiceStub(self.channel)

    async def join(self, name: str, **labels: str) -> None:
        """A new, empty cluster joins (or one that was added before)."""
        if name not in self.clusters.clusters:
            self.clusters.add(name)
        member = Member(
            name, uid=f"uid-of-{name}", labels=labels, reachable=True, ready=True, client=await self.clusters.client(name)
        )
        await self.fleet.join(member)

    async def synced(self, controller: str = "c") -> None:
        """Wait until a controller has read everything: what comes now is news."""
        async with asyncio.timeout(PATIENCE):
            while True:
                hub = self.work.parts.hub
                made = hub.controllers.get(controller) if hub is not None else None
                if made is not None and made.parts and all(part.synced for part in made.parts.values()):
                    return
                await asyncio.sleep(0.01)

    async def crash(self) -> None:
        """As kill -9: nothing is said, in etcd and to workers neither; the lease there ends by itself."""
        await self.server.stop(0)
        await self.work._tasks.close()

    def worker(self, register: pb.Register, *, token: str = "") -> Worker:
        """A connected worker."""
        return Worker(self.stub, register, token)


@asynccontextmanager
async def rig(
    *names: str, lease: int = 1, clusters: FakeFleet | None = None, replica: str = "r1", tls: TLS | None = None,
    recheck: Recheck | None = None, socket: str = "", **config: Any,
) -> AsyncIterator[Rig]:  # fmt: skip
    """A rig with these members; earlier leases are not waited for. With `clusters` it is over those, one of several.

    `socket`: where it listens too, in plaintext.
    """
    shared = clusters is not None
    if clusters is None:
        clusters = FakeFleet()
        for name in names:
            clusters.add(name)
        await clusters.start()
    failures: list[str] = []
    settings = convert(ReconcilerConfig, {"leaseSeconds": lease, **config})
    server = GrpcServer(
        "127.0.0.1:0", tls, users=settings.user_port(), recheck=recheck or Recheck(),
        access=Access(local=User(settings.local.user, tuple(settings.local.groups))),
    )  # fmt: skip
    work = WorkService(settings, replica, lambda name, error: failures.append(f"{name}: {error!r}"), server)
    work._started -= 3600
    server.also += [socket] if socket else []
    package = "reclock.reconciler.v1."
    server.add(rpc.add_ReconcilerServiceServicer_to_server, WorkServicer(work.parts), f"{package}ReconcilerService")
    queues = QueueServicer(work.parts, replica)
    server.add(rpc.add_QueueServiceServicer_to_server, queues, f"{package}QueueService")
    server.add(peer_pb2_grpc.add_PeerServiceServicer_to_server, PeerServicer(work.parts), f"{package}PeerService")
    await server.start()
    fleet = Fleet()
    host = await clusters.client(HOST)
    work.begin(host, fleet, lambda: server.bound)  # type: ignore[arg-type]
    made = Rig(clusters, fleet, work, server, tls)
    made.failures = failures
    for name in names:
        await made.join(name)
    fleet.synced.set()
    work.fleet_known()
    try:
        yield made
    finally:
        await made.channel.close()
        await server.stop(0)
        await work.close()
        for member in fleet.members.values():
            await member.client.close()
        await host.close()
        if not shared:
            await clusters.stop()
    assert failures == []


class Worker:
    """A worker's stream; what comes is kept by kind."""

    def __init__(self, stub: rpc.ReconcilerServiceStub, register: pb.Register, token: str = "") -> None:
        self.call: Any = stub.Work(metadata=(("authorization", f"Bearer {token}"),) if token else None)
        self.register = register
        self.seen: list[pb.WorkResponse] = []
        self.error: grpc.aio.AioRpcError | None = None
        self.ended = False
        self._came = asyncio.Event()
        self._sent = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            await self.call.write(pb.WorkRequest(register=self.register))
            self._sent.set()
            async for message in self.call:
                self.seen.append(message)
                self._came.set()
        except grpc.aio.AioRpcError as error:
            self.error = error
        except (asyncio.CancelledError, asyncio.InvalidStateError):
            self.error = None
        self.ended = True
        self._came.set()

    async def say(self, **message: Any) -> None:
        """Send one message, after Register."""
        await self._sent.wait()
        await self.call.write(pb.WorkRequest(**message))

    async def done(self, request: pb.Request, **fields: Any) -> None:
        """Answer a request; `requeue_after` in seconds."""
        if "requeue_after" in fields:
            fields["requeue_after"] = Duration(nanos=int(fields["requeue_after"] * 1e9) % 10**9, seconds=int(fields["requeue_after"]))
        await self.say(done=pb.Done(token=request.token, **fields))

    def of(self, kind: str) -> list[Any]:
        """All messages of one kind so far."""
        return [getattr(each, kind) for each in self.seen if each.WhichOneof("message") == kind]

    async def until(self, holds: Callable[[], object], patience: float = PATIENCE) -> None:
        """Wait until something holds; the test fails when it does not in time."""
        async with asyncio.timeout(patience):
            while not holds():
                self._came.clear()
                assert not self.ended or holds(), f"the stream has ended: {self.error}"
                try:
                    async with asyncio.timeout(0.05):
                        await self._came.wait()
                except TimeoutError:
                    continue

    async def next(self, kind: str, number: int = 1) -> Any:
        """The `number`th message of a kind."""
        await self.until(lambda: len(self.of(kind)) >= number)
        return self.of(kind)[number - 1]

    async def requests(self, number: int, patience: float = PATIENCE) -> list[pb.Request]:
        """The first so many requests."""
        await self.until(lambda: len(self.of("request")) >= number, patience)
        return list(self.of("request"))

    async def refused(self) -> grpc.aio.AioRpcError:
        """The error that ended the stream."""
        async with asyncio.timeout(PATIENCE):
            await self._reader
        assert self.error is not None, f"it was not refused: {self.seen}"
        return self.error

    async def close(self) -> None:
        """In order."""
        await self.call.done_writing()
        async with asyncio.timeout(PATIENCE):
            await self._reader

    def die(self) -> None:
        """As a killed process: the stream breaks."""
        self.call.cancel()


def violations(error: grpc.aio.AioRpcError) -> dict[str, str]:
    """Fields of the google.rpc.BadRequest in an error."""
    trailing = dict(error.trailing_metadata() or ())
    status = status_pb2.Status.FromString(trailing["grpc-status-details-bin"])
    bad = error_details_pb2.BadRequest()
    for detail in status.details:
        if detail.Unpack(bad):
            break
    return {each.field: each.description for each in bad.field_violations}


def for_configmaps(controller: str = "c", **fields: Any) -> pb.Register:
    """A registration for ConfigMaps."""
    source = pb.Source(version="v1", resource="configmaps", for_object=pb.ForObject())
    fields.setdefault("sources", [source])
    fields.setdefault("max_in_flight", 100)
    return pb.Register(controller=controller, protocol_version=1, **fields)
