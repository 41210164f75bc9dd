"""A fleet, a service and a worker of one or more controllers, together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from reclock._controller import Controller
from reclock._fleet import Fleet
from reclock._worker import Worker
from reclock.testing._fleet import FakeFleet
from reclock.testing._service import Done, FakeService


class World:
    """`async with World(controller, clusters=["east"]) as world`: see `reclock.testing`.

    lease, heartbeat: in seconds; a third of the lease is the usual heartbeat.
    Nothing is asked by itself: `reconcile` asks the controller about an object, and waits for its answer.
    """

    def __init__(self, *controllers: Controller, clusters: Sequence[str] = (), lease: float = 30.0, heartbeat: float = 0.0) -> None:
        self.fleet = FakeFleet(*clusters)
        self.service = FakeService(lease=lease, heartbeat=heartbeat)
        self._controllers = controllers
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> World:
        try:
            await self._stack.enter_async_context(self.fleet)
            await self._stack.enter_async_context(self.service)
            self.client = await self._stack.enter_async_context(Fleet.connect(self.fleet.kubeconfig))
            if self._controllers:
                self.worker = Worker(*self._controllers, fleet=self.client, reconciler=self.service.address, drain=5.0)
                await self._stack.enter_async_context(self.worker)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def reconcile(
        self, cluster: str, namespace: str, name: str, *, controller: str = "", timeout: float = 10.0, **request: Any
    ) -> Done:
        """Ask about an object; further fields of the request by name (`attempt=3`)."""
        return await self.service.ask(
            cluster, namespace, name, controller=controller, timeout=timeout, **request
        )
