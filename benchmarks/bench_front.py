"""The front against one cluster with the same pods, on real kube-apiservers, alternating in one run.

Two members hold half of the pods each; the host's own API server (the same binary, not aggregated for pods)
holds all of them and is the reference for lists; a member itself is the reference for get and watch.
Schedulers, controllers and KWOK of the members stand still while it measures.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
from report import line, note

from deploy.local.fleet import Fleet
from services.common.errors import StatusError
from services.common.kube.client import KubeClient
from services.common.kube.resource import NAMESPACES, PODS, Resource

NAMESPACE = "bench"
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
QUIET = ("scheduler", "kwok", "controller-manager")
MERGE = {"Content-Type": "application/merge-patch+json"}
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}


def pod(number: int) -> dict[str, Any]:
    """A pod of about the usual size (4 kB with what the API server adds)."""
    env = [
        {"name": f"SETTING_{k}", "value": f"https://service-{k}.team-{number % 40}.example:8443/v1"}
        for k in range(12)
    ]
    return {
        "metadata": {
            "name": f"web-{number:06d}",
            "labels": {"app": f"web-{number % 97}", "team": f"team-{number % 40}"},
            "annotations": {"prometheus.io/scrape": "true", "bench/mark": "-"},
        },
        "spec": {"containers": [{"name": "web", "image": "registry.example/web:1", "env": env}]},
    }


async def fill(client: KubeClient, numbers: range) -> None:
    """Create the pods of a cluster, a few at a time."""
    await client.create(NAMESPACES, None, {"metadata": {"name": NAMESPACE}})
    try:
        await client.create(SERVICE_ACCOUNTS, NAMESPACE, {"metadata": {"name": "default"}})
    except StatusError as error:
        if error.reason != "AlreadyExists":
            raise
    gate = asyncio.Semaphore(24)

    async def one(number: int) -> None:
        async with gate:
            await client.create(PODS, NAMESPACE, pod(number))

    await asyncio.gather(*(one(number) for number in numbers))


async def timed(client: KubeClient, path: str, headers: dict[str, str] | None = None) -> float:
    began = time.perf_counter()
    async with client.stream("GET", path, headers=headers) as answer:
        async for _ in answer.content.iter_any():
            pass
    return time.perf_counter() - began


async def ratio(
    front: KubeClient, reference: KubeClient, path: str, runs: int, headers: dict[str, str] | None = None
) -> float:
    """Median of the front's times over the median of the reference's, in turn."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(runs + 1):
        pair = (await timed(front, path, headers), await timed(reference, path, headers))
        if number:  # the first warms up
            times[0].append(pair[0])
            times[1].append(pair[1])
    return statistics.median(times[0]) / statistics.median(times[1])


async def lists(front: KubeClient, single: KubeClient, count: int) -> None:
    base = f"/api/v1/namespaces/{NAMESPACE}/pods"
    for name, query, headers, goal in (
        ("list", "", None, 1.2),
        ("list, version 0", "?resourceVersion=0", None, 0.9),
        ("list, limit=500 page", "?limit=500", None, 1.0),
        ("list as Table", "", TABLE, 1.0),
    ):
        found = await ratio(front, single, base + query, 7, headers)
        line(f"{name} of {count} pods over 2 members / one cluster's own", found, "x", goal, at_least=False)


async def gets(front: KubeClient, member: KubeClient) -> None:
    found = await ratio(front, member, f"/api/v1/namespaces/{NAMESPACE}/pods/web-000000", 200)
    line("get of one pod / the member's own", found, "x", 1.5, at_least=False)


class Arrivals:
    """When each mark was seen on a watch."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}
        self.ready = asyncio.Event()

    async def follow(self, client: KubeClient, version: str) -> None:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods?watch=true&resourceVersion={version}"
        async with client.stream("GET", path) as answer:
            self.ready.set()
            rest = b""
            async for chunk in answer.content.iter_any():
                now = time.perf_counter()
                *frames, rest = (rest + chunk).split(b"\n")
                for frame in frames:
                    start = frame.find(b'"bench/mark":"') + 14
                    self.at[frame[start : frame.find(b'"', start)].decode()] = now


async def version(client: KubeClient) -> str:
    answer = await client.request("GET", f"/api/v1/namespaces/{NAMESPACE}/pods?limit=1")
    return str(answer.json()["metadata"]["resourceVersion"])


async def watch_latency(front: KubeClient, member: KubeClient, rate: int, seconds: int) -> None:
    """Patch one member's pods at `rate` per second; how much later than on the member does the front tell?"""
    direct, through = Arrivals(), Arrivals()
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(direct.follow(member, await version(member))),
            group.create_task(through.follow(front, await version(front))),
        ]
        await asyncio.gather(direct.ready.wait(), through.ready.wait())
        await asyncio.sleep(1)
        patches = []
        began = time.perf_counter()
        for number in range(rate * seconds):
            body = msgspec.json.encode({"metadata": {"annotations": {"bench/mark": f"m{number}"}}})
            path = f"/api/v1/namespaces/{NAMESPACE}/pods/web-{number % 100 * 2:06d}"
            patches.append(group.create_task(member.request("PATCH", path, body=body, headers=MERGE)))
            await asyncio.sleep(max(0.0, began + (number + 1) / rate - time.perf_counter()))
        await asyncio.gather(*patches)
        await asyncio.sleep(2)
        for task in tasks:
            task.cancel()
    added = sorted(1000 * (through.at[mark] - at) for mark, at in direct.at.items() if mark in through.at)
    missing = len(direct.at.keys() - through.at.keys())
    line(f"watch latency added at {rate}/s, p50", added[len(added) // 2], "ms", 5, at_least=False)
    line(f"watch latency added at {rate}/s, p99", added[int(len(added) * 0.99)], "ms", 15, at_least=False)
    line(f"events missing on the front's watch, of {len(direct.at)}", missing, "", 0, at_least=False)


def memory(fleet: Fleet) -> float:
    """Resident MiB of the aggregator."""
    process = next(one for name, one in fleet.processes.items() if name.endswith("aggregator"))
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


async def run(count: int, rate: int, seconds: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with Fleet.start(Path(directory) / "fleet", members=["east", "west"], services=True) as fleet:
            paths = [
                fleet.kubeconfig,
                fleet.host.kubeconfig,
                *(one.kubeconfig for one in fleet.members.values()),
            ]
            front, host, east, west = [await KubeClient.connect(path, name=path.stem) for path in paths]
            for name, process in fleet.processes.items():
                if name.partition("-")[0] in fleet.members and name.partition("-")[2] in QUIET:
                    await process.stop()
            began = time.perf_counter()
            await asyncio.gather(
                fill(host, range(count)), fill(east, range(0, count, 2)), fill(west, range(1, count, 2))
            )
            print(f"{count} pods in {time.perf_counter() - began:.0f} s", flush=True)
            await asyncio.sleep(3)
            note("aggregator's resident memory before", memory(fleet), "MiB")
            await lists(front, host, count)
            await gets(front, east)
            await watch_latency(front, east, rate, seconds)
            line(f"aggregator's resident memory with {count} pods", memory(fleet), "MiB", 120, at_least=False)
            for client in (front, host, east, west):
                await client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=5000)
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--seconds", type=int, default=10)
    arguments = parser.parse_args()
    asyncio.run(run(arguments.pods, arguments.rate, arguments.seconds))


if __name__ == "__main__":
    main()
