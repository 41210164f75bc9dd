"""Replicas of the reconciler as processes, over fake clusters; and workers that write a history."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import yaml
from google.protobuf.duration_pb2 import Duration

from reclock.discovery.v1 import discovery_pb2, discovery_pb2_grpc
from reclock.reconciler.v1 import reconciler_pb2 as pb
from reclock.reconciler.v1 import reconciler_pb2_grpc as rpc
from services.common.grpc import GrpcServer, channel
from tests.integration.work_fleet import HOST, FakeFleet

LIMIT = 60.0
Key = tuple[str, str, str]
"""(cluster, namespace, name)."""


class FakeDiscovery(discovery_pb2_grpc.DiscoveryServiceServicer):
    """Streams the fake fleet's members, all reachable."""

    def __init__(self, clusters: FakeFleet, address: str = "127.0.0.1:0") -> None:
        self._clusters = clusters
        self.server = GrpcServer(address)
        self.server.add(
            discovery_pb2_grpc.add_DiscoveryServiceServicer_to_server, self, "reclock.discovery.v1.DiscoveryService"
        )

    async def WatchClusters(
        self, request: discovery_pb2.WatchClustersRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[discovery_pb2.WatchClustersResponse]:
        """A snapshot, then marks."""
        kinds = discovery_pb2.WatchClustersResponse
        conditions = [discovery_pb2.Condition(type=kind, status="True") for kind in ("Reachable", "Ready")]
        for name in self._clusters.clusters:
            if name == HOST:
                continue
            access = discovery_pb2.Access(kubeconfig=json.dumps(self._clusters.kubeconfig(name)).encode(), digest=name)
            cluster = discovery_pb2.Cluster(name=name, uid=f"uid-of-{name}", conditions=conditions, access=access)
            yield kinds(type=kinds.EVENT_TYPE_ENGAGED, cluster=cluster, version=1)
        while True:
            yield kinds(type=kinds.EVENT_TYPE_SYNCED, version=1)
            await asyncio.sleep(10)


class Service:
    """A service as a process; its port stays over restarts."""

    def __init__(self, module: str, file: Path, config: dict[str, Any]) -> None:
        self.module = module
        self.file = file
        self.config = config
        self.address = ""
        self.log = ""
        self._since = 0
        """Where the log of this start begins."""
        self.child: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start, and wait until it listens."""
        settings = {"grpcAddress": self.address or "127.0.0.1:0", "httpAddress": "", **self.config}
        self.file.write_text(yaml.safe_dump(settings))
        seen = self._since = len(self.log)
        self.child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", self.module, "--config", str(self.file),
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self._reader = asyncio.create_task(self._read(self.child))
        async with asyncio.timeout(LIMIT):
            while not (found := re.search(r"gRPC on (\S+)", self.log[seen:])):
                assert self.child.returncode is None, self.log
                await asyncio.sleep(0.02)
        self.address = found[1]

    async def _read(self, child: asyncio.subprocess.Process) -> None:
        assert child.stderr is not None
        while line := await child.stderr.readline():
            self.log += line.decode()

    async def end(self, how: signal.Signals) -> None:
        """Send a signal that ends it, and wait for that."""
        if self.child is not None:
            if self.child.returncode is None:
                self.child.send_signal(how)
            async with asyncio.timeout(LIMIT):
                await self.child.wait()

    def send(self, what: signal.Signals) -> None:
        """Send a signal."""
        assert self.child is not None
        self.child.send_signal(what)


class Replica(Service):
    """A reconciler process."""

    def __init__(self, directory: Path, number: int, config: dict[str, Any]) -> None:
        super().__init__("services.reconciler", directory / f"replica-{number}.yaml", config)
        self.number = number

    @property
    def name(self) -> str:
        """What it calls itself since its last start; "" while it has not taken part."""
        found = re.findall(r"replica (\S+) takes part", self.log[self._since :])
        return found[-1] if found else ""


class Run(NamedTuple):
    """One handler's run, as long as its worker believed in the lease; times are of one clock."""

    key: Key
    began: float
    ended: float
    worker: str
    token: str
    fence: int


class History:
    """What all workers did, and when this process did not run."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.started: dict[Key, float] = {}
        """When the last handler of a key that ended well began."""
        self.stalls: list[tuple[float, float]] = []

    def begins(self, held: Held) -> None:
        """A handler is about to begin; for what has to know it before it is over."""

    def renewed(self, token: str, until: float) -> None:
        """A handler believes in its lease until later."""

    def ended(self, run: Run, well: bool) -> None:
        """A handler has ended, by itself or because it had to."""
        self.runs.append(run)
        if well:
            self.started[run.key] = max(self.started.get(run.key, 0.0), run.began)

    def stalled(self, began: float, ended: float) -> None:
        """This process did not run for a while."""
        self.stalls.append((began, ended))

    async def watch_stalls(self) -> None:
        """Note when the event loop stood still: what workers believed then is no proof of anything."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.05)
            now = time.monotonic()
            if now - last > 0.4:
                self.stalled(last, now + 0.2)
            last = now

    def overlaps(self) -> list[tuple[Run, Run]]:
        """Runs of one key that overlap: two valid leases at once."""
        return [(one, two) for one, two in self.judged() if two.began < one.ended]

    def judged(self) -> list[tuple[Run, Run]]:
        """Runs of one key, one after the other, neither of them in a stall: what `overlaps` can say something about."""
        by_key: dict[Key, list[Run]] = {}
        for run in self.runs:
            if not self._stalled(run):
                by_key.setdefault(run.key, []).append(run)
        return [
            pair for runs in by_key.values()
            for pair in itertools.pairwise(sorted(runs, key=lambda run: run.began))
        ]  # fmt: skip

    def _stalled(self, run: Run) -> bool:
        return any(began <= run.ended and run.began <= ended for began, ended in self.stalls)


class Held:
    """A request that a worker runs."""

    def __init__(self, request: pb.Request, until: float) -> None:
        self.request = request
        self.key: Key = (request.cluster, request.namespace, request.name)
        self.began = time.monotonic()
        self.until = until
        self.task: asyncio.Task[None] | None = None


class Client:
    """A worker as the SDKs are: heartbeats, stops at half a lease, connects anew to another replica and resumes."""

    def __init__(
        self, name: str, register: pb.Register, addresses: Callable[[], list[str]], history: History,
        work: Callable[[Key], float],
    ) -> None:  # fmt: skip
        self.name = name
        self._register = pb.Register()
        self._register.CopyFrom(register)
        self._register.worker = name
        self._addresses = addresses
        self._history = history
        self._work = work
        self._held: dict[str, Held] = {}
        self._half = 1.0
        self._beats: dict[int, float] = {}
        self._call: Any = None
        self.problems: list[str] = []
        self.handled = 0
        self.late = 0
        self._writing = asyncio.Lock()
        self._answers: set[asyncio.Task[None]] = set()
        self.connects = 0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        turn = hash(self.name)
        while True:
            addresses = self._addresses()
            chan = channel(addresses[turn % len(addresses)])
            turn += 1
            try:
                await self._connected(rpc.ReconcilerServiceStub(chan))
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await asyncio.sleep(0.2)
            finally:
                self._call = None
                await chan.close()

    async def _connected(self, stub: rpc.ReconcilerServiceStub) -> None:
        call = stub.Work()
        self._beats = {0: time.monotonic()}
        await call.write(pb.WorkRequest(register=self._register))
        held = [
            pb.Held(token=token, cluster=h.key[0], namespace=h.key[1], name=h.key[2], source=h.request.source)
            for token, h in self._held.items()
        ]
        await call.write(pb.WorkRequest(resume=pb.Resume(held=held)))
        self._call = call
        self.connects += 1
        beats = asyncio.create_task(self._heartbeat(call))
        try:
            async for message in call:
                self._take(message)
        finally:
            beats.cancel()

    async def _heartbeat(self, call: Any) -> None:
        number = 0
        while True:
            await asyncio.sleep(self._half / 2 if number else 0)
            number += 1
            self._beats[number] = time.monotonic()
            await self._say(call, pb.WorkRequest(heartbeat=pb.Heartbeat(sequence=number)))

    def _take(self, message: pb.WorkResponse) -> None:
        kind = message.WhichOneof("message")
        if kind == "registered":
            self._half = message.registered.lease.seconds / 2
        elif kind == "request":
            held = Held(message.request, self._beats.get(message.request.heartbeat, 0.0) + self._half)
            if held.began >= held.until:
                # Too long on its way: its lease may have ended.
                self.late += 1
                answer = asyncio.create_task(self._answer(pb.Done(token=message.request.token, requeue_after=seconds(0))))
                self._answers.add(answer)
                answer.add_done_callback(self._answers.discard)
                return
            self._held[message.request.token] = held
            self._history.begins(held)
            held.task = asyncio.create_task(self._handle(held))
        elif kind == "renewed":
            sent = self._beats.get(message.renewed.sequence, 0.0)
            for token in message.renewed.tokens:
                if token in self._held:
                    self._held[token].until = max(self._held[token].until, sent + self._half)
                    self._history.renewed(token, self._held[token].until)
        elif kind == "cancelled":
            self._lose(message.cancelled.token)
        elif kind == "problem":
            self.problems.append(f"{pb.ProblemCode.Name(message.problem.code)}: {message.problem.message}")

    async def _handle(self, held: Held) -> None:
        """Work in small steps while the lease is believed in."""
        end = held.began + self._work(held.key)
        token = held.request.token
        while True:
            now = time.monotonic()
            if now >= min(end, held.until):
                break
            await asyncio.sleep(min(0.02, end - now))
        if now >= held.until:
            self._lose(token)
            # Heartbeats renew what the service believes us to hold: what was stopped has to be given back.
            await self._answer(pb.Done(token=token, error="stopped"))
            return
        self._note(held, time.monotonic(), well=True)
        self._held.pop(token, None)
        self.handled += 1
        await self._answer(pb.Done(token=token))

    async def _answer(self, done: pb.Done) -> None:
        if self._call is not None:
            await asyncio.shield(self._say(self._call, pb.WorkRequest(done=done)))

    async def _say(self, call: Any, message: pb.WorkRequest) -> None:
        """Write; one at a time, as gRPC wants it. What the stream does not take is lost with it: its key comes again."""
        async with self._writing:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await call.write(message)

    def _lose(self, token: str) -> None:
        held = self._held.pop(token, None)
        if held is None:
            return
        self._note(held, min(time.monotonic(), held.until))
        if held.task is not None and held.task is not asyncio.current_task():
            held.task.cancel()

    def _note(self, held: Held, ended: float, well: bool = False) -> None:
        request = held.request
        run = Run(held.key, held.began, min(ended, held.until), self.name, request.token, request.fence)
        self._history.ended(run, well)

    async def ended(self) -> None:
        """Until it fails or dies."""
        await self._task

    async def die(self) -> None:
        """As by kill -9: nothing more is said, all handlers stop here and now."""
        self._task.cancel()
        await asyncio.wait({self._task})
        for token in list(self._held):
            self._lose(token)


def seconds(value: float) -> Duration:
    """A protobuf duration."""
    return Duration(seconds=int(value), nanos=int(value % 1 * 1e9))
