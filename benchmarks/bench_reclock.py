"""Reclocking: events per second from queues into a real etcd and the log, with etcd on the same cores.

Method: eight clusters' queues are kept full with changes of 10,000 objects; batches of up to 128 operations, one
transaction at a time, as in service. Events are made beforehand, as feeds would hand them over. Run:
python benchmarks/bench_reclock.py [--short] [SECONDS]
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import uvloop
from report import line, note

from _fastpath.marker import Marker
from services.aggregator.clock import history
from services.aggregator.clock.election import LeaseKeeper, campaign
from services.aggregator.clock.sequencer import Sequencer
from services.aggregator.clock.store import Store
from services.aggregator.clock.work import DiffRun
from services.common.etcd import Etcd
from tests.integration.etcd_server import EtcdServer, find_etcd

CLUSTERS, OBJECTS, DEPTH = 8, 10_000, 512


def events(cluster: str, life: str) -> Iterator[Marker]:
    """Changes of the cluster's objects, in turn, for ever."""
    labels = {"app": "web", "pod-template-hash": "7c9d8f5b6"}
    version = 100
    share = OBJECTS // CLUSTERS
    while True:
        for number in range(share):
            version += 1
            yield Marker(
                cluster, life, "default", f"web-7c9d8f5b6-{number:05d}",
                f"00000000-0000-4000-8000-{number:012d}", version, labels,
            )  # fmt: skip


async def measure(seconds: float) -> None:
    """Run for a while and print the rate."""
    binary = find_etcd()
    if binary is None:
        print("bench_reclock: no etcd binary: run `make kube`")
        return
    with tempfile.TemporaryDirectory(prefix="reclock-bench-") as directory:
        server = EtcdServer(binary, Path(directory) / "etcd")
        await server.start()
        try:
            await _run(server, seconds)
        finally:
            server.kill()


async def _run(server: EtcdServer, seconds: float) -> None:
    etcd = Etcd.connect([server.endpoint])
    store = Store(etcd, "/reclock/v1/", "bench")
    await store.open()
    leases = LeaseKeeper(store, 600)
    term = await campaign(store, "", "pods", leases, "bench", vacancy=_nobody, known=lambda: 0)
    state = await history.load(store, "", "pods", 2_000_000)
    state.pass_revision(term)  # nothing was committed before
    sequencer = Sequencer(store, "", "pods", state=state, term=term, committed=lambda change, shown: None)
    feeds = []
    for number in range(CLUSTERS):
        cluster, life = f"cluster-{number}", f"00000000-0000-4000-8000-{number:012d}/0"
        sequencer.put_nowait(cluster, DiffRun(cluster, 100, life, []))
        feeds.append(asyncio.create_task(_feed(sequencer, cluster, life)))
    work = asyncio.create_task(sequencer.run())
    await asyncio.sleep(1)
    loop = asyncio.get_running_loop()
    begin, entries, revision = loop.time(), len(state.log), state.revision
    await asyncio.sleep(seconds)
    took = loop.time() - begin
    rate, commits = (len(state.log) - entries) / took, (state.revision - revision) / took
    for task in (*feeds, work):
        task.cancel()
    await asyncio.gather(*feeds, work, return_exceptions=True)
    await etcd.close()
    line("reclocking, real etcd", rate, "events/s", 15_000, at_least=True)
    note("transactions", commits, "1/s")


async def _nobody(seconds: float) -> bool:
    raise AssertionError("nobody else leads in an etcd of its own")


async def _feed(sequencer: Sequencer, cluster: str, life: str) -> None:
    source = events(cluster, life)
    while True:
        for _ in range(64):
            sequencer.put_nowait(cluster, next(source))
        while sequencer.waiting > DEPTH * CLUSTERS:
            await sequencer.settled.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("seconds", type=float, nargs="?", default=10)
    given = parser.parse_args()
    uvloop.run(measure(1 if given.short else given.seconds))
