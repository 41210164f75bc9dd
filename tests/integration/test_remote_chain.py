"""A `remote` provider that dies, repeats itself, contradicts itself: a process beside the whole of Reclock on simulated clusters.

What is seen is what people see: `reclock clusters`, metrics, the stream of clusters, and the fleet through the front.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from deploy.local.api import Api
from deploy.local.engines import SIM, EtcdMissing, own_etcd
from deploy.local.fleet import Fleet
from deploy.local.ports import Ports
from reclock.discovery.v1 import discovery_pb2 as pb
from reclock.discovery.v1 import discovery_pb2_grpc
from services.common.grpc import channel
from tests.integration.test_sim_fleet import until

ROOT = Path(__file__).parents[2]
Obj = dict[str, Any]


class Chain:
    """What is told of a fleet's clusters."""

    def __init__(self, fleet: Fleet) -> None:
        assert fleet.services is not None
        self.fleet = fleet
        self._at = fleet.services.describe()["discovery"]

    async def reclock(self, *args: str) -> str:
        """A `reclock` command's output."""
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "reclock.cli", *args, "--kubeconfig", str(self.fleet.kubeconfig), cwd=ROOT,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        out, _ = await asyncio.wait_for(child.communicate(), 60)
        assert child.returncode == 0, out
        return out.decode()

    async def clusters(self) -> Obj:
        """`reclock clusters -o json`."""
        answer: Obj = json.loads(await self.reclock("clusters", "-o", "json"))
        return answer

    async def metric(self, name: str) -> float:
        """A metric of discovery."""
        async with aiohttp.ClientSession() as session, session.get(f"http://{self._at['httpAddress']}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return float(next((line.rpartition(" ")[2] for line in lines if line.startswith(name)), "nan"))

    async def streamed(self, seconds: float) -> list[pb.WatchClustersResponse]:
        """All that a new stream says in some seconds."""
        seen: list[pb.WatchClustersResponse] = []
        async with channel(self._at["grpcAddress"]) as chan:
            call = discovery_pb2_grpc.DiscoveryServiceStub(chan).WatchClusters(pb.WatchClustersRequest())
            try:
                async with asyncio.timeout(seconds):
                    while True:
                        seen.append(await call.read())
            except TimeoutError:
                call.cancel()
        return seen


def conditions(clusters: Obj, kind: str) -> dict[str, tuple[str, str, str]]:
    """Cluster -> (status, reason, since) of a condition."""
    return {
        item["metadata"]["name"]: (one["status"], one.get("reason", ""), one["lastTransitionTime"])
        for item in clusters["clusters"] for one in item["status"]["conditions"] if one["type"] == kind
    }  # fmt: skip


@asynccontextmanager
async def provider(address: str, folder: Path, how: str = "") -> AsyncIterator[asyncio.subprocess.Process]:
    """The provider's process; killed at the end, if it lives."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.integration.remote_provider", address, str(folder), how, cwd=ROOT
    )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


def all_well(clusters: Obj) -> bool:
    found = conditions(clusters, "Configured") | {f"{k}!": v for k, v in conditions(clusters, "Ready").items()}
    return len(found) == 4 and {status for status, _, _ in found.values()} == {"True"} and not clusters["problems"]


def settled(problem: str) -> Callable[[Obj], bool]:
    return lambda clusters: any(problem in one["message"] for one in clusters["problems"])


async def test_a_provider_that_dies_and_one_that_repeats_itself(tmp_path: Path) -> None:
    try:
        own_etcd()
    except EtcdMissing as missing:
        pytest.skip(str(missing))
    ports = Ports()
    address, folder = f"127.0.0.1:{ports.take()}", tmp_path / "fleet" / "members"
    fleets = Fleet.start(
        tmp_path / "fleet", members=["east", "west"], services=True, placement=False, engine=SIM,
        providers=[{"type": "remote", "address": address}],
    )  # fmt: skip
    ports.release()
    async with provider(address, folder) as first, fleets as fleet:
        chain = Chain(fleet)
        began = await until(chain.clusters, all_well)
        engaged = {one["metadata"]["name"]: one["status"]["engagedAt"] for one in began["clusters"]}
        at = datetime.now(UTC).replace(microsecond=0)
        first.kill()
        await first.wait()
        dead = await until(chain.clusters, lambda got: bool(got["problems"]))
        [problem] = dead["problems"]
        assert (problem["provider"], problem["source"]) == ("remote", address)
        assert at <= datetime.fromisoformat(problem["since"]) <= datetime.now(UTC)
        dead = await until(
            chain.clusters, lambda got: {c[:2] for c in conditions(got, "Configured").values()} == {("False", "SourceUnreadable")}
        )
        assert {status for status, _, _ in conditions(dead, "Ready").values()} == {"True"}, "the last good clusters stay"
        assert all(at <= datetime.fromisoformat(since) for _, _, since in conditions(dead, "Configured").values())
        table = await chain.reclock("clusters")
        assert f"remote: {address}: " in table and "(since " in table and "SourceUnreadable: " in table
        assert await chain.metric('reclock_discovery_source_problems{provider="remote"}') == 1
        since = await chain.metric('reclock_discovery_source_problems_since_seconds{provider="remote"}')
        assert at.timestamp() <= since <= datetime.now(UTC).timestamp()
        told = {event.cluster.name: event.cluster for event in await chain.streamed(1.0) if event.cluster.name}
        for cluster in (told["east"], told["west"]):
            [one] = [c for c in cluster.conditions if c.type == "Configured"]
            assert (one.status, one.reason) == ("False", "SourceUnreadable")
            assert one.last_transition.ToDatetime(UTC) >= at
        assert fleet.services is not None
        front = Api(fleet.services.front_access())
        nodes = await front.request("GET", "/api/v1/nodes")
        assert {node["metadata"]["name"].partition("-")[0] for node in nodes["items"]} == {"east", "west"}

        async with provider(address, folder, "repeats"):
            await until(chain.clusters, all_well)
            kinds = pb.WatchClustersResponse
            heard = await chain.streamed(2.0)
            assert sum(event.type == kinds.EVENT_TYPE_ENGAGED for event in heard) == 2, "the snapshot's, and no more"
            assert not [event for event in heard if event.type == kinds.EVENT_TYPE_DISENGAGED]
            assert await chain.metric('reclock_discovery_engaged_total{provider="remote"}') == 2
        async with provider(address, folder, "contradicts"):
            said = await until(chain.clusters, settled("is sent twice in one set, and differs; the first is kept"))
            assert conditions(said, "Configured")["east"][0] == "True"
            assert conditions(said, "Configured")["west"][:2] == ("False", "SourceUnreadable")
            assert {one["metadata"]["name"]: one["status"]["engagedAt"] for one in said["clusters"]} == engaged
