"""Provider `kubeconfig-file`: every context of files, directories and globs."""

from __future__ import annotations

import asyncio
import glob
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.common.kube import kubeconfig as kc
from services.discovery.names import Candidate, assign
from services.discovery.providers.base import Found, Problem, Publish, Reading, found, usable
from services.discovery.providers.watcher import FolderWatcher

log = logging.getLogger(__name__)

QUIET = 1.0
"""Seconds since a file's last change after which a context that is missing in it is really gone: a writer may be
in the middle of it, and a kubeconfig that is cut off is often still YAML."""
TICK = 0.05
"""Seconds within which two writes may leave a file with the same times: file systems count in ticks."""
MAX_FILE = 4 * 1024 * 1024
IGNORED = ("~", ".swp", ".tmp", ".lock")


@dataclass(slots=True)
class FileState:
    """What was last read from one file."""

    contexts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Context -> its kubeconfig, as last read well."""
    bad: dict[str, str] = field(default_factory=dict)
    """Context -> what is wrong with it now."""
    problem: str = ""
    """What is wrong with the whole file now."""
    settling: bool = False
    """Contexts are missing, and the file was written just now: look again."""
    signature: tuple[int, ...] = ()
    """Of the file as it was read, where the same file says the same again; () where it must be read anyhow."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """What the configured paths mean now."""

    files: tuple[Path, ...]
    folders: frozenset[Path]
    """Folders to watch."""
    lost: tuple[Problem, ...]
    """Folders that cannot be listed: what was in them may still be there."""
    notes: tuple[Problem, ...]
    """Paths that name nothing."""


def expand(paths: Sequence[str]) -> Expansion:
    """Resolve files, directories and globs; hidden and editors' files are left out."""
    files: dict[Path, None] = {}
    folders: set[Path] = set()
    lost: list[Problem] = []
    notes: list[Problem] = []
    for text in paths:
        path = Path(text).expanduser().absolute()
        if glob.has_magic(text):
            folders.update(_glob_folders(path))
            listed = [p for match in sorted(glob.glob(str(path))) if _wanted(p := Path(match))]
            files.update((p, None) for p in listed)
            if not listed:
                notes.append(Problem(str(path), "matches no file"))
        elif path.is_dir():
            folders.add(path)
            try:
                files.update((p, None) for p in sorted(path.iterdir()) if _wanted(p))
            except OSError as error:
                lost.append(Problem(str(path), f"the folder cannot be read: {error.strerror}"))
        else:
            folders.add(path.parent)
            if path.exists():
                files[path] = None
            elif path.parent.is_dir() and not text.endswith("/"):
                notes.append(Problem(str(path), "does not exist"))
            else:
                lost.append(Problem(str(path), "does not exist"))
    return Expansion(tuple(files), frozenset(folders), tuple(lost), tuple(notes))


def _wanted(path: Path) -> bool:
    return not path.name.startswith(".") and not path.name.endswith(IGNORED) and path.is_file()


def _glob_folders(pattern: Path) -> set[Path]:
    """Folders whose changes may change what `pattern` matches."""
    parts = pattern.parts
    fixed = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    folders = {Path(*parts[:fixed])}
    for depth in range(fixed + 1, len(parts)):
        folders.update(p for m in glob.glob(str(Path(*parts[:depth]))) if (p := Path(m)).is_dir())
    return folders


def read_contexts(path: Path, before: FileState) -> FileState:
    """Read a file; what cannot be read now stays as it was before, with the reason."""
    try:
        stat, looked = path.stat(), time.time()
        signature = (stat.st_ino, stat.st_dev, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
        if before.signature == signature:
            return before
        if stat.st_size > MAX_FILE:
            raise kc.KubeconfigError(f"is larger than {MAX_FILE // 1024 // 1024} MiB")
        data = path.read_bytes()
        written = path.stat().st_mtime
        config = kc.parse(data, complete=bool(before.contexts))
    except OSError as error:
        return FileState(before.contexts, {}, f"cannot be read: {error.strerror}")
    except kc.KubeconfigError as error:
        return FileState(before.contexts, {}, str(error))
    state = FileState()
    for context in dict.fromkeys(kc.contexts(config)):
        try:
            state.contexts[context] = usable(config, context, path.resolve().parent)
        except kc.KubeconfigError as error:
            state.bad[context] = str(error)
            if context in before.contexts:
                state.contexts[context] = before.contexts[context]
    missing = [context for context in before.contexts if context not in kc.contexts(config)]
    if missing and abs(time.time() - written) < QUIET:
        state.settling = True
        state.contexts.update({context: before.contexts[context] for context in missing})
    if not (state.bad or state.settling or _refers(config)) and looked - stat.st_ctime > TICK:
        state.signature = signature
    return state


def _refers(config: Mapping[str, Any]) -> bool:
    """Whether a kubeconfig names other files, which change while it stays."""
    entries = [entry.get(key) for section, key in (("clusters", "cluster"), ("users", "user")) for entry in config[section]]
    return any(entry.get(name) for entry in entries if isinstance(entry, dict) for name in (*kc.FILE_KEYS, "tokenFile"))


class FileProviderTask:
    """`id`, `run`: see base.Provider. `holders()` says which source had which name before."""

    def __init__(
        self, ident: str, paths: Sequence[str], holders: Callable[[], Mapping[str, str]],
        rescan: float | None = None,
    ) -> None:  # fmt: skip
        self.id = ident
        self._paths = paths
        self._holders = holders
        self._rescan = rescan
        self._states: dict[Path, FileState] = {}

    async def run(self, publish: Publish) -> None:
        """Read, publish, wait for a change, again."""
        watcher = FolderWatcher(self._rescan) if self._rescan else FolderWatcher()
        try:
            while True:
                # Watch before reading: a change in between wakes us, rather than being missed.
                expansion = await asyncio.to_thread(expand, self._paths)
                watcher.watch(expansion.folders)
                publish(await self._read(expansion))
                settling = any(state.settling for state in self._states.values())
                await watcher.changed(QUIET if settling else None)
        finally:
            watcher.close()

    async def _read(self, expansion: Expansion) -> Reading:
        lost = [Path(problem.source) for problem in expansion.lost]
        states = await asyncio.to_thread(self._read_all, expansion.files)
        for path, state in self._states.items():
            # Files of a folder that cannot be listed may still be there.
            if path not in states and any(folder in path.parents or folder == path for folder in lost):
                states[path] = FileState(state.contexts, {}, "its folder cannot be read")
        self._states = states
        return self._reading(expansion)

    def _read_all(self, files: Sequence[Path]) -> dict[Path, FileState]:
        return {path: read_contexts(path, self._states.get(path) or FileState()) for path in files}

    def _reading(self, expansion: Expansion) -> Reading:
        candidates = [
            Candidate(str(path), context) for path, state in self._states.items() for context in state.contexts
        ]
        names, notes = assign(candidates, self._holders())
        problems = [*expansion.lost, *expansion.notes, *(Problem(c.path, message) for c, message in notes)]
        unreadable = [problem.source for problem in expansion.lost]
        for path, state in self._states.items():
            if state.problem:
                problems.append(Problem(str(path), state.problem))
                unreadable.append(f"{path}#")
            for context, message in state.bad.items():
                problems.append(Problem(str(path), f"context {context!r}: {message}"))
                unreadable.append(f"{path}#{context}")
        clusters = tuple(self._found(name, candidate) for name, candidate in names.items())
        return Reading(clusters, tuple(problems), tuple(unreadable))

    def _found(self, name: str, candidate: Candidate) -> Found:
        state = self._states[Path(candidate.path)]
        problem = state.problem or state.bad.get(candidate.context, "")
        return found(name, state.contexts[candidate.context], candidate.source, problem=problem)
