"""Builds the examples of a language with what is on this machine; outside of the tree, kept from run to run."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy import stubs
from deploy.local.gotool import go_version
from deploy.local.paths import cache_root

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


class Missing(Exception):
    """Why a language cannot be tried here, in one line."""


@dataclass(frozen=True)
class Programs:
    """Commands of a language's examples."""

    logger: Sequence[str]
    copier: Sequence[str]
    provider: Sequence[str] = ()


def python() -> Programs:
    """Needs nothing."""
    folder = EXAMPLES / "python"
    return Programs(
        [sys.executable, str(folder / "configmap_logger.py")], [sys.executable, str(folder / "configmap_copier.py")]
    )


def go() -> Programs:
    """Go 1.24 or newer."""
    version = go_version("go")
    if version is None or version < (1, 24):
        raise Missing("no Go >= 1.24 on PATH")

    def build(folder: Path) -> None:
        stubs.generate("go", folder / "stubs", "reclock.dev/examples/stubs")
        environment = {"CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": "-mod=readonly"}
        # As the local fleet is built: what both use comes out of Go's cache then.
        _run(["go", "build", "-p", "2", "-trimpath", "-ldflags", "-s -w", "-o", "bin/", "./..."], folder, environment)

    binaries = _built("go", build) / "bin"
    return Programs(
        [str(binaries / "configmap-logger")], [str(binaries / "configmap-copier")], [str(binaries / "remote-provider")]
    )


def typescript() -> Programs:
    """Node.js 18 or newer, and npm."""
    node = _version(["node", "--version"])
    if node < 18 or shutil.which("npm") is None:
        raise Missing("no Node.js >= 18 with npm on PATH")

    def build(folder: Path) -> None:
        stubs.generate("ts", folder / "src" / "stubs")
        _run(["npm", "install", "--no-audit", "--no-fund"], folder)
        _run(["npm", "run", "build"], folder)

    programs = _built("typescript", build) / "dist"
    return Programs(["node", str(programs / "configmap-logger.js")], ["node", str(programs / "configmap-copier.js")])


def java() -> Programs:
    """JDK 17 or newer, and Maven."""
    if _version(["javac", "-version"]) < 17 or shutil.which("mvn") is None:
        raise Missing("no JDK >= 17 with Maven on PATH")

    def build(folder: Path) -> None:
        stubs.generate("java", folder / "stubs")
        _run(["mvn", "-q", "-B", "process-classes"], folder)

    target = _built("java", build) / "target"
    command = ["java", "-cp", f"{target / 'classes'}:{target / 'lib'}/*"]
    return Programs(
        [*command, "dev.reclock.examples.ConfigMapLogger"], [*command, "dev.reclock.examples.ConfigMapCopier"]
    )


LANGUAGES: dict[str, Callable[[], Programs]] = {"python": python, "go": go, "typescript": typescript, "java": java}


def _version(command: list[str]) -> int:
    """The major version that a program prints; 0 when it is not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except OSError:
        return 0
    digits = "".join(one if one.isdigit() else " " for one in done.stdout + done.stderr).split()
    return int(digits[0]) if digits else 0


def _built(language: str, build: Callable[[Path], None]) -> Path:
    """The folder in which a language's examples were built from these sources; built when there is none."""
    sources = [path for path in sorted((EXAMPLES / language).rglob("*")) if path.is_file() and not _ignored(path)]
    digest = hashlib.sha256()
    for path in [*sources, *sorted(stubs.PROTO.rglob("*.proto")), Path(stubs.__file__)]:
        digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    home = cache_root() / "languages"
    done = home / f"{language}-{digest.hexdigest()[:16]}"
    if done.exists():
        return done
    for old in home.glob(f"{language}-*"):
        shutil.rmtree(old)
    fresh = home / f".{language}-{os.getpid()}"
    for path in sources:
        target = fresh / path.relative_to(EXAMPLES / language)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    try:
        build(fresh)
        fresh.rename(done)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return done


def _ignored(path: Path) -> bool:
    """What somebody has built in the tree."""
    return bool({"stubs", "node_modules", "dist", "target", "bin"} & set(path.parts))


def _run(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **(environment or {})}, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
