"""A worker's seat on another replica, and the stream that carries what is said there.

Here is the caller's side: one `RemoteDesk` for each pair of session and replica, which connects again and again.
"""

from __future__ import annotations

import asyncio
import logging

import grpc

from reclock.reconciler.v1 import peer_pb2 as peer
from reclock.reconciler.v1 import peer_pb2_grpc as rpc
from reclock.reconciler.v1 import reconciler_pb2 as pb
from services.common.tasks import Backoff
from services.reconciler.work.session import Session

log = logging.getLogger(__name__)

SECRET = "reclock-peer"
"""Metadata by which replicas know each other."""
CLOSE_WITHIN = 2.0


class RemoteDesk:
    """Desk for a session; `run` is its task, which ends when the session or the replica does."""

    def __init__(self, session: Session, name: str, own: str, channel: grpc.aio.Channel, secret: str) -> None:
        self.name = name
        self._session = session
        self._own = own
        self._stub = rpc.PeerServiceStub(channel)
        self._secret = secret
        self._out: asyncio.Queue[peer.RelayRequest | None] = asyncio.Queue()
        self._orderly: bool | None = None
        session.join(self)

    # Desk.

    def grant(self, credits: int, busy: int) -> None:
        """See Desk."""
        self._out.put_nowait(peer.RelayRequest(grant=peer.RelayGrant(credits=credits, busy=busy)))

    def say(self, message: pb.WorkRequest) -> None:
        """See Desk."""
        self._out.put_nowait(peer.RelayRequest(work=message))

    def close(self, *, orderly: bool) -> None:
        """See Desk. `run` ends by it."""
        self._orderly = orderly
        self._out.put_nowait(None)

    # Its task.

    async def run(self) -> None:
        """Connect until closed."""
        backoff = Backoff(initial=0.1, maximum=2.0)
        first = True
        while self._orderly is None:
            if not first:
                self._out = asyncio.Queue()
                self._session.join(self)
                self._session.rejoined(self)
            try:
                await self._connected(backoff)
            except grpc.aio.AioRpcError as error:
                if self._orderly is None:
                    log.info("relay of worker %s to %s: %s", self._session.worker.name, self.name, error.details())
            first = False
            if self._orderly is None:
                self._session.part(self)
                await backoff.wait()

    async def _connected(self, backoff: Backoff) -> None:
        call = self._stub.Relay(metadata=((SECRET, self._secret),))
        reader = asyncio.create_task(self._read(call, backoff), name=f"relay/read {self.name}")
        try:
            session = self._session
            await call.write(peer.RelayRequest(open=peer.RelayOpen(
                replica=self._own, worker=session.worker.name, user=session.user.name, register=session.register,
                registered_us=session.registered_us, heartbeat=session.beat,
            )))  # fmt: skip
            writer = asyncio.create_task(self._write(call), name=f"relay/write {self.name}")
            try:
                await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
                if self._orderly:
                    await call.done_writing()
                    await asyncio.wait({reader}, timeout=CLOSE_WITHIN)
                for task in (reader, writer):
                    if task.done():
                        task.result()
            finally:
                writer.cancel()
        except asyncio.InvalidStateError:
            # The stream ended while something was about to be written: the reader knows why.
            await reader
        finally:
            reader.cancel()
            call.cancel()

    async def _write(self, call: grpc.aio.StreamStreamCall) -> None:
        while (message := await self._out.get()) is not None:
            await call.write(message)

    async def _read(self, call: grpc.aio.StreamStreamCall, backoff: Backoff) -> None:
        async for message in call:
            backoff.reset()
            kind = message.WhichOneof("message")
            if kind == "work":
                self._session.deliver(self, message.work)
            elif kind == "hungry":
                self._session.hungry(self)
            elif kind == "unused":
                self._session.unused(self, message.unused.credits)
            elif kind == "replaced":
                self._session.replaced = True
                self._session.finish()
