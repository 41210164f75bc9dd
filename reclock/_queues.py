"""The fair queues, shown and steered: `QueueService` of the reconciler."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Any, TypeAlias

from reclock._connection import Connection
from reclock._durations import duration
from reclock._service import identity, open_channel
from reclock._settings import Settings
from reclock.reconciler.v1 import reconciler_pb2 as pb
from reclock.reconciler.v1 import reconciler_pb2_grpc

TIMEOUT = 30.0
View: TypeAlias = pb.ListQueuesResponse | pb.WatchQueuesResponse
"""`queues`: a row per controller and cluster; `controllers`: their workers; `missing_replicas`."""


class Queues:
    """A client: `async with Queues() as queues: await queues.update("east", cap=2)`. Errors are grpc's."""

    def __init__(self, **settings: Any) -> None:
        self._settings = Settings.load(**settings)
        self.address = self._settings.reconciler

    async def __aenter__(self) -> Queues:
        self._connection = await Connection.open(self._settings)
        self._channel = open_channel(self._settings)
        self._stub = reconciler_pb2_grpc.QueueServiceStub(self._channel)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()
        await self._connection.close()

    async def list(self, controller: str = "") -> pb.ListQueuesResponse:
        """Every cluster's part of the queue of a controller, or of all."""
        asked = pb.ListQueuesRequest(controller=controller)
        shown: pb.ListQueuesResponse = await self._stub.ListQueues(asked, timeout=TIMEOUT, metadata=await self._who())
        return shown

    async def watch(self, controller: str = "", *, interval: float = 1.0) -> AsyncGenerator[View, None]:
        """The same, now and then every `interval` seconds."""
        asked = pb.WatchQueuesRequest(controller=controller, interval=duration(interval))
        async for view in self._stub.WatchQueues(asked, metadata=await self._who()):
            yield view

    async def update(
        self,
        cluster: str,
        *,
        controller: str = "",
        weight: float | None = None,
        cap: int | None = None,
        paused: bool | None = None,
    ) -> None:
        """Change a cluster's part of a controller's queue, or of all; what is None stays."""
        asked = pb.UpdateQueueRequest(controller=controller, cluster=cluster, weight=weight, cap=cap, paused=paused)
        await self._stub.UpdateQueue(asked, timeout=TIMEOUT, metadata=await self._who())

    async def _who(self) -> tuple[tuple[str, str], ...]:
        return await identity(self._connection, self._settings)
