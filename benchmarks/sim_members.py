"""Members for benchmarks: simulated clusters with many pods in a process of their own, so that CPU is attributed right.

Commands come as JSON lines on standard input, each answered by one line:
    {"op": "churn", "rate": 1000, "seconds": 5}     changes pods, one member after the other; answers {"made"}
    {"op": "burst", "count": 2000}                  changes so many at once
A change puts its number where the pod's address stands (`"podIP":"e000000042"`), so that a watcher can tell it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop
import yaml

from deploy.local.manifests import documents
from deploy.local.sim.bulk import load_pods
from deploy.local.sim.cluster import Cluster
from deploy.local.sim.server import Server
from deploy.local.sim.store import State
from deploy.local.sim.world import World

ROOT = Path(__file__).resolve().parents[1]
QUIET, QUIET_PODS = "quiet", 10
"""A namespace of the first member in which nothing happens."""
MARK = b'"podIP":"'


def kubeconfig(name: str, url: str) -> str:
    """Access without TLS and users."""
    return yaml.safe_dump({
        "apiVersion": "v1", "kind": "Config", "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": url}}], "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": "u"}}],
    })  # fmt: skip


class Changes:
    """Makes changes as a kubelet would: of one member's pod after the other's, without the cost of a patch."""

    def __init__(self, members: list[Cluster], share: int) -> None:
        self._order: Iterator[Cluster] = itertools.cycle(members)
        self._share, self._number = share, 0

    def make(self, count: int) -> None:
        """So many changes now."""
        for _ in range(count):
            cluster = next(self._order)
            store, collection = cluster.core.store, cluster.core.collection(cluster.type("pods"))
            key = f"default/{cluster.name}-{self._number // 7 % self._share:06}"
            old, version = collection.live[key], store.next_revision()
            raw = old.raw.replace(b'"resourceVersion":"%d"' % old.version, b'"resourceVersion":"%d"' % version, 1)
            start = raw.index(MARK) + len(MARK)
            raw = b"%se%09d%s" % (raw[:start], self._number, raw[raw.index(b'"', start) :])
            store.put(collection, State(key, version, raw, old.labels))
            self._number += 1

    async def churn(self, rate: int, seconds: float) -> int:
        """At a rate; late ones are made up for. Returns how many."""
        began, made = time.perf_counter(), 0
        while made < rate * seconds:
            due = min(int((time.perf_counter() - began) * rate) + 1, int(rate * seconds))
            self.make(due - made)
            made = due
            await asyncio.sleep(max(0.0, began + made / rate - time.perf_counter()))
        return made


def build(world: World, count: int, pods: int) -> list[Cluster]:
    """The host with Reclock's objects, and members with their share of the pods."""
    host = world.add("host", nodes=0, role="host")
    base = ROOT / "deploy" / "kustomize" / "base"
    for crd in documents(base / "crds"):
        host.create(crd)
    world.settle()
    for obj in documents(base / "defaults"):
        host.create(obj)
    members = []
    for number in range(count):
        one = world.add(f"m{number}", nodes=1, role="none")
        load_pods(one, pods // count, prefix=one.name)
        members.append(one)
    members[0].create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": QUIET}})
    load_pods(members[0], QUIET_PODS, namespace=QUIET, prefix="quiet")
    return members


async def commands() -> asyncio.StreamReader:
    """Standard input."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def serve(count: int, pods: int, directory: Path) -> None:
    """Until standard input ends."""
    world = World(1, time.time)
    changes = Changes(build(world, count, pods), pods // count)
    gc.collect()
    gc.freeze()  # what stands still need not be looked at again and again
    server = Server(world, anonymous=True)
    async with server.serving(0):
        (directory / "clusters").mkdir()
        for name in world.clusters:
            place = directory if name == "host" else directory / "clusters"
            (place / f"{name}.kubeconfig").write_text(kubeconfig(name, server.url_of(name)))
        print(json.dumps({"url": server.url}), flush=True)
        reader = await commands()
        while line := await reader.readline():
            print(json.dumps(await answer(changes, json.loads(line))), flush=True)


async def answer(changes: Changes, told: dict[str, Any]) -> dict[str, Any]:
    """Do what was asked."""
    if told["op"] == "burst":
        changes.make(told["count"])
        return {"made": told["count"]}
    return {"made": await changes.churn(told["rate"], told["seconds"])}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("members", type=int)
    parser.add_argument("pods", type=int)
    parser.add_argument("directory", type=Path)
    given = parser.parse_args()
    uvloop.run(serve(given.members, given.pods, given.directory))
