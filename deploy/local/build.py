"""Builds the Kubernetes binaries of the local fleet: `python -m deploy.local.build`.

Runs on a bare Python >= 3.11, before any virtual environment exists: standard library only. What is built and
current is skipped; each binary appears in the cache whole (built aside, then renamed); a second builder waits
for the first. GOPROXY and the rest of Go's environment are the caller's.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from deploy.local.binaries import lookup
from deploy.local.changes import ChangesFailed, apply_changes
from deploy.local.gotool import GoMissing, find_go
from deploy.local.paths import KUBERNETES_VERSION, bin_dir, cache_dir
from deploy.local.recipes import RECIPES, Recipe

_TICK_SECONDS = 10.0
_MANIFEST = "recipes.json"


class BuildFailed(Exception):
    """A compiler that failed; the message ends with its last lines."""


def say(text: str) -> None:
    print(f"[kube] {text}", flush=True)


def built_digests(directory: Path) -> dict[str, str]:
    """Which recipe each binary of `directory` was made with; empty when nothing was recorded."""
    try:
        recorded = json.loads((directory / _MANIFEST).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return {str(name): str(digest) for name, digest in recorded.items()}


def missing(directory: Path) -> list[Recipe]:
    """The recipes whose binary is absent or was made by another recipe, and which no other place offers."""
    digests = built_digests(directory)
    stale = [
        recipe
        for recipe in RECIPES
        if digests.get(recipe.binary) != recipe.digest() or not os.access(directory / recipe.binary, os.X_OK)
    ]
    found = {recipe.binary: lookup(recipe.binary) for recipe in stale}
    return [recipe for recipe in stale if (path := found[recipe.binary]) is None or _is_in(path, directory)]


def _is_in(path: Path, directory: Path) -> bool:
    return path.parent == directory.resolve()


@contextlib.contextmanager
def one_builder(directory: Path) -> Iterator[None]:
    """Holds the build lock of `directory`; says so when another builder has it."""
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "build.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            began = time.monotonic()
            say("another build is running: waiting for it")
            with ticking("waiting for the other build", began):
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def ticking(what: str, began: float) -> Iterator[None]:
    """Prints `what` and the time it has taken, every ten seconds, until the block ends."""
    done = threading.Event()

    def tick() -> None:
        while not done.wait(_TICK_SECONDS):
            say(f"{what} … {time.monotonic() - began:.0f} s")

    thread = threading.Thread(target=tick, name="build-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def compile_one(go: str, recipe: Recipe, scratch: Path, output: Path) -> None:
    """Compiles one binary to `output` in a copy of its module, so that the checkout is never written to."""
    module = scratch / recipe.module
    module.mkdir(exist_ok=True)
    for name in ("go.mod", "go.sum"):
        shutil.copyfile(recipe.directory / name, module / name)
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "GO111MODULE": "on"}
    command = [go, "build", "-mod=readonly", "-trimpath", "-ldflags", recipe.ldflags, "-o", str(output)]
    if recipe.changed:
        apply_changes(go, recipe.changed, recipe.changes, workdir=module, environment=environment)
    log = scratch / f"{recipe.binary}.log"
    with open(log, "wb") as sink:
        process = subprocess.Popen(
            [*command, recipe.package],
            cwd=module,
            env=environment,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait()
        except BaseException:
            # The compiler runs children of its own: they go with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    if code != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise BuildFailed(f"'go build {recipe.package}' ended with {code}:\n{tail}")


def install(recipe: Recipe, built: Path, directory: Path) -> None:
    """Moves a finished binary into place and records the recipe it came from."""
    digests = built_digests(directory)
    os.replace(built, directory / recipe.binary)
    digests[recipe.binary] = recipe.digest()
    manifest = directory / f".{_MANIFEST}.new"
    manifest.write_text(json.dumps(digests, indent=1, sort_keys=True) + "\n")
    os.replace(manifest, directory / _MANIFEST)


def build() -> Path:
    """Builds what is missing and returns the directory of the binaries."""
    target = bin_dir()
    if not missing(target):
        places = sorted({str(path.parent) for recipe in RECIPES if (path := lookup(recipe.binary))})
        say(f"Kubernetes {KUBERNETES_VERSION}, etcd and KWOK are there: {', '.join(places)}")
        return target
    target.mkdir(parents=True, exist_ok=True)
    with one_builder(cache_dir()):
        wanted = missing(target)  # again: the other builder may have done it all
        if not wanted:
            return target
        with ticking("looking for Go", time.monotonic()):
            go = find_go(cache_dir(), say)
        say(
            f"building {', '.join(recipe.binary for recipe in wanted)} with {go} (once; minutes, 3 GB of Go cache)"
        )
        began = time.monotonic()
        for stale in cache_dir().glob(".build-*"):  # a killed builder's; nobody else is building
            shutil.rmtree(stale, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=cache_dir(), prefix=".build-") as scratch:
            for number, recipe in enumerate(wanted, 1):
                started = time.monotonic()
                label = f"({number}/{len(wanted)}) {recipe.binary}"
                say(f"{label} …")
                output = Path(scratch) / f"{recipe.binary}.bin"
                with ticking(label, started):
                    compile_one(go, recipe, Path(scratch), output)
                install(recipe, output, target)
                say(f"{label} done in {time.monotonic() - started:.0f} s")
        say(f"all built in {time.monotonic() - began:.0f} s: {target}")
    return target


def _stop(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def main(argv: list[str] | None = None) -> int:
    """Command line; exit codes: 0 built, 1 failed, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="python -m deploy.local.build", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="build nothing: exit 1 when something is missing"
    )
    arguments = parser.parse_args(argv)
    if arguments.check:
        absent = [recipe.binary for recipe in missing(bin_dir())]
        say(f"missing in {bin_dir()}: {', '.join(absent)}" if absent else f"all there: {bin_dir()}")
        return 1 if absent else 0
    signal.signal(signal.SIGTERM, _stop)
    try:
        build()
    except (GoMissing, BuildFailed, ChangesFailed) as error:
        print(f"[kube] {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("[kube] interrupted: what was finished is kept", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
