"""Builds and runs `go/`: the queues of Go's controllers on the keys of bench_queue.py."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from deploy.local.gotool import GoMissing, find_go
from deploy.local.paths import cache_dir

ROOT = Path(__file__).resolve().parents[1]
BINARY = ROOT / "build" / "benchmarks" / "go-queue"


def build() -> Path | None:
    """The program, built from Go modules (a minute when they are not cached); None, and the reason printed, without Go."""
    try:
        go = find_go(cache_dir(), print)
    except GoMissing as reason:
        print(f"Go's queues are left out: {reason}", flush=True)
        return None
    print("building client-go's and controller-runtime's queues …", flush=True)
    done = subprocess.run(
        [go, "build", "-o", str(BINARY), "."], cwd=Path(__file__).parent / "go", capture_output=True, text=True
    )
    if done.returncode:
        print(f"Go's queues are left out, they do not build: {done.stderr.strip().splitlines()[-1]}", flush=True)
        return None
    return BINARY


def run(binary: Path, keys: list[tuple[str, str]], waiting: int, rounds: int) -> dict[str, float]:
    """Nanoseconds per cycle, by queue: of CPU or of wall time, whichever is less. The first counts the collector, which
    works on another core, the second what a busy machine does meanwhile."""
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as file:
        file.writelines(f"{cluster} {key}\n" for cluster, key in keys)
        file.flush()
        command = [str(binary), "-keys", file.name, "-waiting", str(waiting), "-rounds", str(rounds)]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: min(float(wall), float(cpu)) for name, wall, cpu in (row.split() for row in out.splitlines())}
