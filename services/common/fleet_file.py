"""The last snapshot of the fleet in a file, so that a service which starts while discovery is away serves at once.

Holds credentials of members: mode 0600. What is in it may be old; discovery's first snapshot replaces it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from reclock.discovery.v1 import discovery_pb2
from services.common.private_file import write_private

log = logging.getLogger(__name__)

DELAY = 1.0
"""Seconds over which changes are gathered before they are written."""


class FleetFile:
    """`collect` returns the discovery_pb2.Clusters, access included, to keep. Without a path nothing is kept."""

    def __init__(self, path: str, collect: Callable[[], Iterable[Any]]) -> None:
        self.path = Path(path).expanduser() if path else None
        self._collect = collect
        self._dirty = asyncio.Event()

    async def load(self) -> list[Any]:
        """The kept clusters; none where there is no file, or one that cannot be used (said in the log)."""
        if self.path is None:
            return []
        try:
            data = await asyncio.to_thread(self.path.read_bytes)
            return list(discovery_pb2.ListClustersResponse.FromString(data).clusters)
        except FileNotFoundError:
            return []
        except (OSError, DecodeError) as error:
            log.error("the fleet's last snapshot %s cannot be used: %s", self.path, error)
            return []

    def mark(self) -> None:
        """Something changed."""
        self._dirty.set()

    async def run(self) -> None:
        """Write some time after changes, until cancelled; failures are said and tried again."""
        while True:
            await self._dirty.wait()
            await asyncio.sleep(DELAY)
            await self.flush()

    async def flush(self) -> None:
        """Write what is not written."""
        if self.path is None or not self._dirty.is_set():
            return
        self._dirty.clear()
        data = discovery_pb2.ListClustersResponse(clusters=self._collect()).SerializeToString()
        try:
            await asyncio.to_thread(write_private, self.path, data)
        except OSError as error:
            log.error("the fleet's snapshot %s cannot be written: %s", self.path, error.strerror)
            self._dirty.set()
