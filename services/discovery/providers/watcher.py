"""Wakes when files change: inotify on folders, and a slow rescan for what inotify does not see (NFS, overlays)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path

from inotify_simple import INotify, flags

log = logging.getLogger(__name__)

MASK = (
    flags.CREATE | flags.CLOSE_WRITE | flags.MOVED_TO | flags.MOVED_FROM | flags.DELETE | flags.DELETE_SELF
    | flags.MOVE_SELF | flags.ATTRIB | flags.ONLYDIR
)  # fmt: skip
SETTLE = 0.1
"""Seconds to wait after an event: writers replace a file in several steps."""
RESCAN = 10.0
BLIND = 2.0
"""Seconds between scans while there is no inotify."""


class FolderWatcher:
    """`watch` sets the folders, `changed` waits for the next change or rescan."""

    def __init__(self, rescan: float = RESCAN) -> None:
        self._rescan = rescan
        self._event = asyncio.Event()
        self._watched: dict[Path, int] = {}
        self._inotify: INotify | None = None
        self._said = ""
        self._open()

    def _open(self) -> None:
        """Get an inotify instance; there may be none left now (their number per user is limited)."""
        try:
            self._inotify = INotify(nonblocking=True)
        except OSError as error:
            if self._said != str(error):
                log.warning("no inotify (%s): files are looked at every %.0f s", error.strerror, BLIND)
            self._said = str(error)
        else:
            asyncio.get_running_loop().add_reader(self._inotify.fileno(), self._readable)

    def _readable(self) -> None:
        if self._inotify is None:
            return
        for event in self._inotify.read(timeout=0):
            if event.mask & flags.IGNORED:
                # The folder is gone; it is watched again when a scan finds it.
                self._watched = {path: wd for path, wd in self._watched.items() if wd != event.wd}
        self._event.set()

    def watch(self, folders: Iterable[Path]) -> None:
        """Watch exactly these folders; those that do not exist are left to the rescan."""
        if self._inotify is None:
            self._open()
        if self._inotify is None:
            return
        wanted = set(folders)
        for path in set(self._watched) - wanted:
            try:
                self._inotify.rm_watch(self._watched.pop(path))
            except OSError as error:
                log.debug("%s: no longer watched: %s", path, error.strerror)
        for path in wanted - set(self._watched):
            try:
                self._watched[path] = self._inotify.add_watch(path, MASK)
            except OSError as error:
                log.debug("%s: cannot be watched: %s", path, error.strerror)

    async def changed(self, limit: float | None = None) -> None:
        """Return after a change (settled), after `limit` seconds or when a rescan is due."""
        longest = min(self._rescan, BLIND) if self._inotify is None else self._rescan
        try:
            async with asyncio.timeout(min(limit or longest, longest)):
                await self._event.wait()
            await asyncio.sleep(SETTLE)
        except TimeoutError:
            return
        finally:
            self._event.clear()

    def close(self) -> None:
        """Stop watching."""
        if self._inotify is not None:
            asyncio.get_running_loop().remove_reader(self._inotify.fileno())
            self._inotify.close()
            self._inotify = None
