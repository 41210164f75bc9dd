"""One controller's life with the service: connect, register, resume, handle, answer; again when the stream ends."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import replace
from typing import TypeAlias

import grpc
from google.protobuf.duration_pb2 import Duration

from reclock._backoff import Backoff
from reclock._controller import Controller
from reclock._dues import Dues
from reclock._fleet import Fleet
from reclock._handle import done as encode_result
from reclock._handle import handle
from reclock._leases import WORST, Held, Leases
from reclock._request import Indexed, IndexedObject
from reclock._service import describe, identity, is_final, refused
from reclock._settings import Settings
from reclock._sources import INITIAL, Channel, Seen, Target, mapped
from reclock._tasks import Tasks
from reclock.reconciler.v1 import reconciler_pb2 as pb
from reclock.reconciler.v1 import reconciler_pb2_grpc

log = logging.getLogger("reclock")

CHECK_SECONDS = 1.0
"""How often leases are looked at, at most; a tenth of the lease where that is less."""
CLOSE_SECONDS = 5.0
"""How long the last answers may take to be sent."""


class Session:
    """Run by `Worker`. One stream at a time; what runs is kept over streams."""

    def __init__(
        self, controller: Controller, channel: grpc.aio.Channel, fleet: Fleet, settings: Settings, worker: str
    ) -> None:
        self.controller = controller
        self.registered = asyncio.Event()
        """Set while the service has taken us."""
        self._ever = False
        self._told = ""
        self._stub = reconciler_pb2_grpc.ReconcilerServiceStub(channel)
        self._fleet, self._settings, self._worker = fleet, settings, worker
        self._leases = Leases()
        self._tasks = Tasks(controller.name)
        self._out: Out | None = None
        self._dues = Dues()
        self._lease = 0.0
        self._beats: dict[int, float] = {}
        self._sequence = 0
        self._stopping = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopped = asyncio.Event()
        self._answers: dict[str, Callable[[pb.WorkResponse], Awaitable[None] | None]] = {
            "registered": self._registered, "request": self._request, "renewed": self._renewed,
            "resumed": self._resumed, "cancelled": self._cancelled, "map": self._map,
            "problem": self._problem, "drain": self._drained, "tell": self._tell,
        }  # fmt: skip

    async def run(self) -> None:
        """Work until `stop`. Raises RegistrationRefused when the service never took the controller."""
        backoff = Backoff(0.1, 10.0)
        self._tasks.spawn(self._watch_leases(), "leases")
        while not self._stopping:
            try:
                await self._connect()
                if self._stopping:
                    return
                log.info("%s: the service has ended the stream; connecting anew", self.controller.name)
            except grpc.aio.AioRpcError as error:
                if self._stopping:
                    return
                if is_final(error):
                    if not self._ever:
                        raise refused(error, self.controller.name) from error
                    # Taken, then refused: asking again at once would be refused again.
                    self.registered.clear()
                if error.code() == grpc.StatusCode.UNAUTHENTICATED:
                    self._fleet.connection.renew()
                self._warn(describe(error))
            if self.registered.is_set():
                backoff.reset()
            self.registered.clear()
            await self._pause(backoff)

    def _warn(self, why: str) -> None:
        """Once for each reason: a service that is away for long is not worth a line a second."""
        if why != self._told:
            log.warning("%s: %s; connecting anew", self.controller.name, why)
        self._told = why

    async def _pause(self, backoff: Backoff) -> None:
        """Wait for the next attempt, or until we are to stop."""
        waits = {asyncio.ensure_future(backoff.wait()), asyncio.ensure_future(self._stopped.wait())}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()

    async def _connect(self) -> None:
        """One stream, to its end."""
        out: Out = asyncio.Queue()
        out.put_nowait(pb.WorkRequest(register=self.controller.register(self._worker)))
        if self._ever or self.controller.sole:
            out.put_nowait(pb.WorkRequest(resume=self._leases.resume(sole=self.controller.sole)))
        metadata = await identity(self._fleet.connection, self._settings)
        call = self._stub.Work(_drain(out), metadata=metadata)
        self._beats = {0: asyncio.get_running_loop().time()}
        try:
            async for response in call:
                kind = response.WhichOneof("message")
                answer = self._answers.get(kind) if kind else None
                if answer is None:
                    continue  # a message of a later version: not for us
                if kind == "registered":
                    self._out = out
                waiting = answer(response)
                if waiting is not None:
                    await waiting
        finally:
            self._out = None
            self._dues.clear()  # told anew on the next stream
            call.cancel()

    def _send(self, message: pb.WorkRequest) -> bool:
        """Say something, unless there is no stream. What is queued is few: leases, heartbeats and answers to Map."""
        if self._out is None:
            return False
        self._out.put_nowait(message)
        return True

    def _registered(self, response: pb.WorkResponse) -> None:
        answer = response.registered
        self._lease = answer.lease.ToTimedelta().total_seconds()
        beat = answer.heartbeat.ToTimedelta().total_seconds() or self._lease / 3
        for warning in answer.warnings:
            log.warning("%s: %s", self.controller.name, warning)
        log.info("%s: working as %s, through %s", self.controller.name, answer.worker, answer.replica or "the service")
        self._ever, self._told = True, ""
        self.registered.set()
        assert self._out is not None
        self._tasks.spawn(self._heartbeats(self._out, beat), "heartbeats")
        if self._stopping:
            self._send(pb.WorkRequest(drain=pb.Drain()))

    async def _heartbeats(self, out: Out, beat: float) -> None:
        loop = asyncio.get_running_loop()
        while self._out is out:
            self._sequence += 1
            self._beats[self._sequence] = loop.time()  # before it is sent: the lease cannot begin earlier
            self._send(pb.WorkRequest(heartbeat=pb.Heartbeat(sequence=self._sequence)))
            await asyncio.sleep(beat)

    def _renewed(self, response: pb.WorkResponse) -> None:
        answer = response.renewed
        sent = self._beats.get(answer.sequence)
        if sent is None:
            return  # of an earlier stream, or of nobody
        self._leases.renew(answer.tokens, sent)
        # Requests may still name earlier ones; what is older than half a lease says the same as none.
        for old in [one for one, at in self._beats.items() if at < sent - self._lease]:
            del self._beats[old]

    def _request(self, response: pb.WorkResponse) -> None:
        request, now = response.request, asyncio.get_running_loop().time()
        given = self._beats.get(request.heartbeat, now - self._lease) if request.HasField("heartbeat") else now
        if now - given > self._lease * WORST and self._leases.get(request.token) is None:
            log.info("%s: %s was too long on its way", self.controller.name, _place_of(request))
            self._send(pb.WorkRequest(done=pb.Done(token=request.token, requeue_after=Duration())))
            return
        held = self._leases.take(request, self._lease, given)
        if held is None:
            return
        self._idle.clear()
        held.task = self._tasks.spawn(handle(self.controller, held, self._fleet, self.indexed), held.token)
        held.task.add_done_callback(lambda task: self._finished(held, task))

    def _finished(self, held: Held, task: asyncio.Task[pb.Done]) -> None:
        """Answer, now or when there is a stream again; what was stopped is given back, with a reason."""
        answer = None if task.cancelled() or task.exception() is not None else task.result()
        if held.lost:
            answer = encode_result(held.token, InterruptedError(held.lost))
        if answer is None or held.gone or (held.lost and self._out is None):
            self._leases.drop(held.token)
        else:
            held.done = answer
            self._answer(held)
        if not self._leases.running():
            self._idle.set()

    def _answer(self, held: Held) -> None:
        if held.done is not None and self._send(pb.WorkRequest(done=held.done)):
            self._leases.drop(held.token)

    def _resumed(self, response: pb.WorkResponse) -> None:
        for token in response.resumed.tokens:
            held = self._leases.get(token)
            if held is not None:
                self._answer(held)

    def _cancelled(self, response: pb.WorkResponse) -> None:
        answer = response.cancelled
        held = self._leases.get(answer.token)
        if held is None:
            return
        held.gone = True
        if held.done is not None:
            self._leases.drop(answer.token)
            return
        why = answer.message or _reason(answer.reason)
        log.info("%s: stopping %s: %s", self.controller.name, _place(held), why)
        held.stop(why)

    async def _watch_leases(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(CHECK_SECONDS, self._lease / 10 or CHECK_SECONDS))
            for held in self._leases.overdue(loop.time()):
                log.warning("%s: stopping %s: its lease was not renewed for half its length", self.controller.name, _place(held))
                held.stop("the lease was not renewed in time")

    def _map(self, response: pb.WorkResponse) -> None:
        self._tasks.spawn(self._answer_map(response.map), "map")

    async def _answer_map(self, message: pb.Map) -> None:
        """Ask the controller's function. One that fails is not answered: the service asks again, of somebody else too."""
        mapper = self.controller.mapper(message.source)
        if mapper is None:
            log.warning("%s: asked to map for source %r, which has no function", self.controller.name, message.source)
            return
        seen = Seen(message.cluster, json.loads(message.object), message.deleted)
        try:
            answer = await mapped(mapper, message, seen)
        except Exception:
            log.exception("%s: the function of source %r failed", self.controller.name, message.source)
            return
        self._send(pb.WorkRequest(mapped=answer))

    def tell(self, targets: Iterable[Target]) -> None:
        """Say that requests are due; without a stream nothing is said: all is, when there is one."""
        if self._out is None:
            return
        waiting = len(self._dues)
        self._dues.put(targets)
        if not waiting and len(self._dues):
            self._out.put_nowait(self._dues)

    def _tell(self, response: pb.WorkResponse) -> None:
        """A cluster's queue begins anew: say who runs what there, if that is ours to say, and what is due."""
        cluster = response.tell.cluster
        if self.controller.sole:
            self._send(pb.WorkRequest(resume=self._leases.resume(sole=True)))
        if self.controller.tells is None:
            return
        usual = {one.name: one.priority + INITIAL for one in self.controller.sources if isinstance(one, Channel)}
        found: list[Target] = []
        try:
            for one in self.controller.tells(cluster):
                priority = one.priority if one.priority is not None else usual.get(one.source, INITIAL)
                found.append(replace(one, cluster=cluster if one.cluster is None else one.cluster, priority=priority))
        except Exception:
            log.exception("%s: what is due in %s is not told", self.controller.name, cluster or "the host")
        self.tell(found)

    def _problem(self, response: pb.WorkResponse) -> None:
        answer = response.problem
        code = pb.ProblemCode.Name(answer.code) if answer.code in pb.ProblemCode.values() else str(answer.code)
        about = f" ({answer.field})" if answer.field else ""
        log.warning("%s: %s: %s%s", self.controller.name, code.removeprefix("PROBLEM_CODE_"), answer.message, about)

    async def _drained(self, response: pb.WorkResponse) -> None:
        """The replica stops: what runs is answered on this stream, as long as it lasts; then another one is found."""
        log.info("%s: the replica stops; finishing what it gave us", self.controller.name)
        out = self._out

        async def leave() -> None:
            await self._idle.wait()
            if out is not None and self._out is out:
                out.put_nowait(None)

        self._tasks.spawn(leave(), "leave the replica")

    async def indexed(self, index: str, value: str) -> Indexed:
        """Ask an index of the controller, all pages of it."""
        objects: list[IndexedObject] = []
        missing: tuple[str, ...] = ()
        metadata = await identity(self._fleet.connection, self._settings)
        query = pb.QueryIndexRequest(controller=self.controller.name, index=index, value=value)
        while True:
            page = await self._stub.QueryIndex(query, timeout=30.0, metadata=metadata)
            objects += [
                IndexedObject(one.cluster, one.namespace, one.name, one.source, one.uid) for one in page.objects
            ]
            missing = tuple(sorted({*missing, *page.missing_clusters}))
            if not page.next_page_token:
                return Indexed(tuple(objects), missing)
            query.page_token = page.next_page_token

    async def stop(self, limit: float) -> None:
        """Take no more, let handlers end for `limit` seconds, stop those that have not, send what there is to say."""
        if self._stopping:
            return
        self._stopping = True
        self._send(pb.WorkRequest(drain=pb.Drain()))
        try:
            async with asyncio.timeout(limit):
                await self._idle.wait()
        except TimeoutError:
            rest = self._leases.running()
            log.warning("%s: stopping %d handlers that have not ended in %g s", self.controller.name, len(rest), limit)
            for held in rest:
                held.gone = True  # no failure: closing our side gives it back
                held.stop("the worker stops")
            await asyncio.wait({held.task for held in rest if held.task is not None}, timeout=CLOSE_SECONDS)
        if self._out is not None:
            self._out.put_nowait(None)
        self._stopped.set()

    async def close(self) -> None:
        """End everything at once."""
        self._stopping = True
        self._stopped.set()
        await self._tasks.close()


Out: TypeAlias = "asyncio.Queue[pb.WorkRequest | Dues | None]"


async def _drain(out: Out) -> AsyncGenerator[pb.WorkRequest, None]:
    """The messages of a queue, until None: then our side of the stream is closed in order.

    What is due is made into a message only when it is sent: what was told meanwhile goes along.
    """
    while (message := await out.get()) is not None:
        if not isinstance(message, Dues):
            yield message
        elif len(message):
            made = message.take()
            if len(message):
                out.put_nowait(message)
            yield made


def _place(held: Held) -> str:
    return _place_of(held.message)


def _place_of(message: pb.Request) -> str:
    return "/".join(part for part in (message.cluster or "host", message.namespace, message.name) if part)


def _reason(reason: int) -> str:
    known = reason in pb.CancelReason.values()
    return (pb.CancelReason.Name(reason) if known else "CANCEL_REASON_LEASE_ENDED").removeprefix("CANCEL_REASON_")
