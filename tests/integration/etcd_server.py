"""A real etcd for tests: started on free ports, killed, restarted, emptied."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import aiohttp


def find_etcd() -> str | None:
    """Path of the etcd binary: KUBEBUILDER_ASSETS, the cache of `make kube`, PATH."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "reclock" / "kube"
    places = [Path(os.environ["KUBEBUILDER_ASSETS"])] if "KUBEBUILDER_ASSETS" in os.environ else []
    places += sorted(cache.glob("*/bin"), reverse=True)
    found = next((str(place / "etcd") for place in places if (place / "etcd").is_file()), None)
    return found or shutil.which("etcd")


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class EtcdServer:
    """One etcd process with its data in `directory`."""

    def __init__(self, binary: str, directory: Path) -> None:
        self.binary, self.directory = binary, directory
        self.port, self.peer = free_port(), free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """Client address."""
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start, and wait until it is healthy."""
        client, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.peer}"
        self.process = subprocess.Popen(  # noqa: ASYNC220 - starting takes no time; waiting is awaited
            [
                self.binary, "--data-dir", str(self.directory), "--listen-client-urls", client,
                "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls",
                peer, "--initial-cluster", f"default={peer}", "--log-level", "error", "--unsafe-no-fsync",
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        deadline = time.monotonic() + 30
        async with aiohttp.ClientSession() as session:
            while True:
                try:
                    async with session.get(f"{client}/health") as answer:
                        if answer.status == 200:
                            return
                except aiohttp.ClientError:
                    pass  # not listening yet
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise RuntimeError("etcd did not start")
                await asyncio.sleep(0.05)

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def pause(self) -> None:
        """Stop it without closing its connections."""
        if self.process is not None:
            self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)

    def empty(self) -> None:
        """Lose all data (while it is not running)."""
        shutil.rmtree(self.directory, ignore_errors=True)
