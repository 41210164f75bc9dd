"""Fair queue: ns of one add + get + done from Python at a constant backlog, against a plain FIFO.

Method: an idle key is added, the next item is taken and finished and becomes the idle key that is added
again much later, so records, table slots and strings are cold as in real use (two lists, as Go has an array of
structs: a tuple for each would be another cold object that is none of the queue's). The fair queue and a FIFO on
the same records (`plain_fifo.pyx`, compiled here) are alive at once and take turns, chunk by chunk; medians.
Clock and charging are on in both; times are CPU time. Keys "namespace-NNN/deployment-NNNNNNN", 1,000 namespaces, shuffled.

    python benchmarks/bench_queue.py [--short]

Where Go is found, client-go's work queue and controller-runtime's priority queue do the same cycles on the same keys
just before (of Go's wall and CPU time the lesser counts: see go_queue.py).
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import go_queue
from report import line, note

from _fastpath.fair_queue import FairQueue

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "benchmarks"
SETUP = """
from Cython.Build import cythonize
from setuptools import Extension, setup
setup(script_args=["-q", "build_ext", "--build-lib", {lib!r}, "--build-temp", {lib!r}], ext_modules=cythonize(
    [Extension("plain_fifo", ["benchmarks/plain_fifo.pyx"], include_dirs=["_fastpath"],
               extra_compile_args=["-O3", "-w"])],
    build_dir={lib!r}, include_path=["_fastpath"], quiet=True,
    compiler_directives={{"language_level": 3, "boundscheck": False, "wraparound": False, "cdivision": True}}))
"""


def plain_fifo() -> Any:
    """The FIFO's class, built when it is missing or older than its sources."""
    code = SETUP.format(lib=str(BUILD))
    subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        check=True,
        capture_output=True,
        env={**os.environ, "CFLAGS": "-w"},
    )
    sys.path.insert(0, str(BUILD))
    import plain_fifo

    return plain_fifo.Fifo


class Load:
    """One queue at a constant backlog."""

    def __init__(self, queue: Any, keys: list[tuple[str, str]], waiting: int) -> None:
        self.queue, self.at = queue, 0
        self.clusters = [cluster for cluster, _ in keys[waiting:]]
        self.keys = [key for _, key in keys[waiting:]]
        for cluster, key in keys[:waiting]:
            queue.add(cluster, key)

    def run(self, cycles: int) -> float:
        """Nanoseconds of CPU per cycle: a busy machine disturbs those less than the clock on the wall."""
        add, get, done, clusters, keys = self.queue.add, self.queue.get_nowait, self.queue.done, self.clusters, self.keys
        left, spent = cycles, 0.0
        while left:
            end = min(self.at + left, len(keys))
            began = time.thread_time()
            for at in range(self.at, end):
                add(clusters[at], keys[at])
                item = get()
                clusters[at], keys[at] = item.cluster, item.key
                done(item)
            spent += time.thread_time() - began
            left -= end - self.at
            self.at = end % len(keys)
        return spent / cycles * 1e9


def shape(clusters: int, waiting: int, spare: int) -> list[tuple[str, str]]:
    rng = random.Random(1)
    names = [f"cluster-{i:05}" for i in range(clusters)]
    keys = [
        (rng.choice(names), f"namespace-{rng.randrange(1000):03}/deployment-{i:07}")
        for i in range(waiting + spare)
    ]
    rng.shuffle(keys)
    return keys


def measure(fifo: Any, keys: list[tuple[str, str]], waiting: int, rounds: int) -> tuple[float, float, float]:
    """(fair ns, plain ns, the fair queue's own bytes per waiting key)."""
    fair, plain = FairQueue(workers=64), fifo()
    for cluster in sorted({c for c, _ in keys}):
        fair.engage(cluster)
        plain.engage(cluster)
    loads = [Load(fair, keys, waiting), Load(plain, list(keys), waiting)]
    size = fair.__sizeof__() / waiting
    gc.collect()
    gc.freeze()  # the million keys of the load are not the queue's garbage
    cycles = max(2000, min(50_000, len(keys) - waiting))
    times: list[list[float]] = [[], []]
    for load in loads:
        load.run(cycles)
    for _ in range(rounds):
        for load, spent in zip(loads, times, strict=True):
            spent.append(load.run(cycles))
    gc.unfreeze()
    return statistics.median(times[0]), statistics.median(times[1]), size


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--short", action="store_true", help="two shapes, once, Go's left out")
    short = parser.parse_args().short
    fifo = plain_fifo()
    binary = None if short else go_queue.build()
    shapes = [
        ("hot", 100, 500, 500, None, None),
        ("10k", 1, 10_000, 90_000, None, None),
        ("10k", 100, 10_000, 90_000, 600.0, None),
        ("10k", 10_000, 10_000, 90_000, None, None),
    ]
    if short:
        shapes = [shapes[0], shapes[2]]
    else:
        shapes += [
            ("1M", 100, 1_000_000, 100_000, 1000.0, 70.0),
            ("1M", 10_000, 1_000_000, 100_000, None, None),
        ]
    for name, clusters, waiting, spare, goal, room in shapes:
        keys = shape(clusters, waiting, spare)
        rounds = 1 if short else 9
        theirs = go_queue.run(binary, keys, waiting, rounds) if binary is not None else {}
        fair, plain, size = measure(fifo, keys, waiting, rounds)
        title = f"queue cycle, {clusters} clusters, {name} waiting"
        if goal is None:
            note(title, fair, "ns")
        else:
            line(title, fair, "ns", goal, at_least=False)
        against = f"{title}, against a plain FIFO of {plain:.0f} ns"
        if clusters == 100:
            line(against, fair / plain, "x", 1.5, at_least=False)
        else:
            note(against, fair / plain, "x")
        for other, ratio in (("client-go", 1.0), ("controller-runtime", 1 / 3)):
            if other in theirs:
                line(f"{title}, against {other}'s {theirs[other]:.0f} ns", fair / theirs[other], "x", ratio,
                     at_least=False)  # fmt: skip
        if room is not None:
            line(f"{title}, memory per key beside its string", size, "bytes", room, at_least=False)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
