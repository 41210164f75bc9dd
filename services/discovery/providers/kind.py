"""Provider `kind`: the clusters that the command `kind` knows of on this machine."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.common.errors import cut
from services.common.kube import kubeconfig as kc
from services.discovery.config import KindProvider
from services.discovery.names import NamedCandidate, assign
from services.discovery.providers.base import Problem, Publish, Reading, found, unread, usable

log = logging.getLogger(__name__)

END = 5.0
"""Seconds that a killed command may take to end."""
MAX_OUTPUT = 4 * 1024 * 1024
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,253}")


class CommandError(Exception):
    """Why a command gave no usable answer; for people."""


@dataclass(slots=True)
class KindCluster:
    """What was last read of one cluster."""

    kubeconfig: Mapping[str, Any] | None = None
    problem: str = ""
    due: float = 0.0
    """Time of the loop's clock at which its kubeconfig is read again."""


class KindProviderTask:
    """`id`, `run`: see base.Provider. Looks every `interval`; kind has nothing to watch.

    A kubeconfig is read when its cluster appears and every `refresh`, since a cluster that is made anew under
    its old name between two looks has another certificate.
    """

    def __init__(self, ident: str, settings: KindProvider, holders: Callable[[], Mapping[str, str]]) -> None:
        self.id = ident
        self._settings = settings
        self._holders = holders
        self._known: dict[str, KindCluster] = {}
        self._read = False
        """The list could be read once."""

    async def run(self, publish: Publish) -> None:
        """Look, publish what changed, pause, again."""
        last: Reading | None = None
        while True:
            reading = await self._look()
            if reading != last:
                publish(reading)
                last = reading
            await asyncio.sleep(self._settings.interval)

    def refused(self, source: str) -> None:
        """See base.Rereads: the cluster was made anew, most likely."""
        for name, cluster in self._known.items():
            if NamedCandidate("kind", name).source == source:
                cluster.due = 0.0

    async def _look(self) -> Reading:
        try:
            names = await self._list()
        except CommandError as error:
            problem = f"kind get clusters: {error}"
            return self._reading(problem) if self._read else unread(self._settings.command, problem)
        self._read = True
        self._known = {name: self._known.get(name) or KindCluster() for name in names}
        for name, cluster in self._known.items():
            await self._refresh(name, cluster)
        return self._reading()

    async def _list(self) -> list[str]:
        output = await run_command([self._settings.command, "get", "clusters"], self._settings.timeout)
        names = output.decode("utf-8", "replace").split("\n")
        names = [name.strip() for name in names if name.strip()]
        if odd := [name for name in names if not _NAME.fullmatch(name)]:
            raise CommandError(f"printed {cut(odd[0], 80)!r}, which is no name of a cluster")
        return sorted(set(names))

    async def _refresh(self, name: str, cluster: KindCluster) -> None:
        """Read a kubeconfig that is due; a bad one leaves the last and is tried again at the next look."""
        clock = asyncio.get_running_loop().time
        if clock() < cluster.due:
            return
        command = [self._settings.command, "get", "kubeconfig", "--name", name]
        try:
            config = kc.parse(await run_command(command, self._settings.timeout))
            cluster.kubeconfig = await asyncio.to_thread(usable, config, None, Path.cwd())
        except (CommandError, kc.KubeconfigError) as error:
            cluster.problem = f"kind get kubeconfig: {error}"
            return
        cluster.problem = ""
        cluster.due = clock() + self._settings.refresh

    def _reading(self, trouble: str = "") -> Reading:
        problems = [Problem(self._settings.command, trouble)] if trouble else []
        unreadable: list[str] = []
        candidates = {name: NamedCandidate("kind", name) for name in self._known}
        for name, cluster in self._known.items():
            if cluster.problem:
                problems.append(Problem(candidates[name].source, cluster.problem))
                unreadable.append(candidates[name].source)
        usable_ones = [candidates[name] for name, cluster in self._known.items() if cluster.kubeconfig]
        names, notes = assign(usable_ones, self._holders())
        problems.extend(Problem(candidate.source, message) for candidate, message in notes)
        clusters = []
        for name, candidate in names.items():
            cluster = self._known[candidate.context]
            assert cluster.kubeconfig is not None
            problem = cluster.problem or trouble
            clusters.append(found(name, cluster.kubeconfig, candidate.source, problem=problem))
        return Reading(tuple(clusters), tuple(problems), tuple(unreadable))


async def run_command(command: Sequence[str], timeout: float) -> bytes:
    """Return what a command prints; CommandError when it fails, hangs (it is killed) or prints too much."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise CommandError(f"cannot be run: {error.strerror}") from None
    try:
        async with asyncio.timeout(timeout):
            output, errors = await asyncio.gather(_most(process, process.stdout), _most(process, process.stderr))
            code = await process.wait()
    except TimeoutError:
        raise CommandError(f"no answer in {timeout:g} s") from None
    finally:
        await _end(process)
    if max(len(output), len(errors)) > MAX_OUTPUT:
        raise CommandError(f"prints more than {MAX_OUTPUT // 1024 // 1024} MiB")
    if code:
        text = errors.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise CommandError(f"exit code {code}: {cut(text, 300)}" if text else f"exit code {code}")
    return output


async def _most(process: asyncio.subprocess.Process, stream: asyncio.StreamReader | None) -> bytes:
    """Read to the end; too much ends the command, and the rest is read and dropped: a full pipe never closes."""
    assert stream is not None
    data = bytearray()
    while chunk := await stream.read(65536):
        if len(data) <= MAX_OUTPUT:
            data += chunk
            if len(data) > MAX_OUTPUT:
                _kill(process)
    return bytes(data)


def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill the command and what it started: kind runs docker, which would live on."""
    if process.returncode is not None:
        return
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        log.debug("command %d has ended", process.pid)


async def _end(process: asyncio.subprocess.Process) -> None:
    _kill(process)
    try:
        async with asyncio.timeout(END):
            await process.communicate()
    except TimeoutError:
        log.warning("command %d: something that it started still holds its output open", process.pid)
