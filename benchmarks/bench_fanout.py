"""Fan-out of one resource to many watchers; and what watchers of another namespace cost that resource's events.

Method: watchers over TLS in a process of their own, all on one payload feed (the objects in the form that informers of
metadata ask for, and whole); members (simulated) change many pods at once; the clock runs from the burst until every watcher
has every event. The same burst again with as many watchers of a namespace in which nothing happens: the CPU of the
aggregator per event and idle watcher.

    python benchmarks/bench_fanout.py [--short] [--watchers N] [--events N]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import cast

import uvloop
from report import line, note

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.sim_fleet import SimFleet, cpu  # noqa: E402
from deploy.local.probes import tls_context  # noqa: E402

METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
FORMS = {"whole objects": "application/json", "metadata": METADATA}
FIRST = 100
"""Changes before those that count: they open what is opened on demand."""
EVENT = b'{"type":"MODIFIED"'


class Counting(asyncio.Protocol):
    """One watch: counts its events by what each begins with."""

    def __init__(self, request: bytes) -> None:
        self._request, self._tail = request, b""
        self.events = 0
        self.open = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        cast("asyncio.WriteTransport", transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        """Count; what begins in one piece may end in the next."""
        if not self.open.done():
            assert data.startswith(b"HTTP/1.1 200"), data[:200]
            self.open.set_result(None)
        whole = self._tail + data
        self.events += whole.count(EVENT)
        self._tail = whole[-(len(EVENT) - 1) :]


async def client(port: int, authority: str, cert: str, key: str) -> None:
    """A process of watchers: {"watch": path, "accept", "count"} opens, {"until": n} answers when each has n events."""
    tls: ssl.SSLContext = tls_context(Path(authority))
    tls.load_cert_chain(cert, key)
    loop, watches = asyncio.get_running_loop(), list[Counting]()
    while told := await asyncio.to_thread(sys.stdin.readline):
        what = json.loads(told)
        if "watch" in what:
            request = f"GET {what['watch']} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: {what['accept']}\r\n\r\n".encode()
            for _ in range(what["count"]):
                _, one = await loop.create_connection(partial(Counting, request), "127.0.0.1", port, ssl=tls)
                watches.append(one)
                await one.open
        else:
            while min(one.events for one in watches) < what["until"]:  # noqa: ASYNC110 - counting must cost little
                await asyncio.sleep(0.01)
        print(json.dumps({"watches": len(watches), "events": sum(one.events for one in watches)}), flush=True)


class Clients:
    """That process."""

    def __init__(self, fleet: SimFleet) -> None:
        access = fleet.access
        arguments = [access.server.rpartition(":")[2], str(access.authority), str(access.identity.cert), str(access.identity.key)]
        self.process = subprocess.Popen(
            [sys.executable, __file__, "client", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    async def ask(self, **what: object) -> None:
        """One command, to its end."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        if not await asyncio.to_thread(self.process.stdout.readline):
            raise RuntimeError("the watchers' process has ended")

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


async def burst(fleet: SimFleet, clients: Clients, events: int, seen: int) -> tuple[float, float]:
    """(seconds, seconds of the aggregator's CPU) until every watcher has them."""
    pids = fleet.serving()
    spent, began = cpu(*pids), time.perf_counter()
    await asyncio.gather(fleet.tell(op="burst", count=events), clients.ask(until=seen + events))
    return time.perf_counter() - began, cpu(*pids) - spent


async def run(watchers: int, events: int) -> None:
    """Measure and print."""
    async with SimFleet.start(2, 1000) as fleet:
        for form, accept in FORMS.items():
            clients = Clients(fleet)
            try:
                # The front may take its time over many handshakes at once: they are made one after the other.
                await clients.ask(watch=await watch(fleet, "/api/v1/pods"), accept=accept, count=watchers)
                await burst(fleet, clients, FIRST, 0)
                took, spent = await burst(fleet, clients, events, FIRST)
            finally:
                clients.close()
            line(f"fan-out to {watchers} watchers, {form}", watchers * events / took, "deliveries/s", 150_000, at_least=True)
            note(f"the same per second of the aggregator's CPU, {form}", watchers * events / spent, "deliveries/s")
        await idle(fleet, watchers, events)


async def watch(fleet: SimFleet, path: str) -> str:
    """Path of a watch from now on."""
    answer = await fleet.front.request("GET", path, query={"limit": 1})
    return f"{path}?watch=1&resourceVersion={answer.json()['metadata']['resourceVersion']}"


async def idle(fleet: SimFleet, watchers: int, events: int) -> None:
    """What watchers of a quiet namespace cost."""
    few, many = Clients(fleet), Clients(fleet)
    try:
        await few.ask(watch=await watch(fleet, "/api/v1/pods"), accept=METADATA, count=1)
        await burst(fleet, few, events, 0)
        _, alone = await burst(fleet, few, events, events)
        await many.ask(watch=await watch(fleet, "/api/v1/namespaces/quiet/pods"), accept=METADATA, count=watchers)
        _, beside = await burst(fleet, few, events, 2 * events)
    finally:
        few.close()
        many.close()
    cost = max(0.0, beside - alone) / events / watchers * 1e6
    line("an event's cost for a watcher whose namespace it is not in", cost, "us of CPU", 0.1, at_least=False)


def main() -> None:
    """Arguments."""
    if sys.argv[1:2] == ["client"]:
        uvloop.run(client(int(sys.argv[2]), *sys.argv[3:6]))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--watchers", type=int, default=1000)
    parser.add_argument("--events", type=int, default=2000)
    given = parser.parse_args()
    if given.short:
        given.watchers, given.events = 20, 200
    uvloop.run(run(given.watchers, given.events))


if __name__ == "__main__":
    main()
