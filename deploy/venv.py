"""Makes this checkout's virtual environment: `python -m deploy.venv DIRECTORY`, which `make` calls.

Runs on a bare Python: standard library only. Says what it does all the while, and shows pip's words when it fails.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

MINIMUM = (3, 11)
_LINES = 40
"""Of pip's output, shown when it fails."""
_STEPS = (
    (re.compile(r"^Collecting (\S+)"), "fetching {}"),
    (re.compile(r"Cythonizing (\S+)"), "translating {}"),
    (re.compile(r"building '(\S+)' extension"), "compiling {}"),
    (re.compile(r"^Installing collected packages"), "installing packages"),
)
_BUILDERS = ("setuptools", "wheel", "cython", "grpcio-tools", "mypy-protobuf")


class Progress:
    """One line that is rewritten each second; where there is no terminal, a line now and then."""

    def __init__(self, what: str, period: float = 10.0) -> None:
        self.step = what
        self._terminal = sys.stdout.isatty()
        self._period = 1.0 if self._terminal else period
        self._began = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="progress", daemon=True)

    def __enter__(self) -> Progress:
        self._show()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        if self._terminal:
            self._show()
            print(flush=True)

    def _tick(self) -> None:
        while not self._done.wait(self._period):
            self._show()

    def _show(self) -> None:
        line = f"[venv] {self.step} … {time.monotonic() - self._began:.0f} s"
        print(f"\r\033[K{line}" if self._terminal else line, end="" if self._terminal else "\n", flush=True)


def run(what: str, command: list[str]) -> None:
    """Runs it to its end; SystemExit with the end of its output when it fails."""
    tail: deque[str] = deque(maxlen=_LINES)
    with (
        Progress(what) as progress,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as child,
    ):
        assert child.stdout is not None
        for line in child.stdout:
            tail.append(line.rstrip())
            progress.step = step(line) or progress.step
    if child.returncode != 0:
        raise SystemExit("\n".join([*tail, f"[venv] {what}: failed with {child.returncode} (above)"]))


def step(line: str) -> str:
    """What a line of pip's output says that it does now; empty when it says nothing of it."""
    for pattern, text in _STEPS:
        if found := pattern.search(line):
            return text.format(*found.groups())
    return ""


def make(directory: Path, extras: str) -> None:
    """A virtual environment there, with this checkout installed in place."""
    python = directory / "bin" / "python"
    if not python.exists():
        run(f"making {directory}", [sys.executable, "-m", "venv", str(directory)])
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar=off", "-c", "constraints.txt"]
    run("installing what builds Reclock", [*pip, *_BUILDERS])
    run("installing Reclock and what it needs (minutes, once)", [*pip, "-v", "--no-build-isolation", "-e", f".[{extras}]"])


def main(argv: list[str]) -> int:
    """Exit code 1 on a Python that is too old."""
    if sys.version_info < MINIMUM:
        found = ".".join(map(str, sys.version_info[:2]))
        print(f"Python >= 3.11 is needed and this is {found}: make PYTHON=/path/to/python3.11 …", file=sys.stderr)
        return 1
    make(Path(argv[0]), argv[1])
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
