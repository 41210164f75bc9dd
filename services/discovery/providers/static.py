"""Provider `static`: clusters that the configuration names, each with a kubeconfig file."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from services.common.kube import kubeconfig as kc
from services.discovery.config import StaticCluster
from services.discovery.providers.base import Found, Problem, Publish, Reading, found, usable
from services.discovery.providers.watcher import FolderWatcher


class StaticProviderTask:
    """`id`, `run`: see base.Provider. The files are followed: a rotated certificate is taken over."""

    def __init__(self, ident: str, clusters: Sequence[StaticCluster], rescan: float | None = None) -> None:
        self.id = ident
        self._clusters = clusters
        self._rescan = rescan
        self._last: dict[str, Mapping[str, Any]] = {}

    async def run(self, publish: Publish) -> None:
        """Read, publish, wait for a change, again."""
        watcher = FolderWatcher(self._rescan) if self._rescan else FolderWatcher()
        folders = await asyncio.to_thread(self._folders)
        try:
            while True:
                watcher.watch(folders)
                publish(await asyncio.to_thread(self._read))
                await watcher.changed()
        finally:
            watcher.close()

    def _folders(self) -> set[Path]:
        return {Path(cluster.kubeconfig).expanduser().absolute().parent for cluster in self._clusters}

    def _read(self) -> Reading:
        clusters: list[Found] = []
        problems: list[Problem] = []
        unreadable: list[str] = []
        seen: set[str] = set()
        for cluster in self._clusters:
            path = Path(cluster.kubeconfig).expanduser().absolute()
            if cluster.name in seen:
                problems.append(Problem(str(path), f"the name {cluster.name!r} is given twice; the first is kept"))
                continue
            seen.add(cluster.name)
            problem = self._load(cluster.name, path)
            if problem:
                problems.append(Problem(str(path), problem))
                unreadable.append(str(path))
            if cluster.name in self._last:
                kubeconfig = self._last[cluster.name]
                clusters.append(found(cluster.name, kubeconfig, str(path), cluster.labels, problem))
        return Reading(tuple(clusters), tuple(problems), tuple(unreadable))

    def _load(self, name: str, path: Path) -> str:
        """Read one file; return what is wrong with it, and keep what was read before."""
        try:
            config = kc.parse(path.read_bytes())
            self._last[name] = usable(config, None, path.resolve().parent)
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        except kc.KubeconfigError as error:
            return str(error)
        return ""
