"""Files that hold credentials: readable by their owner only, written as a whole or not at all."""

from __future__ import annotations

import os
import threading
from pathlib import Path

_WRITING = threading.Lock()
"""A write whose awaiting task was cancelled goes on in its thread; the next one must not share its new file."""


def write_private(path: Path, data: bytes) -> None:
    """Write the file (mode 0600), durably; one process may write it. OSError where it cannot be written."""
    with _WRITING:
        _write(path, data)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
