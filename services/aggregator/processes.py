"""Several aggregators of one machine on one port: a supervisor starts them, restarts one that ends, and stops all.

Each is a replica of its own (see docs/clock.md); the kernel deals connections out to those that listen. The
supervisor serves nothing and holds no socket, so that a dead one's share goes to the others at once. As a program
(`python -m services.aggregator.processes NUMBER …`) it is one of them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence

import msgspec

from services.aggregator.app import Aggregator
from services.aggregator.config import AggregatorConfig
from services.common import service, telemetry
from services.common.config import split_address
from services.common.tasks import Backoff

log = logging.getLogger(__name__)

WRONG_CONFIGURATION = 2
STABLE = 30.0
"""Seconds after which a process that ends did start."""
GRACE = 40.0
"""Seconds that processes have to stop in order: the steps of `Service.stop` and a reserve."""


class Replica(Aggregator):
    """One of several on the same ports; it ends with its supervisor, whose end closes standard input."""

    shared = True

    async def start(self) -> None:
        """Start as any aggregator does. Ctrl-C comes to all of the terminal's processes: the supervisor's word counts."""
        loop = asyncio.get_running_loop()
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        loop.add_reader(sys.stdin.fileno(), self._told)
        await super().start()

    def _told(self) -> None:
        if not os.read(sys.stdin.fileno(), 1):
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self.request_stop()


def of_number(config: AggregatorConfig, number: int) -> AggregatorConfig:
    """The n-th process's configuration: what cannot be shared is its own."""
    host, port = split_address(config.http_address) if config.http_address else ("", 0)
    if port and number:
        shown = f"[{host}]" if ":" in host else host
        config = msgspec.structs.replace(config, http_address=f"{shown}:{port + number}")
    if config.state_file and number:
        config = msgspec.structs.replace(config, state_file=f"{config.state_file}.{number}")
    return config


class Supervisor:
    """Keeps `count` processes running until told to stop."""

    def __init__(self, count: int, command: Sequence[str]) -> None:
        self.count, self.command = count, list(command)
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._code = 0

    def stop(self, number: int) -> None:
        """A signal: stop in order; a second one ends all at once."""
        if self._stopping.is_set():
            self._tell(signal.SIGKILL)
            os._exit(128 + number)
        log.info("%s: stopping %d processes", signal.Signals(number).name, len(self._running))
        self._stopping.set()
        self._tell(signal.SIGTERM)

    def _tell(self, what: signal.Signals) -> None:
        for process in self._running.values():
            if process.returncode is None:
                process.send_signal(what)

    async def run(self) -> int:
        """Run until all have ended; the exit code is the worst of theirs."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop, number)
        keepers = [asyncio.create_task(self._keep(one), name=f"process/{one}") for one in range(self.count)]
        await self._stopping.wait()
        _, late = await asyncio.wait(keepers, timeout=GRACE)
        if late:
            log.warning("%d processes did not stop in %.0f s: killed", len(late), GRACE)
            self._tell(signal.SIGKILL)
        await asyncio.gather(*keepers)
        return self._code

    async def _keep(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        backoff = Backoff(initial=0.2, maximum=10.0)
        while not self._stopping.is_set():
            began = loop.time()
            try:
                process = self._running[number] = await asyncio.create_subprocess_exec(
                    self.command[0], *self.command[1:3], str(number), *self.command[3:], stdin=asyncio.subprocess.PIPE
                )
            except OSError as error:  # no memory, no process ids: perhaps what ended the one before
                log.error("process %d cannot be started: %s", number, error)
                await self._pause(backoff)
                continue
            if self._stopping.is_set():
                process.send_signal(signal.SIGTERM)  # told while it was being started
            code = await process.wait()
            if self._stopping.is_set() or code == WRONG_CONFIGURATION:
                if code != -signal.SIGTERM:  # else it was told before it could listen
                    self._code = max(self._code, code if code >= 0 else 128 - code)
                if not self._stopping.is_set():
                    self._stopping.set()
                    self._tell(signal.SIGTERM)
                return
            log.error("process %d (pid %d) ended with %d: it is started again", number, process.pid, code)
            if loop.time() - began > STABLE:
                backoff.reset()
            await self._pause(backoff)

    async def _pause(self, backoff: Backoff) -> None:
        """Wait before the next start, or until told to stop."""
        try:
            async with asyncio.timeout(backoff.next_delay()):
                await self._stopping.wait()
        except TimeoutError:
            pass  # the next try is due


def supervise(config: AggregatorConfig, argv: Sequence[str]) -> int:
    """Run `config.processes` aggregators until told to stop; return the exit code."""
    telemetry.setup_logging("aggregator", config.log_level, config.log_format)
    command = [sys.executable, "-m", "services.aggregator.processes", *argv]

    async def run() -> int:
        return await Supervisor(config.processes, command).run()

    return asyncio.run(run())


def main() -> int:
    """Be one of several."""
    number = int(sys.argv[1])
    return service.main(
        lambda config: Replica(of_number(config, number)), AggregatorConfig, "aggregator", sys.argv[2:]
    )


if __name__ == "__main__":
    sys.exit(main())
