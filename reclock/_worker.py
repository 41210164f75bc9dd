"""A process's part in one or more controllers, and the ways to run it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import uuid
from typing import Any

import grpc

from reclock._connection import Connection
from reclock._controller import Controller
from reclock._errors import ReclockError
from reclock._fleet import Fleet
from reclock._request import Indexed
from reclock._service import open_channel
from reclock._session import CLOSE_SECONDS, Session
from reclock._settings import Settings
from reclock._sources import Target

log = logging.getLogger("reclock")

DRAIN_SECONDS = 30.0
"""How long handlers may take to end when a worker stops; keep `terminationGracePeriodSeconds` above it."""


class Worker:
    """Works for controllers from `start` to `stop`: `async with Worker(logger) as worker: await worker.wait()`.

    settings: as `Settings` has them. `fleet` is connected by them when not given. `name` is of this process, unique
    among the controller's workers: by it the service knows a worker that connects anew.
    """

    def __init__(
        self, *controllers: Controller, fleet: Fleet | None = None, name: str = "", drain: float = DRAIN_SECONDS, **settings: Any
    ) -> None:
        if not controllers:
            raise ValueError("a worker needs a controller")
        names = [one.name for one in controllers]
        if len(set(names)) != len(names):
            raise ValueError(f"two controllers have one name: {', '.join(sorted(names))}")
        self.controllers = controllers
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self.settings = Settings.load(**settings)
        self._drain = drain
        self._fleet = fleet
        self._own_fleet = fleet is None
        self._channel: grpc.aio.Channel | None = None
        self._sessions: list[Session] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._stop: asyncio.Task[None] | None = None

    @property
    def fleet(self) -> Fleet:
        """The clients that handlers use; for caches, too. From `start` on."""
        if self._fleet is None:
            raise ReclockError("the worker has not started")
        return self._fleet

    async def __aenter__(self) -> Worker:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Connect and begin; returns when the service has taken every controller.

        Waits for a service that is not there yet. Raises RegistrationRefused.
        """
        if self._sessions:
            raise ReclockError("the worker has started already")
        if self._fleet is None:
            self._fleet = Fleet(await Connection.open(self.settings))
        try:
            self._channel = open_channel(self.settings)
            self._sessions = [
                Session(one, self._channel, self._fleet, self.settings, self.name) for one in self.controllers
            ]
            self._tasks = [
                asyncio.create_task(one.run(), name=f"reclock worker of {one.controller.name}") for one in self._sessions
            ]
            await self._until_registered()
        except BaseException:
            await self._close()
            raise

    async def _until_registered(self) -> None:
        ready = asyncio.create_task(self._all_registered(), name="reclock worker: registration")
        try:
            await asyncio.wait([ready, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        self._raise_failure()

    async def _all_registered(self) -> None:
        for session in self._sessions:
            await session.registered.wait()

    def _raise_failure(self) -> None:
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def wait(self) -> None:
        """Return when the worker has stopped; raises what ended it."""
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        self._raise_failure()
        if self._stop is not None:
            await asyncio.shield(self._stop)

    async def run(self) -> None:
        """From start to end: until `stop` is called, or until it is cancelled (then it stops in order)."""
        try:
            await self.start()
            await self.wait()
        finally:
            await asyncio.shield(self.stop())

    async def stop(self, drain: float | None = None) -> None:
        """Take no more requests, wait for handlers, send their results, leave. Idempotent: the first call counts.

        drain: seconds that handlers have, 0 to stop them at once; as the worker was made with when not given.
        """
        if self._stop is None:
            limit = self._drain if drain is None else drain
            self._stop = asyncio.create_task(self._stop_in_order(limit), name="reclock worker: stop")
        await asyncio.shield(self._stop)

    async def _stop_in_order(self, limit: float) -> None:
        await asyncio.gather(*(session.stop(limit) for session in self._sessions))
        connected = [
            task for task, session in zip(self._tasks, self._sessions, strict=True) if session.registered.is_set()
        ]
        if connected:  # they end when the service has read what we had to say
            await asyncio.wait(connected, timeout=CLOSE_SECONDS)
        await self._close()

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for session in self._sessions:
            await session.close()
        if self._channel is not None:
            await self._channel.close()
        if self._own_fleet and self._fleet is not None:
            await self._fleet.close()

    def tell(self, controller: Controller, *targets: Target) -> None:
        """Say that requests of the controller's `Channel`s are due, now or `after` some seconds.

        A `cluster` of None is the host. Nothing waits; while there is no connection, or no such cluster, nothing is
        kept either: `tells` of the controller says all when there is.
        """
        for session in self._sessions:
            if session.controller is controller:
                session.tell(targets)

    @property
    def connected(self) -> bool:
        """Whether the service has taken every controller, and no stream is broken just now."""
        return bool(self._sessions) and all(session.registered.is_set() for session in self._sessions)

    async def indexed(self, controller: Controller, index: str, value: str) -> Indexed:
        """Ask an index of a controller over all clusters, as `Request.indexed` does."""
        session = next(one for one in self._sessions if one.controller is controller)
        return await session.indexed(index, value)


async def start(*controllers: Controller, **settings: Any) -> Worker:
    """Start a worker in the running event loop, as in a notebook: `worker = await reclock.start(logger)`."""
    worker = Worker(*controllers, **settings)
    await worker.start()
    return worker


def run(*controllers: Controller, **settings: Any) -> None:
    """Work until Ctrl-C or SIGTERM: the last line of a program. A second signal ends it at once.

    Raises RegistrationRefused; RuntimeError where an event loop runs already (there: `await reclock.start(…)`).
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise RuntimeError("an event loop runs here already: use `await reclock.start(…)`")
    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(_run(Worker(*controllers, **settings)))


async def _run(worker: Worker) -> None:
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(worker.run(), name="reclock worker")
    asked = False

    def end(number: int) -> None:
        nonlocal asked
        if asked:
            os._exit(128 + number)
        asked = True
        log.info("stopping (%s); once more ends it at once", signal.Signals(number).name)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end, number)
    try:
        await task
    except asyncio.CancelledError:
        if not asked:
            raise
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
