"""The reconcile protocol end to end: from the queue through gRPC to workers in another process, and back.

Method: the service runs here, over fake clusters (no Kubernetes); requests go straight into a controller's queue, and a
run ends when the last `Done` is in. Workers do nothing, or sleep: what is measured is the service and the SDK, on the
same cores. Workers of a language are one process with so many streams (Go's: examples/go/worker).

Requests a second are waiting for turns on the cores as much as work: one stream has 50 requests in flight, and each
side sleeps while the other one has them. On a busy machine they scatter by a factor of five; CPU a request does not.

Noise comes twice: 100,000 requests at once, straight into the queue; and as 100,000 objects that a member makes over the
seconds of the measurement, which the service hears of by a watch of that member (watched_members.py), as of the quiet ones'.

    python benchmarks/bench_work.py [--short]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from report import line, note

from _fastpath.fair_queue import FairQueue
from deploy import stubs
from services.common.service import GC_THRESHOLD
from services.reconciler.work.controller import Controller
from tests.integration.work_fleet import FakeFleet
from tests.integration.work_rig import Rig, rig

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "benchmarks" / "go-worker"
QUIET, CALL = 50, 0.05
UNCAPPED = 1_000_000


@dataclass(frozen=True)
class Scale:
    """How much is measured. What a short run prints are no figures to quote."""

    requests: int = 2500
    languages: tuple[str, ...] = ("Python", "Go")
    workers: tuple[int, ...] = (1, 4, 16)
    noise: int = 100_000
    seconds: float = 8.0
    noisy_seconds: float = 20.0
    """Over which a watched member makes its changes: 5,000 a second, about what one API server gives."""
    keys: int = 1_000_000


SHORT = Scale(400, ("Python",), (1,), 2000, 1.5, 1.5, 100_000)


def build_go() -> Path | None:
    """Go's workers, built inside of a copy of the examples; None, and the reason printed, where that cannot be."""
    if shutil.which("go") is None:
        print("Go's workers are left out: no go on PATH", flush=True)
        return None
    shutil.copytree(ROOT / "examples" / "go", BUILD, dirs_exist_ok=True)
    shutil.copytree(ROOT / "benchmarks" / "go_worker", BUILD / "bench-worker", dirs_exist_ok=True)
    try:
        stubs.generate("go", BUILD / "stubs", "reclock.dev/examples/stubs")
    except stubs.StubsFailed as reason:
        print(f"Go's workers are left out: {reason}", flush=True)
        return None
    command = ["go", "build", "-o", "bench-worker.bin", "./bench-worker"]
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": "-mod=readonly"}
    done = subprocess.run(command, cwd=BUILD, env=environment, capture_output=True, text=True)
    if done.returncode:
        print(f"Go's workers are left out, they do not build: {done.stderr.strip().splitlines()[-1]}", flush=True)
        return None
    return BUILD / "bench-worker.bin"


@asynccontextmanager
async def process(*command: str, **environment: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that is killed at the end."""
    child = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env={**os.environ, **environment}, limit=2**26,
    )  # fmt: skip
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()


@asynccontextmanager
async def python(it: Rig, streams: int, in_flight: int, seconds: float = 0.0) -> AsyncIterator[asyncio.subprocess.Process]:
    """Workers of the SDK."""
    script = str(Path(__file__).with_name("work_worker.py"))
    async with process(sys.executable, script, it.server.bound, str(streams), str(in_flight), str(seconds)) as child:
        yield child


async def registered(it: Rig, workers: int) -> Controller:
    """The controller, when so many workers have come and every cluster was read."""
    async with asyncio.timeout(60):
        while True:
            hub = it.work.parts.hub
            made = hub.controllers.get("bench") if hub is not None else None
            if made is not None and len(made.seats) == workers and made.parts and all(p.synced for p in made.parts.values()):
                return made
            await asyncio.sleep(0.02)


def served(controller: Controller, prefix: str = "") -> int:
    """Requests that were done; the queue's `served` are those that were handed out."""
    rows = [row for row in controller.queue.stats() if row.cluster.startswith(prefix)]
    return sum(row.served - row.processing for row in rows)


async def rate(controller: Controller, clusters: list[str], requests: int) -> float:
    """Requests per second."""
    for cluster in clusters:
        controller.steer(cluster, None, UNCAPPED, None)
    goal = served(controller) + requests
    began = time.monotonic()
    for number in range(requests):
        controller.queue.add(clusters[number % len(clusters)], f"ns{number % 10}//object-{number}")
    async with asyncio.timeout(60):
        while served(controller) < goal:  # noqa: ASYNC110 - a figure of the queue
            await asyncio.sleep(0.005)
    return requests / (time.monotonic() - began)


def cpu_of(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def throughput(scale: Scale) -> None:
    """1, 4 and 16 workers, 1 and 100 clusters, two languages."""
    requests = scale.requests
    go = build_go() if "Go" in scale.languages else None
    names = [f"c{number:03}" for number in range(100)]
    async with rig(*names, lease=30) as it:
        for language in scale.languages:
            for workers in scale.workers:
                if language == "Go" and go is None:
                    continue
                started = python(it, workers, 50) if language == "Python" else process(
                    str(go), str(workers), RECLOCK_RECONCILER=it.server.bound
                )  # fmt: skip
                async with started as child:
                    controller = await registered(it, workers)
                    await rate(controller, names, requests // 4)
                    for chosen in (names[:1], names):
                        before = time.process_time(), cpu_of(child.pid)
                        figure = await rate(controller, chosen, requests)
                        title = f"requests end to end, {language}, {workers} workers, {len(chosen)} clusters"
                        note(title, figure, "a second")
                        service, worker = time.process_time() - before[0], cpu_of(child.pid) - before[1]
                        note(f"{title}: CPU each, service / workers", service / requests * 1e6, f"/ {worker / requests * 1e6:.0f} µs")
                async with asyncio.timeout(60):
                    while controller.seats:  # noqa: ASYNC110 - another part's list
                        await asyncio.sleep(0.02)


async def waits_of(child: asyncio.subprocess.Process) -> dict[str, list[float]]:
    """What the workers saw since the last time."""
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(b"\n")
    await child.stdin.drain()
    found: dict[str, list[float]] = json.loads(await child.stdout.readline())
    return found


async def quiet_traffic(controller: Controller, seconds: float) -> None:
    """Each quiet cluster gets a request every half a second."""
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        controller.queue.add(f"quiet-{number % QUIET}", f"ns//q{number}")
        number += 1
        await asyncio.sleep(0.5 / QUIET)


def p99(values: list[float]) -> float:
    """The 99th percentile."""
    return sorted(values)[int(len(values) * 0.99)]


class Elsewhere(FakeFleet):
    """Members that other processes serve."""

    def __init__(self) -> None:
        super().__init__()
        self.ports: dict[str, int] = {}

    def kubeconfig(self, name: str) -> dict[str, Any]:
        """Access to a cluster; the host is anybody's."""
        self.port = self.ports.get(name, next(iter(self.ports.values())))
        return super().kubeconfig(name)


@asynccontextmanager
async def members(clusters: Elsewhere, *names: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process with simulated members."""
    script = str(Path(__file__).with_name("watched_members.py"))
    async with process(sys.executable, script, *names, PYTHONPATH=str(ROOT)) as child:
        assert child.stdout is not None
        clusters.ports |= dict.fromkeys(names, int(await child.stdout.readline()))
        yield child


async def come(child: asyncio.subprocess.Process, count: int, seconds: float) -> None:
    """Let so many objects come in its members."""
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(f"{count} {seconds}\n".encode())
    await child.stdin.drain()
    await child.stdout.readline()


async def watched(scale: Scale) -> None:
    """A noisy cluster beside quiet ones, all of them heard by watches; waits count from the change on."""
    quiet = [f"quiet-{number}" for number in range(QUIET)]
    clusters = Elsewhere()
    async with (
        members(clusters, *quiet) as peaceful, members(clusters, "noisy") as loud,
        rig(*quiet, "noisy", lease=30, clusters=clusters) as it, python(it, 1, 16, CALL) as child,
    ):  # fmt: skip
        controller = await registered(it, 1)
        waits = []
        for noise, seconds in ((0, 1.0), (0, scale.seconds), (scale.noise, scale.noisy_seconds)):
            loudness = asyncio.create_task(come(loud, noise, seconds))
            await come(peaceful, int(2 * seconds * QUIET), seconds)
            await asyncio.sleep(4 * CALL)
            waits.append(await waits_of(child))
            await loudness
        came = row_of(controller, "noisy").adds
    before, beside = p99(waits[1]["quiet change"]), p99(waits[2]["quiet change"])
    note("quiet clusters' changes, seen by watches, p99 until their handler without noise", before * 1000, "ms")
    title = f"quiet clusters' changes, p99 until their handler beside {scale.noise:,} changes of a watched cluster"
    line(title, beside * 1000, "ms", (before + CALL) * 1000, at_least=False)
    note("quiet clusters' changes seen meanwhile", len(waits[2]["quiet change"]), f"of {int(2 * scale.noisy_seconds * QUIET)}")
    note("noisy cluster, changes that became requests / requests done meanwhile", came, f"/ {len(waits[2].get('noisy', []))}")


async def neighbours(scale: Scale) -> None:
    """A noisy cluster, a hanging one, and one that leaves, beside quiet ones."""
    quiet = [f"quiet-{number}" for number in range(QUIET)]
    async with rig(*quiet, "noisy", "hung", lease=30) as it, python(it, 1, 16, CALL) as child:
        controller = await registered(it, 1)
        await quiet_traffic(controller, 1.0)
        await waits_of(child)
        await quiet_traffic(controller, scale.seconds)
        before = p99((await waits_of(child))["quiet"])
        for number in range(scale.noise):
            controller.queue.add("noisy", f"ns{number % 10}//n{number}")
        await quiet_traffic(controller, scale.seconds)
        found = await waits_of(child)
        note("quiet clusters, p99 wait without noise", before * 1000, "ms")
        title = f"quiet clusters, p99 wait beside {scale.noise:,} requests of one cluster"
        line(title, p99(found["quiet"]) * 1000, "ms", (before + CALL) * 1000, at_least=False)
        note("noisy cluster, requests done meanwhile", len(found["noisy"]), "requests")
        controller.queue.pause("noisy")
        await hanging(controller, scale.seconds / 2)
        await leaving(it, controller)


async def hanging(controller: Controller, seconds: float) -> None:
    """A cluster whose calls never end."""
    for number in range(1000):
        controller.queue.add("hung", f"ns//h{number}")
    already = served(controller, "quiet")
    most = 0
    traffic = asyncio.create_task(quiet_traffic(controller, seconds))
    while not traffic.done():
        await asyncio.sleep(0.05)
        most = max(most, row_of(controller, "hung").processing)
    row = row_of(controller, "hung")
    line("hanging cluster, workers that it holds of 16", most, "requests", row.cap, at_least=False)
    line("quiet clusters' requests done beside it", served(controller, "quiet") - already, "requests", 75 * seconds, at_least=True)


async def leaving(it: Rig, controller: Controller) -> None:
    """10,000 requests wait; their cluster leaves."""
    controller.queue.disengage("noisy")
    controller.queue.engage("noisy")
    before = controller.queue.__sizeof__()
    for number in range(10_000):
        controller.queue.add_after("noisy", f"ns//d{number}", 3600.0)
        controller.queue.add("noisy", f"ns//l{number}")
    full = controller.queue.__sizeof__()
    began = time.monotonic()
    await it.fleet.leave("noisy")
    while any(row.cluster == "noisy" for row in controller.queue.stats()):  # noqa: ASYNC110 - a figure
        await asyncio.sleep(0.001)
    line("member that leaves with 10,000 waiting and 10,000 delayed: gone", time.monotonic() - began, "s", 1.0, at_least=False)
    left = controller.queue.__sizeof__()
    note("the queue's own memory before / with / after them", before / 1024, f"KiB / {full / 1024:.0f} / {left / 1024:.0f}")
    line("memory that stays behind of what they took", max(0, left - before) / full, "x", 0.05, at_least=False)


def row_of(controller: Controller, cluster: str) -> Any:
    """A cluster's figures."""
    return next(row for row in controller.queue.stats() if row.cluster == cluster)


def memory(keys: int) -> None:
    """What a waiting key and an idle cluster cost, by the queue's own accounting."""
    queue = FairQueue(workers=64)
    empty = queue.__sizeof__()
    for number in range(1000):
        queue.engage(f"cluster-{number}")
    idle = queue.__sizeof__()
    note("queue, memory per idle cluster", (idle - empty) / 1000, "bytes")
    for number in range(keys):
        queue.add(f"cluster-{number % 1000}", f"namespace-{number % 1000}/deployment-{number}")
    line("queue, memory per waiting key beside its string", (queue.__sizeof__() - idle) / keys, "bytes", 70, at_least=False)


async def main() -> int:
    """All of it."""
    gc.freeze()  # as services do
    gc.set_threshold(*GC_THRESHOLD)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="seconds instead of minutes, without Go")
    scale = SHORT if parser.parse_args().short else Scale()
    await throughput(scale)
    await watched(scale)
    await neighbours(scale)
    memory(scale.keys)
    return 0


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
