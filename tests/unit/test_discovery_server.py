"""The stream and the other RPCs over a real gRPC server, with the client that the other services use."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from kube_fake import KubeFake, eventually, kubeconfig

from reclock.discovery.v1 import discovery_pb2 as pb
from reclock.discovery.v1 import discovery_pb2_grpc
from services.common.fleet import FleetWatcher, Member
from services.common.grpc import GrpcServer, channel
from services.common.kube.resource import PODS
from services.discovery import server as server_module
from services.discovery.hub import Hub
from services.discovery.probe import ProbeResult
from services.discovery.providers.base import Found, Reading, found
from services.discovery.registrations import ID, Registrations
from services.discovery.registry import Registry
from services.discovery.server import NAME, DiscoveryServicer
from services.discovery.state import State

GOOD = ProbeResult(True, True, "ReadyzOk", "", "v1.34.4", "uid", 1500)
Kind = pb.WatchClustersResponse.EventType


def cluster(name: str, config: dict[str, Any] | None = None) -> Found:
    return found(name, config or kubeconfig(name, {"server": f"https://{name}:1"}), f"/k#{name}")


class Discovery:
    """Registry and server, without probes and files."""

    def __init__(self, port: int = 0) -> None:
        self.registry = Registry(Hub(), ["files", ID])
        self.registrations = Registrations(None, State(), self.save)
        self.durable = True
        self.grpc = GrpcServer(f"127.0.0.1:{port}")
        servicer = DiscoveryServicer(self.registry, self.registrations)
        self.grpc.add(discovery_pb2_grpc.add_DiscoveryServiceServicer_to_server, servicer, NAME)
        self._task: asyncio.Task[None] | None = None

    async def save(self) -> bool:
        return self.durable

    async def start(self) -> None:
        await self.grpc.start()
        run = self.registrations.run(lambda reading: self.registry.reading(ID, reading))
        self._task = asyncio.create_task(run)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        await self.grpc.stop(0)

    def read(self, *clusters: Found) -> None:
        self.registry.reading("files", Reading(clusters))


@asynccontextmanager
async def discovery() -> AsyncIterator[tuple[Discovery, Any]]:
    running = Discovery()
    await running.start()
    async with channel(running.grpc.bound) as chan:
        yield running, discovery_pb2_grpc.DiscoveryServiceStub(chan)
    await running.stop()


async def take(call: Any, count: int) -> list[tuple[int, str]]:
    events = [await asyncio.wait_for(call.read(), 5) for _ in range(count)]
    return [(event.type, event.cluster.name) for event in events]


async def test_snapshot_mark_then_changes_then_resume() -> None:
    async with discovery() as (running, stub):
        running.read(cluster("east"), cluster("west"))
        call = stub.WatchClusters(pb.WatchClustersRequest(with_access=True))
        events = [await asyncio.wait_for(call.read(), 5) for _ in range(3)]
        assert [(e.type, e.cluster.name) for e in events] == [
            (Kind.EVENT_TYPE_ENGAGED, "east"), (Kind.EVENT_TYPE_ENGAGED, "west"), (Kind.EVENT_TYPE_SYNCED, ""),
        ]  # fmt: skip
        assert events[0].cluster.access.digest
        assert not events[2].resumed
        running.read(cluster("east"), cluster("north"))
        assert await take(call, 2) == [(Kind.EVENT_TYPE_DISENGAGED, "west"), (Kind.EVENT_TYPE_ENGAGED, "north")]
        call.cancel()
        call = stub.WatchClusters(pb.WatchClustersRequest(resume_version=events[2].version))
        resumed = [await asyncio.wait_for(call.read(), 5) for _ in range(3)]
        assert [(e.type, e.cluster.name) for e in resumed] == [
            (Kind.EVENT_TYPE_DISENGAGED, "west"), (Kind.EVENT_TYPE_ENGAGED, "north"), (Kind.EVENT_TYPE_SYNCED, ""),
        ]  # fmt: skip
        assert resumed[2].resumed
        assert not resumed[1].cluster.HasField("access")
        call.cancel()
        for foreign in (5, events[2].version + 10**9):
            call = stub.WatchClusters(pb.WatchClustersRequest(resume_version=foreign))
            answer = [await asyncio.wait_for(call.read(), 5) for _ in range(3)]
            assert not answer[2].resumed
            call.cancel()


async def test_no_mark_before_all_providers_have_read() -> None:
    async with discovery() as (running, stub):
        call = stub.WatchClusters(pb.WatchClustersRequest())
        read = asyncio.ensure_future(call.read())
        await asyncio.sleep(0.1)
        assert not read.done()
        running.read(cluster("east"))
        first = await asyncio.wait_for(read, 40)
        assert first.cluster.name == "east"
        assert await take(call, 1) == [(Kind.EVENT_TYPE_SYNCED, "")]
        call.cancel()


async def test_an_idle_stream_shows_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "HEARTBEAT", 0.05)
    async with discovery() as (running, stub):
        running.read()
        call = stub.WatchClusters(pb.WatchClustersRequest())
        assert await take(call, 3) == [(Kind.EVENT_TYPE_SYNCED, "")] * 3
        call.cancel()


async def test_access_is_refused_to_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "may_have_access", lambda context, allowed: False)
    async with discovery() as (running, stub):
        running.read(cluster("east"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.WatchClusters(pb.WatchClustersRequest(with_access=True)).read()
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        call = stub.WatchClusters(pb.WatchClustersRequest())
        assert not (await call.read()).cluster.HasField("access")
        call.cancel()


async def expect(code: grpc.StatusCode, call: Any, text: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is code
    assert text in str(caught.value.details())


async def test_register_and_deregister() -> None:
    async with discovery() as (running, stub):
        running.read(cluster("east"))
        good = msgspec.json.encode(kubeconfig("x", {"server": "https://north:1"}, {"token": "t"}))

        def register(name: str, data: bytes) -> Any:
            return stub.RegisterCluster(pb.RegisterClusterRequest(name=name, kubeconfig=data, labels={"a": "b"}))

        answer = (await register("north", good)).cluster
        assert (answer.name, answer.server, dict(answer.labels)) == ("north", "https://north:1", {"a": "b"})
        listed = await stub.ListClusters(pb.ListClustersRequest())
        assert [c.name for c in listed.clusters] == ["east", "north"]
        assert (await stub.GetCluster(pb.GetClusterRequest(name="north"))).cluster.source == "registered"
        running.durable = False
        await expect(grpc.StatusCode.UNAVAILABLE, register("south", good), "stateFile")
        assert "south" not in running.registrations.known
        running.durable = True
        await expect(grpc.StatusCode.ALREADY_EXISTS, register("east", good), "belongs to files")
        await expect(grpc.StatusCode.INVALID_ARGUMENT, register("No_Label", good), "DNS label")
        await expect(grpc.StatusCode.INVALID_ARGUMENT, register("host", good), "stands for the host")
        odd = pb.RegisterClusterRequest(name="south", kubeconfig=good, labels={"a b": "c"})
        await expect(grpc.StatusCode.INVALID_ARGUMENT, stub.RegisterCluster(odd), "'a b=c' is none that Kubernetes allows")
        for bad, text in (
            (b"", "empty"), (b"a: [", "no YAML"), (b"x" * (2 << 20), "1 MiB"),
            (msgspec.json.encode(kubeconfig("x", {"server": "https://n"}, {"exec": {"command": "rm"}})), "exec"),
            (msgspec.json.encode(kubeconfig("x", {"server": "https://n"}, {"tokenFile": "/etc/shadow"})), "tokenFile"),
            (msgspec.json.encode(kubeconfig("x", {"server": "gopher://n"})), "server"),
        ):  # fmt: skip
            await expect(grpc.StatusCode.INVALID_ARGUMENT, register("south", bad), text)
        await stub.DeregisterCluster(pb.DeregisterClusterRequest(name="north"))
        await eventually(lambda: "north" not in running.registry.records)
        gone = stub.DeregisterCluster(pb.DeregisterClusterRequest(name="north"))
        await expect(grpc.StatusCode.NOT_FOUND, gone, "north")


async def test_what_is_kept_of_registrations_may_have_been_edited() -> None:
    """What is none is left out: it ended the provider, and discovery with it, at each start."""
    good = {"kubeconfig": kubeconfig("x", {"server": "https://north:1"}, {"token": "t"}), "labels": {"a": "b"}}
    entries = {
        "north": good, "empty": {}, "list": [], "number": 5, "No_Label": good, "odd": {**good, "labels": {"a b": "c"}},
        "none": {"kubeconfig": {}}, "exec": {"kubeconfig": kubeconfig("x", {"server": "https://n"}, {"exec": {"command": "rm"}})},
    }  # fmt: skip
    kept = Registrations(None, State(registrations=entries), Discovery.save)  # type: ignore[arg-type]
    assert list(kept.known) == ["north"]
    assert [one.name for one in kept._reading().clusters] == ["north"]


async def test_forget_is_for_lost_clusters() -> None:
    async with discovery() as (running, stub):
        running.read(cluster("east"))
        running.registry.probed("east", GOOD)
        request = pb.ForgetClusterRequest(name="east")
        await expect(grpc.StatusCode.FAILED_PRECONDITION, stub.ForgetCluster(request), "reachable")
        running.registry.probed("east", ProbeResult(False, False, "Timeout", "x"))
        await stub.ForgetCluster(request)
        assert (await stub.GetCluster(pb.GetClusterRequest(name="east"))).cluster.forgotten
        nobody = stub.ForgetCluster(pb.ForgetClusterRequest(name="nobody"))
        await expect(grpc.StatusCode.NOT_FOUND, nobody, "nobody")


class Listener:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    async def engaged(self, member: Member) -> None:
        self.told.append(("engaged", member.name))

    async def updated(self, member: Member, old: Member) -> None:
        assert not member.same_as(old)
        self.told.append(("updated", member.name))

    async def disengaged(self, member: Member) -> None:
        self.told.append(("disengaged", member.name))

    def take(self) -> list[tuple[str, str]]:
        told, self.told = self.told, []
        return told


@asynccontextmanager
async def watcher(address: str) -> AsyncIterator[tuple[FleetWatcher, Listener]]:
    made, listener = FleetWatcher(address), Listener()
    made.subscribe(listener)
    task = asyncio.create_task(made.run())
    try:
        yield made, listener
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_fleet_watcher_keeps_members_and_clients_identical() -> None:
    async with KubeFake() as kube, discovery() as (running, _):
        kube.tokens = {"one", "two"}
        running.read(cluster("east", kube.kubeconfig(token="one")), cluster("west"))
        async with watcher(running.grpc.bound) as (fleet, listener):
            await asyncio.wait_for(fleet.synced.wait(), 40)
            assert sorted(listener.take()) == [("engaged", "east"), ("engaged", "west")]
            east = fleet.members["east"]
            client = east.client
            assert not east.reachable
            running.registry.probed("east", GOOD)
            await eventually(lambda: east.ready and east.incarnation == "uid")
            assert listener.take() == [("updated", "east")]
            await client.list(PODS)
            running.read(cluster("east", kube.kubeconfig(token="two")))
            await eventually(lambda: len(listener.told) == 2)
            assert sorted(listener.take()) == [("disengaged", "west"), ("updated", "east")]
            assert fleet.members["east"] is east
            assert east.client is client
            await client.list(PODS)
            assert kube.headers[-1]["Authorization"] == "Bearer two"


async def test_fleet_watcher_survives_discovery() -> None:
    running = Discovery()
    await running.start()
    running.read(cluster("east"), cluster("west"))
    running.registry.probed("east", GOOD)
    async with watcher(running.grpc.bound) as (fleet, listener):
        await asyncio.wait_for(fleet.synced.wait(), 40)
        listener.take()
        port = running.grpc.port
        await running.stop()
        await eventually(lambda: bool(fleet.last_error))
        assert set(fleet.members) == {"east", "west"}
        running = Discovery(port)
        await running.start()
        engaged_at = fleet.members["east"].version
        running.read(cluster("east"), cluster("north"))
        await eventually(lambda: "north" in fleet.members and "west" not in fleet.members, 20)
        assert ("engaged", "east") not in listener.take()
        assert fleet.members["east"].version != engaged_at
        assert fleet.last_error == ""
        await running.stop()


async def test_a_followed_cluster_leaves_in_two_steps() -> None:
    async with discovery() as (running, stub):
        running.read(cluster("east"), cluster("west"))
        plain, leaving = FleetWatcher(running.grpc.bound), FleetWatcher(running.grpc.bound, with_leaving=True)
        shown, followed = Listener(), Listener()
        plain.subscribe(shown)
        leaving.subscribe(followed)
        tasks = [asyncio.create_task(watcher.run()) for watcher in (plain, leaving)]
        try:
            await eventually(lambda: plain.synced.is_set() and leaving.synced.is_set())
            for listener in (shown, followed):
                listener.take()
            running.registry.records["east"].uid = "east-uid"  # it was reached
            running.read(cluster("west"))
            await eventually(lambda: bool(shown.told and followed.told))
            assert shown.take() == [("disengaged", "east")]
            assert followed.take() == [("updated", "east")]
            member = leaving.members["east"]
            assert member.leaving_since is not None
            assert member.client is not None
            # It comes back: one is told that it joined, the other that nothing happened to it.
            running.read(cluster("east"), cluster("west"))
            await eventually(lambda: bool(shown.told and followed.told))
            assert shown.take() == [("engaged", "east")]
            assert followed.take() == [("updated", "east")]
            assert member is leaving.members["east"]
            assert member.leaving_since is None
            release = pb.ReleaseClusterRequest(name="east")
            late = stub.ReleaseCluster(release)
            await expect(grpc.StatusCode.FAILED_PRECONDITION, late, "not leaving")
            running.read(cluster("west"))
            await eventually(lambda: bool(followed.told))
            assert member.leaving_since is not None
            release.leaving_since.FromDatetime(member.leaving_since)
            await stub.ReleaseCluster(release)
            await eventually(lambda: "east" not in leaving.members)
            assert ("disengaged", "east") in followed.told
            assert set(running.registry.records) == {"west"}
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


async def test_a_watcher_that_starts_while_discovery_is_away_knows_what_it_knew(tmp_path: Path) -> None:
    file = tmp_path / "fleet"
    running = Discovery()
    await running.start()
    running.read(cluster("east"), cluster("west"))
    running.registry.probed("east", GOOD)
    address = running.grpc.bound

    async def run(made: FleetWatcher) -> tuple[asyncio.Task[None], Listener]:
        listener = Listener()
        made.subscribe(listener)
        return asyncio.create_task(made.run()), listener

    first = FleetWatcher(address, state_file=str(file))
    task, _ = await run(first)
    await eventually(lambda: first.synced.is_set())
    await eventually(file.exists)
    task.cancel()
    await asyncio.wait({task})
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    await running.stop()
    second = FleetWatcher(address, state_file=str(file))
    task, listener = await run(second)
    await eventually(lambda: second.synced.is_set())
    assert sorted(listener.take()) == [("engaged", "east"), ("engaged", "west")]
    assert second.members["east"].ready
    assert second.members["east"].client is not None
    # What left meanwhile leaves when discovery is back.
    again = Discovery(running.grpc.port)
    await again.start()
    again.read(cluster("east"))
    await eventually(lambda: set(second.members) == {"east"})
    task.cancel()
    await asyncio.wait({task})
    await again.stop()
    file.write_bytes(b"\xff\xff")
    third = FleetWatcher(address, state_file=str(file))
    task, _ = await run(third)
    await eventually(lambda: bool(third.last_error))
    assert not third.synced.is_set()
    assert third.check() is not None
    task.cancel()
    await asyncio.wait({task})
