"""Requests that objects here make for clusters of one other replica: sent in batches until they are taken."""

from __future__ import annotations

import asyncio
from collections.abc import Container

import grpc

from reclock.reconciler.v1 import peer_pb2 as peer
from reclock.reconciler.v1 import peer_pb2_grpc as rpc
from services.common.tasks import Backoff
from services.reconciler.work.mapping import Target
from services.reconciler.work.relay import SECRET

BATCH = 500
SEND_WITHIN = 5.0


class Outbox:
    """Each request is in it once, at its highest priority. When the cluster gets another owner, all is made anew."""

    def __init__(self, replica: str, channel: grpc.aio.Channel, secret: str, controllers: Container[str]) -> None:
        self._replica = replica
        self._stub = rpc.PeerServiceStub(channel)
        self._secret = secret
        self._controllers = controllers
        self._waiting: dict[tuple[str, Target], int] = {}
        self._some = asyncio.Event()

    def put(self, controller: str, target: Target, priority: int) -> None:
        """Send it soon."""
        key = (controller, target)
        self._waiting[key] = max(priority, self._waiting.get(key, priority))
        self._some.set()

    async def run(self) -> None:
        """Send until cancelled."""
        backoff = Backoff(initial=0.05, maximum=2.0)
        while True:
            await self._some.wait()
            self._some.clear()
            while self._waiting:
                if not await self._send():
                    await backoff.wait()
                else:
                    backoff.reset()

    async def _send(self) -> bool:
        """Send one batch; whether all of it was taken."""
        batch = [(key, self._waiting.pop(key)) for key in list(self._waiting)[:BATCH]]
        keys = [
            peer.AddedKey(
                controller=controller, cluster=target.cluster, namespace=target.namespace, name=target.name,
                source=target.source, priority=priority,
            )
            for (controller, target), priority in batch
        ]  # fmt: skip
        refused = set(range(len(batch)))
        try:
            answer = await self._stub.Add(
                peer.AddRequest(keys=keys), metadata=((SECRET, self._secret),), timeout=SEND_WITHIN
            )
            refused = set(answer.refused)
        except grpc.aio.AioRpcError:
            pass  # not reached: all of it is sent again, until the replica counts as gone
        for place in refused:
            (controller, target), priority = batch[place]
            if controller in self._controllers:
                self.put(controller, target, priority)
        return not refused
