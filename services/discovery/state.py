"""The state file: clusters and registrations, for starts without the host. Holds credentials: mode 0600."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from services.common.private_file import write_private
from services.discovery.providers.base import Found, found

log = logging.getLogger(__name__)

FORMAT = 1
DELAY = 1.0
"""Seconds over which changes are gathered before they are written."""


class State(msgspec.Struct, kw_only=True):
    """Contents of the file."""

    format: int = FORMAT
    clusters: list[dict[str, Any]] = []
    """`Cluster` objects."""
    access: dict[str, dict[str, Any]] = {}
    """Name -> {kubeconfig, labels, source} of clusters that may have copies: for those whose source goes."""
    registrations: dict[str, dict[str, Any]] = {}
    """Name -> {kubeconfig, labels}."""
    unsaved: bool = False
    """Registrations were changed while the host was away, and must be written there."""

    def kept(self, name: str) -> Found | None:
        """The access that a cluster had."""
        entry = self.access.get(name)
        return found(name, entry["kubeconfig"], entry["source"], entry["labels"]) if entry is not None else None


def load(path: Path) -> State:
    """Read the file; one that is missing or broken (it is set aside) counts as empty."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return State()
    except OSError as error:
        log.error("state file %s cannot be read: %s", path, error.strerror)
        return State()
    try:
        state = msgspec.json.decode(data, type=State)
        if state.format != FORMAT:
            raise msgspec.ValidationError(f"format {state.format}")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        aside = path.with_suffix(path.suffix + ".broken")
        log.error("state file %s is broken (%s); set aside as %s", path, type(error).__name__, aside)
        os.replace(path, aside)
        return State()
    return state


def write(path: Path, state: State) -> None:
    """Write the file as a whole or not at all; one writer at a time."""
    write_private(path, msgspec.json.encode(state))


class StateFile:
    """Writes the state some time after `mark`; does nothing without a path."""

    def __init__(self, path: str, collect: Callable[[], State]) -> None:
        self._path = Path(path).expanduser() if path else None
        self._collect = collect
        self._dirty = asyncio.Event()
        self._writing = asyncio.Lock()

    @property
    def on(self) -> bool:
        """Whether there is a file."""
        return self._path is not None

    def load(self) -> State:
        """Read it."""
        return load(self._path) if self._path is not None else State()

    def mark(self) -> None:
        """Something changed."""
        self._dirty.set()

    async def run(self) -> None:
        """Write after changes, until cancelled."""
        while True:
            await self._dirty.wait()
            await asyncio.sleep(DELAY)
            await self.flush()

    async def save(self) -> bool:
        """Write now; whether there is a file and it was written."""
        self.mark()
        return self.on and await self.flush()

    async def flush(self) -> bool:
        """Write what is not written; say whether all is (a failure is tried again later)."""
        if self._path is None:
            return True
        async with self._writing:
            if not self._dirty.is_set():
                return True
            self._dirty.clear()
            try:
                await asyncio.to_thread(write, self._path, self._collect())
            except OSError as error:
                log.error("state file %s cannot be written: %s", self._path, error.strerror)
                self._dirty.set()
                return False
        return True


def access(cluster: Found) -> dict[str, Any]:
    """The kept shape of a cluster's access."""
    return {"kubeconfig": cluster.kubeconfig, "labels": cluster.labels, "source": cluster.source}


def registration(kubeconfig: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    """The kept shape of one registration."""
    return {"kubeconfig": dict(kubeconfig), "labels": dict(labels)}
