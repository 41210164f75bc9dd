"""A controller service for tests: real gRPC in this process. The test says what to ask, and sees what is answered.

It hands out what it is told to, renews leases (until told not to), and can break, drain, cancel and refuse.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc

from reclock._durations import duration
from reclock._informer import Object
from reclock.reconciler.v1 import reconciler_pb2 as pb
from reclock.reconciler.v1 import reconciler_pb2_grpc as pb_grpc


@dataclass(frozen=True)
class Done:
    """How a request ended."""

    message: pb.Done

    @property
    def ok(self) -> bool:
        """No error."""
        return not self.message.error

    @property
    def error(self) -> str:
        """The error; empty for none."""
        return str(self.message.error)

    @property
    def terminal(self) -> bool:
        """It is not to be tried again."""
        return bool(self.message.terminal)

    @property
    def requeue_after(self) -> float | None:
        """Seconds until it is to be asked again; None: not by itself."""
        if not self.message.HasField("requeue_after"):
            return None
        return float(self.message.requeue_after.ToTimedelta().total_seconds())


@dataclass(eq=False)
class Stream:
    """A connected worker; `said` is all that it said."""

    register: pb.Register
    said: list[pb.WorkRequest] = field(default_factory=list)
    draining: bool = False
    """It asked for no more."""
    due: dict[tuple[str, str, str, str], pb.DueKey] = field(default_factory=dict)
    """What it told of as due, by (cluster, namespace, name, source): the last word of each."""
    closed_by_worker: bool = False
    out: asyncio.Queue[pb.WorkResponse | None] = field(default_factory=asyncio.Queue)
    held: set[str] = field(default_factory=set)
    broken: asyncio.Event = field(default_factory=asyncio.Event)

    def send(self, **message: Any) -> None:
        """Say something to the worker: `stream.send(problem=Problem(…))`."""
        self.out.put_nowait(pb.WorkResponse(**message))


class FakeService(pb_grpc.ReconcilerServiceServicer, pb_grpc.QueueServiceServicer):
    """`async with FakeService() as service`; workers connect to `service.address`."""

    def __init__(self, *, lease: float = 30.0, heartbeat: float = 0.0) -> None:
        self.lease, self.heartbeat = lease, heartbeat or lease / 3
        self.renews = True
        """False: heartbeats are not answered, as when a lease has been lost."""
        self.refuses: tuple[grpc.StatusCode, str] | None = None
        """What a registration is answered with; None: it is taken."""
        self.streams: list[Stream] = []
        """All that were ever opened and registered, in order."""
        self.indexes: dict[tuple[str, str], list[pb.IndexedObject]] = {}
        """What QueryIndex answers, by (index, value)."""
        self.missing_clusters: list[str] = []
        self.updates: list[pb.UpdateQueueRequest] = []
        self.queues = pb.ListQueuesResponse()
        self.metadata: list[dict[str, str]] = []
        """Metadata of each Work call."""
        self.port = 0
        self._numbers = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[Done]] = {}
        self._mapping: dict[int, asyncio.Future[pb.Mapped]] = {}
        self._changed = asyncio.Event()

    @property
    def address(self) -> str:
        """For `Worker(reconciler=…)`."""
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> FakeService:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        pb_grpc.add_ReconcilerServiceServicer_to_server(self, self._server)
        pb_grpc.add_QueueServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(0)

    async def worker(self, controller: str = "", *, after: int = 0) -> Stream:
        """The newest open stream (of a controller), waited for; of those past the first `after` ones."""
        while True:
            changed = self._changed
            for stream in reversed(self.streams[after:]):
                fits = not controller or stream.register.controller == controller
                if fits and not (stream.broken.is_set() or stream.closed_by_worker):
                    return stream
            await changed.wait()

    async def ask(
        self, cluster: str, namespace: str, name: str, *, controller: str = "", timeout: float = 10.0, **request: Any
    ) -> Done:
        """Hand a request out and wait for its end; further fields of the message by name (`attempt=3`)."""
        token = await self.hand_out(cluster, namespace, name, controller=controller, **request)
        return await self.result(token, timeout)

    async def hand_out(
        self, cluster: str, namespace: str, name: str, *, controller: str = "", **request: Any
    ) -> str:
        """Hand a request out; returns its token."""
        stream = await self.worker(controller)
        token = f"token-{next(self._numbers)}"
        self._waiting[token] = asyncio.get_running_loop().create_future()
        stream.held.add(token)
        message = pb.Request(
            token=token, cluster=cluster, namespace=namespace, name=name, lease=duration(self.lease), **request
        )
        stream.send(request=message)
        return token

    async def result(self, token: str, timeout: float = 10.0) -> Done:
        """How a request ended, waited for."""
        async with asyncio.timeout(timeout):
            return await asyncio.shield(self._waiting[token])

    def answered(self, token: str) -> bool:
        """Whether a request has ended."""
        return self._waiting[token].done()

    async def map(self, source: str, cluster: str, obj: Object, *, deleted: bool = False) -> list[pb.MappedKey]:
        """Ask which requests an object makes."""
        stream, number = await self.worker(), next(self._numbers)
        self._mapping[number] = asyncio.get_running_loop().create_future()
        stream.send(map=pb.Map(id=number, source=source, cluster=cluster, object=json.dumps(obj).encode(), deleted=deleted))
        async with asyncio.timeout(10):
            return list((await self._mapping[number]).keys)

    def break_streams(self) -> None:
        """End all streams as a crash does."""
        for stream in self.streams:
            stream.broken.set()

    async def Work(
        self, request_iterator: AsyncIterator[pb.WorkRequest], context: grpc.aio.ServicerContext
    ) -> AsyncGenerator[pb.WorkResponse, None]:
        """The protocol, from the service's side."""
        self.metadata.append({key: str(value) for key, value in context.invocation_metadata() or ()})
        first = await anext(aiter(request_iterator))
        if self.refuses is not None:
            await context.abort(*self.refuses)
        stream = Stream(first.register, [first])
        stream.out.put_nowait(pb.WorkResponse(registered=pb.Registered(
            lease=duration(self.lease), heartbeat=duration(self.heartbeat), worker=first.register.worker,
            protocol_version=1, replica="fake",
        )))  # fmt: skip
        self.streams.append(stream)
        self._wake()
        reader = asyncio.create_task(self._read(request_iterator, stream), name="fake service: reader")
        breaks = asyncio.create_task(stream.broken.wait(), name="fake service: breaks")
        try:
            while True:
                message = asyncio.create_task(stream.out.get(), name="fake service: writer")
                await asyncio.wait({message, breaks}, return_when=asyncio.FIRST_COMPLETED)
                if breaks.done():
                    message.cancel()
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "the service is gone")
                if (found := message.result()) is None:
                    return
                yield found
        finally:
            reader.cancel()
            breaks.cancel()

    async def _read(self, requests: AsyncIterator[pb.WorkRequest], stream: Stream) -> None:
        async for message in requests:
            stream.said.append(message)
            kind = message.WhichOneof("message")
            if kind == "done":
                self._done(stream, message.done)
            elif kind == "heartbeat" and self.renews:
                stream.send(renewed=pb.Renewed(sequence=message.heartbeat.sequence, tokens=sorted(stream.held)))
            elif kind == "resume":
                self._resume(stream, message.resume)
            elif kind == "mapped" and message.mapped.id in self._mapping:
                self._mapping.pop(message.mapped.id).set_result(message.mapped)
            elif kind == "drain":
                stream.draining = True
            elif kind == "due":
                stream.due.update({(key.cluster, key.namespace, key.name, key.source): key for key in message.due.keys})
            self._wake()
        stream.closed_by_worker = True
        stream.out.put_nowait(None)
        self._wake()

    def _done(self, stream: Stream, message: pb.Done) -> None:
        waiting = self._waiting.get(message.token)
        if message.token not in stream.held or waiting is None or waiting.done():
            code = pb.PROBLEM_CODE_UNKNOWN_TOKEN
            stream.send(problem=pb.Problem(token=message.token, code=code, message="no such token"))
            return
        stream.held.discard(message.token)
        waiting.set_result(Done(message))

    def _resume(self, stream: Stream, message: pb.Resume) -> None:
        known = [token for token in message.tokens if token in self._waiting and not self._waiting[token].done()]
        stream.held.update(known)
        stream.send(resumed=pb.Resumed(tokens=known))
        for token in message.tokens:
            if token not in known:
                stream.send(cancelled=pb.Cancelled(token=token, reason=pb.CANCEL_REASON_UNKNOWN))

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def QueryIndex(
        self, request: pb.QueryIndexRequest, context: grpc.aio.ServicerContext
    ) -> pb.QueryIndexResponse:
        """What `indexes` says, an object a page."""
        found = self.indexes.get((request.index, request.value), [])
        place = int(request.page_token or 0)
        following = str(place + 1) if place + 1 < len(found) else ""
        return pb.QueryIndexResponse(
            objects=found[place : place + 1], next_page_token=following, missing_clusters=self.missing_clusters
        )

    async def ListQueues(self, request: pb.ListQueuesRequest, context: grpc.aio.ServicerContext) -> pb.ListQueuesResponse:
        """What `queues` says."""
        return self.queues

    async def UpdateQueue(
        self, request: pb.UpdateQueueRequest, context: grpc.aio.ServicerContext
    ) -> pb.UpdateQueueResponse:
        """Kept in `updates`."""
        self.updates.append(request)
        return pb.UpdateQueueResponse()

    async def WatchQueues(
        self, request: pb.WatchQueuesRequest, context: grpc.aio.ServicerContext
    ) -> AsyncGenerator[pb.WatchQueuesResponse, None]:
        """What `queues` says, every interval."""
        while True:
            yield pb.WatchQueuesResponse(queues=self.queues.queues, controllers=self.queues.controllers)
            await asyncio.sleep(request.interval.ToTimedelta().total_seconds() or 1.0)
