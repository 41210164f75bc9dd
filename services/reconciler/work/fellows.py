"""`Peers` of a replica that is one of several: relays for its sessions, questions to all, requests for others' clusters."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc

from reclock.reconciler.v1 import reconciler_pb2 as pb
from reclock.reconciler.v1 import reconciler_pb2_grpc as rpc
from services.common.config import TLS
from services.common.errors import from_rpc
from services.common.grpc import channel
from services.common.tasks import Tasks
from services.reconciler.work.hub import Hub
from services.reconciler.work.mapping import Target
from services.reconciler.work.outbox import Outbox
from services.reconciler.work.relay import SECRET, RemoteDesk
from services.reconciler.work.replicas import Record, Replicas
from services.reconciler.work.session import Session

log = logging.getLogger(__name__)

ASK_WITHIN = 3.0
"""Seconds that another replica has to answer a question."""


class Fellow:
    """Another replica."""

    def __init__(self, name: str, record: Record, tls: TLS | None, hub: Hub, tasks: Tasks) -> None:
        self.name = name
        self.record = record
        self.channel = channel(record.address, tls)
        self.outbox = Outbox(name, self.channel, record.secret, hub.controllers)
        self._sending = tasks.spawn(self.outbox.run(), f"outbox {name}")

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What it knows us by."""
        return ((SECRET, self.record.secret),)

    async def close(self) -> None:
        """It is gone."""
        self._sending.cancel()
        await self.channel.close()


class Fellows:
    """See Peers."""

    def __init__(self, hub: Hub, replicas: Replicas, secret: str, tls: TLS | None, tasks: Tasks) -> None:
        self._hub = hub
        self._replicas = replicas
        self._secret = secret
        self._tls = tls
        self._tasks = tasks
        self._fellows: dict[str, Fellow] = {}
        self._desks: dict[Session, dict[str, RemoteDesk]] = {}
        self._closed = False
        replicas.watchers.append(self._changed)
        hub.watchers.append(self._moved)
        hub.route = self._route

    # Who is there.

    def _changed(self, records: Mapping[str, Record]) -> None:
        others = {name: record for name, record in records.items() if name != self._hub.replica}
        if not records or self._closed:
            # We are out for a moment (who is there is known again soon, and streams may go on until then), or for good.
            return
        for name in [name for name in self._fellows if name not in others]:
            fellow = self._fellows.pop(name)
            for session, desks in self._desks.items():
                if desk := desks.pop(name, None):
                    session.part(desk)
                    desk.close(orderly=False)
            self._tasks.spawn(fellow.close(), f"close {name}")
        for name, record in others.items():
            if name not in self._fellows:
                self._fellows[name] = Fellow(name, record, self._tls, self._hub, self._tasks)
                for session in self._desks:
                    self._relay(session, self._fellows[name])

    def _moved(self, cluster: str, replica: str) -> None:
        for session, desks in self._desks.items():
            desk = desks.get(replica) or next((each for each in session.desks if each.name == replica), None)
            if desk is not None:
                session.moved(cluster, desk)

    # Sessions.

    def serve(self, session: Session) -> None:
        """See Peers."""
        self._desks[session] = {}
        for fellow in self._fellows.values():
            self._relay(session, fellow)

    def leave(self, session: Session) -> None:
        """See Peers."""
        self._desks.pop(session, None)

    def _relay(self, session: Session, fellow: Fellow) -> None:
        desk = RemoteDesk(session, fellow.name, self._hub.replica, fellow.channel, fellow.record.secret)
        self._desks[session][fellow.name] = desk
        self._tasks.spawn(desk.run(), f"relay {session.worker.name} to {fellow.name}")

    def ownerless(self, cluster: str) -> bool:
        """See Peers."""
        return self._replicas.owners.get(cluster) is None

    def is_peer(self, context: grpc.aio.ServicerContext) -> bool:
        """See Peers."""
        metadata: dict[str, Any] = dict(context.invocation_metadata() or ())
        return hmac.compare_digest(str(metadata.get(SECRET, "")).encode(), self._secret.encode())

    def clusters_of(self, replica: str) -> set[str]:
        """See Peers."""
        return {cluster for cluster, holder in self._replicas.owners.items() if holder == replica}

    def _route(self, controller: str, target: Target, priority: int) -> None:
        """A request for another's cluster; nobody's: when it has an owner, all is replayed for it."""
        fellow = self._fellows.get(self._replicas.owners.get(target.cluster, ""))
        if fellow is not None:
            fellow.outbox.put(controller, target, priority)

    # Questions.

    async def _ask(self, ask: Callable[[Fellow], Awaitable[Any]]) -> list[Any]:
        async def one(fellow: Fellow) -> Any:
            try:
                return await ask(fellow)
            except grpc.aio.AioRpcError as error:
                return error

        fellows = list(self._fellows.values())
        answers = await asyncio.gather(*(one(fellow) for fellow in fellows))
        return list(zip(fellows, answers, strict=True))

    async def query(self, request: pb.QueryIndexRequest) -> list[pb.QueryIndexResponse | str]:
        """See Peers."""
        inner = pb.QueryIndexRequest()
        inner.CopyFrom(request)
        inner.this_replica = True
        found: list[pb.QueryIndexResponse | str] = []
        for fellow, answer in await self._ask(
            lambda each: rpc.ReconcilerServiceStub(each.channel).QueryIndex(inner, metadata=each.metadata, timeout=ASK_WITHIN)
        ):
            if not isinstance(answer, grpc.aio.AioRpcError):
                found.append(answer)
            elif answer.code() != grpc.StatusCode.NOT_FOUND:
                found.append(fellow.name)
        return found

    async def list_queues(self, request: pb.ListQueuesRequest) -> list[pb.ListQueuesResponse | str]:
        """See Peers."""
        inner = pb.ListQueuesRequest(controller=request.controller, this_replica=True)
        return [
            fellow.name if isinstance(answer, grpc.aio.AioRpcError) else answer
            for fellow, answer in await self._ask(
                lambda each: rpc.QueueServiceStub(each.channel).ListQueues(inner, metadata=each.metadata, timeout=ASK_WITHIN)
            )
        ]

    async def update_queue(self, request: pb.UpdateQueueRequest) -> int:
        """See Peers."""
        inner = pb.UpdateQueueRequest()
        inner.CopyFrom(request)
        inner.this_replica = True
        changed = 0
        for _, answer in await self._ask(
            lambda each: rpc.QueueServiceStub(each.channel).UpdateQueue(inner, metadata=each.metadata, timeout=ASK_WITHIN)
        ):
            if not isinstance(answer, grpc.aio.AioRpcError):
                changed += 1
            elif answer.code() != grpc.StatusCode.NOT_FOUND:
                raise from_rpc(answer, "another replica")
        return changed

    async def close(self) -> None:
        """Leave all, for good."""
        self._closed = True
        for fellow in self._fellows.values():
            await fellow.close()
        self._fellows.clear()
