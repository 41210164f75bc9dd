"""A real etcd of three members for tests: each can be killed, paused, and started again."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from services.common.etcd import Etcd
from services.common.etcd_admin import EndpointState, states
from tests.integration.etcd_server import free_port


class EtcdCluster:
    """Members `0`, `1`, `2`; `flags` go to each of them."""

    def __init__(self, binary: str, directory: Path, count: int = 3, flags: Sequence[str] = ()) -> None:
        self.binary, self.directory, self.flags = binary, directory, list(flags)
        self.ports = [(free_port(), free_port()) for _ in range(count)]
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def endpoints(self) -> list[str]:
        return [f"127.0.0.1:{client}" for client, _ in self.ports]

    async def start(self) -> None:
        """Start all members and wait until they have a leader."""
        for number in range(len(self.ports)):
            self.run(number)
        await self.healthy()

    def run(self, number: int) -> None:
        """Start one member; does not wait."""
        client, peer = (f"http://127.0.0.1:{port}" for port in self.ports[number])
        whole = ",".join(f"m{at}=http://127.0.0.1:{ports[1]}" for at, ports in enumerate(self.ports))
        self.processes[number] = subprocess.Popen(
            [
                self.binary, "--name", f"m{number}", "--data-dir", str(self.directory / f"m{number}"),
                "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
                "--initial-advertise-peer-urls", peer, "--initial-cluster", whole, "--log-level", "error",
                "--unsafe-no-fsync", "--heartbeat-interval", "50", "--election-timeout", "500", *self.flags,
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    async def healthy(self, timeout: float = 30) -> None:
        """Wait until every running member follows a leader."""
        await self._until(
            lambda found: sum(not one.problem for one in found) >= len(self.processes), timeout
        )

    async def leader(self, timeout: float = 30) -> int:
        """Number of the member that leads."""
        found = await self._until(lambda some: any(one.leader and not one.problem for one in some), timeout)
        return next(number for number, one in enumerate(found) if one.leader and not one.problem)

    async def _until(
        self, probe: Callable[[list[EndpointState]], bool], timeout: float
    ) -> list[EndpointState]:
        client = Etcd.connect(self.endpoints)
        try:
            async with asyncio.timeout(timeout):
                while True:
                    if probe(found := await states(client)):
                        return found
                    await asyncio.sleep(0.1)
        finally:
            await client.close()

    def kill(self, number: int) -> None:
        """kill -9."""
        process = self.processes.pop(number)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def pause(self, number: int) -> None:
        """Keep its connections and answer nothing."""
        self.processes[number].send_signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        """Let it go on."""
        self.processes[number].send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill all members, and forget their data."""
        for number in list(self.processes):
            with contextlib.suppress(ProcessLookupError):
                self.kill(number)
        shutil.rmtree(self.directory, ignore_errors=True)
