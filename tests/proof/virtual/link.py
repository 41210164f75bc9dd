"""The network between one process and etcd: what `Etcd` takes for an endpoint. Delays, lost answers, cuts, death.

A request that was sent arrives, whatever becomes of its sender: so an answer may be lost, and a transaction land late.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Literal

from aetcd.rpc import rpc_pb2

from services.common.etcd_types import Encoded
from tests.proof.virtual.etcd import AWAY, Answers, Code, EtcdStore, Watching, refused

Fault = Literal["unsent", "lost", "late", "silent"]
"""unsent: refused before it was sent; lost: done, and then an error; late: an error, and done afterwards; silent: done,
and no answer ever."""
DELAYS = (0.0, 0.0002, 0.001, 0.003)
LATE = (0.001, 0.01, 0.3, 1.5)


class Link:
    """One process' way to etcd; `faults` meet its next transactions, one each. `on_txn` is told each one's stages."""

    def __init__(self, store: EtcdStore, source: random.Random) -> None:
        self.store = store
        self.address = "virtual"
        self.failures = 0
        self.faults: list[Fault] = []
        self.cut = False
        self.dead = False
        self.watch_delay = 0.0
        self.answer_delay = 0.0
        """Seconds more that answers of commits take: others hear of them first."""
        self.on_txn: Callable[[str], None] = lambda stage: None
        self._random = source
        self._streams: dict[_Stream, None] = {}
        do = self._unary
        self.kv = SimpleNamespace(
            Range=do(store.range), Put=do(store.put), DeleteRange=do(store.delete), Txn=do(store.txn, faulty=True),
            Compact=do(store.compact),
        )  # fmt: skip
        self.lease = SimpleNamespace(
            LeaseGrant=do(store.grant), LeaseRevoke=do(store.revoke), LeaseKeepAlive=do(store.keepalive)
        )
        self.maintenance = SimpleNamespace(Status=do(store.status))
        self.watch = SimpleNamespace(Watch=lambda **_: _Stream(self))

    async def close(self) -> None:
        self.die()

    def die(self) -> None:
        """The process is gone: nothing more is sent, and nobody hears the answers."""
        self.dead = True
        for stream in list(self._streams):
            stream.cancel()

    def delay(self) -> float:
        return self._random.choice(DELAYS)

    def deaf(self) -> bool:
        return self.cut or self.dead

    def _unary(self, work: Callable[[Any], Any], *, faulty: bool = False) -> Callable[..., Any]:
        async def call(request: Any, timeout: float | None = None, metadata: Any = ()) -> Any:
            if isinstance(request, Encoded):
                request = rpc_pb2.TxnRequest.FromString(request.data)
            fault = self.faults.pop(0) if faulty and self.faults and len(request.success) > 1 else None
            if fault == "unsent":
                raise refused(Code.UNAVAILABLE, "connection reset before it was sent")
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            if not self.deaf():
                commits = faulty and any(op.HasField("request_put") for op in request.success)
                slow = self.answer_delay if commits else 0.0
                self._send(work, request, answer, fault, self.on_txn if faulty else lambda stage: None, slow)
            try:
                async with asyncio.timeout(timeout):
                    return await answer
            except TimeoutError:
                raise refused(Code.DEADLINE_EXCEEDED, "Deadline Exceeded") from None

        return call

    def _send(
        self, work: Callable[[Any], Any], request: Any, answer: asyncio.Future[Any], fault: Fault | None,
        told: Callable[[str], None], slow: float,
    ) -> None:  # fmt: skip
        loop = asyncio.get_running_loop()

        def arrive() -> None:
            if not self.store.up:
                settle(refused(*AWAY))
                return
            told("arrived")
            try:
                found = work(request)
            except Exception as error:  # the server's refusal is the client's to hear
                found = error
            told("done")
            if fault == "lost":
                found = refused(Code.UNAVAILABLE, "the answer was lost")
            if fault not in ("late", "silent"):
                loop.call_later(self.delay() + slow, settle, found)

        def settle(found: Any) -> None:
            if answer.done() or self.deaf():
                return
            told("answered")
            if isinstance(found, BaseException):
                answer.set_exception(found)
            else:
                answer.set_result(found)

        told("sent")
        wait = self.delay()
        if fault == "late":
            loop.call_later(wait, settle, refused(Code.UNAVAILABLE, "the connection broke"))
            wait += self._random.choice(LATE)
        loop.call_later(wait, arrive)


class _Stream:
    """A bidirectional stream: a watch."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._answers = Answers()
        self._watching: Watching | None = None
        self._free = 0.0
        link._streams[self] = None

    async def write(self, request: Any) -> None:
        if self._link.deaf():
            return
        asyncio.get_running_loop().call_later(self._link.delay(), self._arrive, request)

    def _arrive(self, request: Any) -> None:
        store = self._link.store
        if not store.up:
            self._broken()
        elif request.WhichOneof("request_union") == "create_request":
            if self in self._link._streams:
                self._watching = Watching(store, request.create_request, self._answer, self._broken)
        elif self._watching is not None:
            self._watching.progress()

    def _answer(self, answer: Any) -> None:
        """Answers of one stream stay in order, however long each takes."""
        loop = asyncio.get_running_loop()
        # Timers of one moment are called in any order.
        self._free = max(self._free + 1e-6, loop.time() + self._link.delay() + (self._link.watch_delay if self._watching else 0))
        loop.call_at(self._free, self._hand, answer)

    def _hand(self, answer: Any) -> None:
        if not self._link.deaf():
            self._answers.put(answer)
        elif self._link.cut:
            self._broken()  # what was sent into a cut is lost: the connection does not outlive it

    def _broken(self) -> None:
        self._answers.put(refused(Code.UNAVAILABLE, "the stream broke"))
        self._close()

    def _close(self) -> None:
        if self._watching is not None:
            self._watching.close()

    async def read(self) -> Any:
        return await self._answers.get()

    def cancel(self) -> None:
        self._close()
        self._link._streams.pop(self, None)
