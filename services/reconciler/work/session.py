"""A worker's stream on the replica that it dialled: its room, shared among the replicas that have work for it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from reclock.reconciler.v1 import reconciler_pb2 as pb
from services.common.errors import StatusError
from services.common.kube.reviews import User
from services.reconciler.work.checks import check_done, check_due, check_key
from services.reconciler.work.mapping import Target
from services.reconciler.work.spec import ControllerSpec, WorkerSpec

log = logging.getLogger(__name__)

MESSAGE_MAX = 1024 * 1024
"""Bytes of one message of a worker."""
WAITING_MAX = 4096
"""Messages to a worker that does not read, beyond which nothing more is read from it."""
ENDED_MAX = 4096


class Desk(Protocol):
    """The controller of one replica, from the worker's side."""

    name: str
    """The replica."""

    def grant(self, credits: int, busy: int) -> None:
        """Let it hand out so many more requests; the worker holds `busy`."""

    def say(self, message: pb.WorkRequest) -> None:
        """Pass on what the worker said."""

    def close(self, *, orderly: bool) -> None:
        """The worker is gone."""


@dataclass(slots=True)
class Running:
    """A request that the worker holds; `desk` is None after its replica died."""

    desk: Desk | None
    replica: str
    """That of the desk, also after it has gone."""
    target: Target | None
    """None where the worker has not said (a Resume of tokens only)."""


class Session:
    """One worker's stream. Its tasks are the servicer's; everything here is synchronous but `next` and `room`."""

    def __init__(
        self, spec: ControllerSpec, worker: WorkerSpec, user: User, register: pb.Register,
        lease: float, ownerless: Callable[[str], bool] = lambda cluster: False,
    ) -> None:  # fmt: skip
        self.spec = spec
        self._channels = spec.channels
        self._lease = lease
        self._ownerless = ownerless
        """Whether a cluster's replica is gone and none has followed yet."""
        self.worker = worker
        self.user = user
        self.register = register
        self.registered_us = time.time_ns() // 1000
        self.desks: list[Desk] = []
        self.running: dict[str, Running] = {}
        self.beat = 0
        """Sequence of the worker's last heartbeat."""
        self.draining = False
        self.replaced = False
        self.failed = False
        self.sole = False
        """The worker has vouched, with the right to, that it alone works; see Resume.sole."""
        self.refused: StatusError | None = None
        """Why the stream ends, where the worker may not do what it asked for."""
        self._granted: dict[Desk, int] = {}
        self._hungry: dict[Desk, None] = {}
        self._ended: dict[str, Desk] = {}
        self._resuming: dict[str, set[Desk]] = {}
        """Token of a Resume -> replicas that have not said yet whether they know it."""
        self._numbers = itertools.count(1)
        self._maps: dict[int, tuple[Desk, int]] = {}
        """Ids of Maps as the worker knows them: those of several replicas must not meet."""
        self._out: asyncio.Queue[pb.WorkResponse | None] = asyncio.Queue()
        self._read = asyncio.Event()

    # Room.

    @property
    def free(self) -> int:
        """Requests that the worker may still get."""
        if self.draining:
            return 0
        return self.worker.max_in_flight - len(self.running) - sum(self._granted.values())

    def hungry(self, desk: Desk) -> None:
        """A replica has work and no credit."""
        self._hungry[desk] = None
        self._grant()

    def unused(self, desk: Desk, credits: int) -> None:
        """A replica has no work for its credit."""
        if desk in self._granted:
            self._granted[desk] = max(0, self._granted[desk] - credits)
            self._grant()

    def _grant(self) -> None:
        """Share what is free among the hungry, in turn."""
        while self._hungry and (free := self.free) > 0:
            desk = next(iter(self._hungry))
            share = -(-free // len(self._hungry))
            del self._hungry[desk]
            self._granted[desk] = self._granted.get(desk, 0) + share
            desk.grant(share, len(self.running))

    # Desks.

    def join(self, desk: Desk) -> None:
        """A replica serves the worker from now on."""
        self.desks.append(desk)

    def part(self, desk: Desk) -> None:
        """A replica is gone; what it leased runs on until another one has taken it over, or not."""
        if desk not in self.desks:
            return
        self.desks.remove(desk)
        self._granted.pop(desk, None)
        self._hungry.pop(desk, None)
        self._maps = {number: asked for number, asked in self._maps.items() if asked[0] is not desk}
        for asked in self._resuming.values():
            asked.discard(desk)
        orphans = [token for token, running in self.running.items() if running.desk is desk]
        for token in orphans:
            self.running[token].desk = None
        self._adopt_within_lease(orphans)
        self._grant()

    def _adopt_within_lease(self, tokens: list[str]) -> None:
        """Whatever no replica has taken over by the time that no lease of the old one can run any more is lost."""
        if tokens:
            asyncio.get_running_loop().call_later(self._lease, self._give_up, tokens)

    def _give_up(self, tokens: list[str]) -> None:
        for token in tokens:
            running = self.running.get(token)
            if running is not None and running.desk is None:
                del self.running[token]
                self._resuming.pop(token, None)
                if self.worker.version >= 1:
                    self.tell(pb.WorkResponse(cancelled=pb.Cancelled(
                        token=token, reason=pb.CANCEL_REASON_LEASE_ENDED, message="its replica is gone, and none has taken it over",
                    )))  # fmt: skip
        self._grant()

    def moved(self, cluster: str, desk: Desk) -> None:
        """A replica has taken a cluster over: tell it what the worker runs there."""
        self._hand_over(desk, {
            token: running for token, running in self.running.items()
            if running.desk is None and running.target is not None and running.target.cluster == cluster
        })  # fmt: skip

    def rejoined(self, desk: Desk) -> None:
        """A replica can be reached again: what it leased and is not named goes back to its queue."""
        self._hand_over(desk, {
            token: running for token, running in self.running.items()
            if running.desk is None and running.replica == desk.name
        }, always=True)  # fmt: skip

    def _hand_over(self, desk: Desk, found: dict[str, Running], *, always: bool = False) -> None:
        if not found and not always:
            return
        resume = pb.Resume()
        for token, running in found.items():
            self._resuming[token] = {desk}
            if running.target is None:
                resume.tokens.append(token)
            else:
                cluster, namespace, name, source = running.target
                resume.held.add(token=token, cluster=cluster, namespace=namespace, name=name, source=source)
        desk.say(pb.WorkRequest(resume=resume))

    # To the worker.

    def deliver(self, desk: Desk, message: pb.WorkResponse) -> None:
        """Pass on what a replica says, and keep the books."""
        kind = message.WhichOneof("message")
        if kind == "request":
            request = message.request
            if desk in self._granted:
                self._granted[desk] = max(0, self._granted[desk] - 1)
            target = Target(request.cluster, request.namespace, request.name, request.source)
            self.running[request.token] = Running(desk, desk.name, target)
        elif kind == "resumed":
            for token in message.resumed.tokens:
                self._resuming.pop(token, None)
                known = self.running.get(token)
                self.running[token] = Running(desk, desk.name, known.target if known else None)
        elif kind == "cancelled":
            token = message.cancelled.token
            if message.cancelled.reason == pb.CANCEL_REASON_UNKNOWN and not self._unknown_to_all(token, desk):
                return
            if self.running.pop(token, None) is not None:
                self._end(token, desk)
        elif kind == "map":
            number = next(self._numbers)
            self._maps[number] = (desk, message.map.id)
            message.map.id = number
        self._out.put_nowait(message)
        self._grant()

    def _unknown_to_all(self, token: str, desk: Desk) -> bool:
        """Whether no replica knows a token of a Resume, and none that is still to come can."""
        asked = self._resuming.get(token)
        if asked is None:
            return False
        asked.discard(desk)
        if asked:
            return False
        del self._resuming[token]
        running = self.running.get(token)
        return running is None or running.target is None or not self._ownerless(running.target.cluster)

    def tell(self, message: pb.WorkResponse) -> None:
        """Say something of our own."""
        self._out.put_nowait(message)

    def problem(self, code: pb.ProblemCode.ValueType, text: str, *, token: str = "", field: str = "") -> None:
        """Say what was wrong; an old worker would not know the message."""
        if self.worker.version >= 1:
            self.tell(pb.WorkResponse(problem=pb.Problem(token=token, code=code, message=text, field=field)))

    def finish(self) -> None:
        """End the stream after what is to be said."""
        self._out.put_nowait(None)

    async def next(self) -> pb.WorkResponse | None:
        """The next message to the worker; None at the end."""
        message = await self._out.get()
        if self._out.qsize() < WAITING_MAX // 2:
            self._read.set()
        return message

    async def room(self) -> None:
        """Wait while the worker does not read what it is told."""
        while self._out.qsize() >= WAITING_MAX:
            self._read.clear()
            await self._read.wait()

    # From the worker.

    def say(self, message: pb.WorkRequest) -> None:
        """Take a message of the worker."""
        kind = message.WhichOneof("message")
        size = message.ByteSize()
        if size > MESSAGE_MAX:
            token = message.done.token if kind == "done" else ""
            self.problem(pb.PROBLEM_CODE_TOO_LARGE, f"{size} bytes: allowed are {MESSAGE_MAX}", token=token, field=kind or "")
        elif kind == "done":
            self._done(message)
        elif kind == "resume":
            self._resume(message)
        elif kind == "heartbeat":
            self.beat = message.heartbeat.sequence
            self._to_all(message)
        elif kind == "mapped":
            self._mapped(message)
        elif kind == "due":
            self._due(message)
        elif kind == "drain":
            self.draining = True
            self._to_all(message)
        elif kind == "register":
            self.problem(pb.PROBLEM_CODE_UNEXPECTED, "the stream is registered already", field="register")
        # Else: a kind of message that a newer protocol has; ignored as any unknown field.

    def _done(self, message: pb.WorkRequest) -> None:
        done = message.done
        if wrong := check_done(done):
            self.problem(pb.PROBLEM_CODE_INVALID, wrong[1], token=done.token, field=f"done.{wrong[0]}")
            return
        running = self.running.pop(done.token, None)
        desk = running.desk if running is not None else self._ended.pop(done.token, None)
        if running is None and desk is None:
            # Nobody's here; the replica at hand knows whether it is somebody else's.
            desk = self.desks[0] if self.desks else None
        if desk is not None:
            desk.say(message)
        # Else its replica died: the one that follows reads everything anew.
        self._grant()

    def _to_all(self, message: pb.WorkRequest) -> None:
        for desk in list(self.desks):
            desk.say(message)

    def _resume(self, message: pb.WorkRequest) -> None:
        for held in message.resume.held:
            target = Target(held.cluster, held.namespace, held.name, held.source)
            self.running.setdefault(held.token, Running(None, "", target))
        tokens = [*message.resume.tokens, *(held.token for held in message.resume.held)]
        for token in tokens:
            self._resuming[token] = set(self.desks)
        self._adopt_within_lease(tokens)
        self._to_all(message)

    def _mapped(self, message: pb.WorkRequest) -> None:
        number = message.mapped.id
        desk, message.mapped.id = self._maps.pop(number, (None, 0))
        if desk is None:
            self.problem(
                pb.PROBLEM_CODE_UNKNOWN_TOKEN, "no such question is open for this worker", token=str(number), field="mapped.id"
            )
            return
        for place, key in enumerate(message.mapped.keys):
            if wrong := check_key(key):
                # The rest is taken: the object would be asked about for ever.
                self.problem(pb.PROBLEM_CODE_INVALID, wrong[1], token=str(number), field=f"mapped.keys[{place}].{wrong[0]}")
        kept = [key for key in message.mapped.keys if check_key(key) is None]
        del message.mapped.keys[:]
        message.mapped.keys.extend(kept)
        desk.say(message)

    def _due(self, message: pb.WorkRequest) -> None:
        """To all replicas: each takes what is of its clusters."""
        kept = []
        for place, key in enumerate(message.due.keys):
            if wrong := check_due(key, self._channels):
                self.problem(pb.PROBLEM_CODE_INVALID, wrong[1], field=f"due.keys[{place}].{wrong[0]}")
            else:
                kept.append(key)
        if len(kept) < len(message.due.keys):
            message = pb.WorkRequest(due=pb.Due(keys=kept))
        self._to_all(message)

    def _end(self, token: str, desk: Desk) -> None:
        self._ended[token] = desk
        while len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]
