"""The life of a service: start, become ready, stop in steps.

A service subclasses `Service` and overrides the steps it needs. Stopping is the same in every service: health
NOT_SERVING, `stop_intake`, `drain` (with a limit), gRPC stopped, `flush`, tasks cancelled, `close`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import msgspec
import uvloop

from services.common import telemetry
from services.common.access import Access
from services.common.config import ConfigError, ServiceConfig, UserFacingConfig, load
from services.common.grpc import GrpcServer
from services.common.kube.kubeconfig import KubeconfigError
from services.common.ops import Check, OpsServer
from services.common.recheck import Recheck
from services.common.tasks import Tasks

log = logging.getLogger(__name__)

C = TypeVar("C", bound=ServiceConfig)

DRAIN_LIMIT = 10.0
STEP_LIMIT = 5.0
GRPC_GRACE = 2.0
READY_PERIOD = 0.1
GC_THRESHOLD = (20_000, 20, 20)


class Service(Generic[C]):
    """One service of Reclock. `checks` name what /readyz needs: None when there, else what is missing."""

    name = "service"
    shared = False
    """Do other processes of this machine serve on the same ports?"""

    def __init__(self, config: C) -> None:
        self.config = config
        self.failure: str | None = None
        self.tasks = Tasks(self.name, on_failure=self._task_failed)
        self.checks: dict[str, Check] = {}
        self.grpc = self._server(config)
        self.ops = OpsServer(config.http_address, self.checks)
        self._stop = asyncio.Event()
        self._ready = False
        self._stopping: asyncio.Task[None] | None = None

    # What a service overrides.

    async def start(self) -> None:
        """Add servicers to `self.grpc`, spawn tasks; must not wait for other services."""

    async def stop_intake(self) -> None:
        """Stop taking work."""

    async def drain(self) -> None:
        """Wait for work in hand; given DRAIN_LIMIT seconds."""

    async def flush(self) -> None:
        """Write what is buffered."""

    async def close(self) -> None:
        """Close clients and channels, after all tasks have ended."""

    def access(self) -> Access:
        """Who judges calls of users; its host is set when there is a client of it."""
        return Access()

    # What it inherits.

    def _server(self, config: C) -> GrpcServer:
        access = self.access()
        if not isinstance(config, UserFacingConfig):
            return GrpcServer(config.grpc_address, config.tls, shared=self.shared, access=access)
        return GrpcServer(
            config.grpc_address, config.tls, shared=self.shared, access=access, users=config.user_port(),
            recheck=Recheck(config.review_seconds, config.review_patience),
        )  # fmt: skip

    def _task_failed(self, name: str, error: BaseException | None) -> None:
        reason = f"{name} ended" if error is None else f"{name} failed: {type(error).__name__}: {error}"
        self.fail(reason)

    def fail(self, reason: str) -> None:
        """Stop the process in order, with exit code 1 and this reason."""
        if self.failure is None and not self._stop.is_set():
            self.failure = reason
            log.error("stopping: %s", reason)
        self._stop.set()

    def request_stop(self) -> None:
        """Stop the process in order, with exit code 0."""
        self._stop.set()

    async def run(self) -> int:
        """Run until told to stop; return the exit code."""
        try:
            await self.ops.start()
            await self.start()
            await self.grpc.start()
            self.tasks.spawn(self._watch_readiness(), "readiness")
            await self._stop.wait()
        except OSError as error:
            self.fail(f"cannot start: {error.strerror or error}")
        finally:
            await self.stop()
        return 1 if self.failure else 0

    async def _watch_readiness(self) -> None:
        """Serve from the first time that all checks pass; say once what is waited for."""
        said: dict[str, str] = {}
        while failing := self.ops.failing():
            for check, reason in failing.items():
                if check not in said:
                    log.info("waiting for %s: %s", check, reason)
            said = said | failing
            await asyncio.sleep(READY_PERIOD)
        self._ready = True
        await self.grpc.set_serving(True)
        log.info("ready")

    async def stop(self) -> None:
        """Stop in steps; each has its limit, and a step that fails does not keep the next from running."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop_steps(), name=f"{self.name}/stop")
        # A second signal must not leave half of the steps undone.
        await asyncio.shield(self._stopping)

    async def _stop_steps(self) -> None:
        self._stop.set()
        steps: list[tuple[str, Callable[[], Awaitable[object]], float]] = [
            ("health", lambda: self.grpc.set_serving(False), STEP_LIMIT),
            ("stop intake", self.stop_intake, STEP_LIMIT),
            ("drain", self.drain, DRAIN_LIMIT),
            ("gRPC", lambda: self.grpc.stop(GRPC_GRACE), GRPC_GRACE + STEP_LIMIT),
            ("flush", self.flush, STEP_LIMIT),
            ("tasks", self.tasks.close, STEP_LIMIT),
            ("close", self.close, STEP_LIMIT),
            ("operations", self.ops.stop, STEP_LIMIT),
        ]
        for name, step, limit in steps:
            try:
                async with asyncio.timeout(limit):
                    await step()
            except TimeoutError:
                log.warning("stopping: step %r did not end in %.0f s", name, limit)
            except Exception:
                log.exception("stopping: step %r failed", name)
        log.info("stopped")


async def _run(factory: Callable[[C], Service[C]], config: C) -> int:
    service = factory(config)
    loop = asyncio.get_running_loop()
    signals = 0

    def on_signal(number: int) -> None:
        nonlocal signals
        signals += 1
        if signals > 1:
            os._exit(128 + number)
        log.info("%s: stopping", signal.Signals(number).name)
        service.request_stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    return await service.run()


def main(
    factory: Callable[[C], Service[C]], struct: type[C], service: str, argv: Sequence[str] | None = None
) -> int:
    """Load the configuration, run the service, return the exit code (2: the configuration is wrong)."""
    config = load(struct, service, argv)
    telemetry.setup(config, service)
    # What was imported stays, and nearly all that follows goes by its count: the collector need not look often.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLD)
    try:
        return uvloop.run(_run(factory, config))
    except (ConfigError, KubeconfigError) as error:
        print(f"reclock-{service}: {error}", file=sys.stderr)
        return 2
    finally:
        telemetry.shutdown()


def plain(config: msgspec.Struct) -> object:
    """The configuration as plain data (for tests and tools)."""
    return msgspec.to_builtins(config)
