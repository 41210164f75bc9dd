"""Provider `remote` with real gRPC servers: sets, changes, deaths, repeats, nonsense."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kube_fake import eventually, kubeconfig, make_ca, make_pair, pem
from provider_world import World, running

from reclock.discovery.v1 import discovery_pb2 as pb
from reclock.discovery.v1 import discovery_pb2_grpc
from services.common.config import TLS
from services.common.grpc import GrpcServer
from services.discovery.config import RemoteProvider
from services.discovery.providers import remote
from services.discovery.providers.make import make
from services.discovery.record import Record

ID = "remote"
Event = pb.ProvideClustersResponse
SYNCED = Event(synced=True)


def found(name: str, token: str = "t", config: Any = None, **labels: str) -> Any:
    """The event of a cluster."""
    config = config or kubeconfig(name, {"server": f"https://{name}:1"}, {"token": token})
    data = config if isinstance(config, bytes) else json.dumps(config).encode()
    return Event(found=Event.Found(name=name, kubeconfig=data, labels=labels))


class Remote(discovery_pb2_grpc.ClusterProviderServiceServicer):
    """Sends `first` on each stream, then what is put into `later`, until `None`."""

    def __init__(self, *first: Any) -> None:
        self.first = list(first)
        self.later: asyncio.Queue[Any] = asyncio.Queue()
        self.streams = 0

    async def ProvideClusters(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.streams += 1
        for event in self.first:
            yield event
        while (event := await self.later.get()) is not None:
            yield event


class Rig:
    """A server that can be killed and started again at its address."""

    def __init__(self, service: Remote, tls: TLS | None = None) -> None:
        self.service, self.tls = service, tls
        self.address = "127.0.0.1:0"
        self.server: GrpcServer | None = None

    async def start(self) -> None:
        self.server = GrpcServer(self.address, self.tls)
        register = discovery_pb2_grpc.add_ClusterProviderServiceServicer_to_server
        self.server.add(register, self.service, "reclock.discovery.v1.ClusterProviderService")
        await self.server.start()
        self.address = self.server.bound

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.stop(0)
            self.server = None


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "STEADY", 0.0)


@asynccontextmanager
async def following(rig: Rig, tls: TLS | None = None) -> AsyncIterator[World]:
    world = World(ID)
    await rig.start()
    try:
        settings = RemoteProvider(address=rig.address, tls=tls or TLS())
        async with running(make(ID, settings, None, world.holders), world):
            yield world
    finally:
        await rig.stop()


async def test_the_complete_set_then_changes() -> None:
    service = Remote(found("east", region="eu"), found("west"))
    async with following(Rig(service)) as world:
        # Without the mark the set is not complete.
        await eventually(lambda: service.streams == 1)
        assert not world.registry.hub.complete.is_set()
        service.later.put_nowait(SYNCED)
        await eventually(lambda: world.names == {"east", "west"})
        assert world.registry.records["east"].provider_labels == {"region": "eu"}
        service.later.put_nowait(found("north"))
        service.later.put_nowait(Event(gone="west"))
        service.later.put_nowait(found("east", token="fresh"))
        await eventually(lambda: world.names == {"east", "north"} and world.token("east") == "fresh")
        assert world.problems == ""


async def test_a_provider_that_dies_keeps_its_clusters() -> None:
    service = Remote(found("east"), found("west"), SYNCED)
    rig = Rig(service)
    async with following(rig) as world:
        await eventually(lambda: world.names == {"east", "west"})
        await rig.stop()
        await eventually(lambda: rig.address in world.problems)
        assert world.names == {"east", "west"}
        assert world.problem("east")
        # It comes back with another set, of which the first half says nothing about who has left.
        service.first = [found("west")]
        await rig.start()
        await eventually(lambda: service.streams == 2)
        assert world.names == {"east", "west"}
        service.later.put_nowait(SYNCED)
        await eventually(lambda: world.names == {"west"})
        await eventually(lambda: world.problems == "" and world.problem("west") == "")


async def test_a_provider_that_repeats_itself() -> None:
    service = Remote(found("east"), found("east"), found("west"), SYNCED)
    async with following(Rig(service)) as world:
        await eventually(lambda: world.names == {"east", "west"})
        told = len(world.readings)
        for event in (SYNCED, found("east"), found("west"), Event(gone="nobody"), SYNCED, Event()):
            service.later.put_nowait(event)
        service.later.put_nowait(found("last"))
        await eventually(lambda: "last" in world.names)
        assert world.names == {"east", "west", "last"}
        assert world.problems == ""
        assert len(world.readings) <= told + 2


async def test_streams_that_end_in_order_are_opened_again() -> None:
    service = Remote(found("east"), SYNCED)
    async with following(Rig(service)) as world:
        await eventually(lambda: world.names == {"east"})
        for _ in range(3):
            service.later.put_nowait(None)
        await eventually(lambda: service.streams == 4)
        assert world.names == {"east"}
        assert not [name for reading in world.readings if not reading.clusters for name in reading.unreadable]


async def test_two_in_one_set_that_differ_are_reported() -> None:
    service = Remote(found("east", "first"), found("east", "second"), SYNCED)
    async with following(Rig(service)) as world:
        await eventually(lambda: world.names == {"east"})
        assert world.token("east") == "first"
        assert "sent twice in one set" in world.problem("east")
        service.later.put_nowait(found("east", "first"))
        await eventually(lambda: world.problem("east") == "" and world.problems == "")
        service.later.put_nowait(found("east", "second"))
        await eventually(lambda: world.token("east") == "second" and world.problems == "")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (b"clusters: [", "kubeconfig is no YAML"),
        (b"\xff\xfe\x00", "kubeconfig is no"),
        (kubeconfig("x", {"server": "ftp://x"}), "is no http(s) URL"),
        (kubeconfig("x", {"server": "https://x:1"}, {"exec": {"command": "id"}}), "exec is not allowed here"),
    ],
)  # fmt: skip
async def test_bad_kubeconfigs_keep_the_last(config: Any, reason: str) -> None:
    service = Remote(found("east"), found("never", config=config), SYNCED)
    async with following(Rig(service)) as world:
        await eventually(lambda: world.names == {"east"})
        assert reason in world.problems
        service.later.put_nowait(found("east", config=config))
        await eventually(lambda: reason in world.problem("east"))
        assert world.token("east") == "t"
        # A whole new set with the same fault keeps it too.
        service.first = [found("east", config=config), SYNCED]
        service.later.put_nowait(None)
        await eventually(lambda: service.streams == 2)
        await eventually(lambda: "never" not in world.problems)
        assert world.token("east") == "t"


async def test_bad_names_and_labels_are_reported() -> None:
    service = Remote(found("A_b"), found(""), found("east", region="not allowed!"), SYNCED)
    async with following(Rig(service)) as world:
        await eventually(lambda: world.names == {"east"})
        assert "name 'A_b'; allowed: a DNS label" in world.problems
        assert "label 'region=not allowed!'" in world.problem("east")
        assert world.registry.records["east"].provider_labels == {}


async def test_before_the_first_set_nothing_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "FIRST", 0.05)
    service = Remote()
    async with following(Rig(service)) as world:
        world.registry.restore(Record("known", ID, "known of somewhere"))
        await eventually(lambda: "has not sent its complete set yet" in world.problems)
        assert world.names == {"known"}
        service.later.put_nowait(SYNCED)
        await eventually(lambda: world.names == set())


async def test_too_many_clusters_end_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "MAX_CLUSTERS", 2)
    service = Remote(found("a"), found("b"), SYNCED)
    async with following(Rig(service)) as world:
        await eventually(lambda: world.names == {"a", "b"})
        service.later.put_nowait(found("c"))
        await eventually(lambda: any("more than 2 clusters" in r.problems[0].message for r in world.readings if r.problems))
        assert world.names == {"a", "b"}


async def test_over_mutual_tls(tmp_path: Path) -> None:
    key, ca = make_ca()
    (tmp_path / "ca").write_bytes(pem(ca))
    for name in ("server", "reclock-discovery"):
        cert, private = make_pair(key, "ca", name)
        (tmp_path / f"{name}.crt").write_bytes(cert)
        (tmp_path / f"{name}.key").write_bytes(private)

    def tls(name: str) -> TLS:
        return TLS(cert=str(tmp_path / f"{name}.crt"), key=str(tmp_path / f"{name}.key"), ca=str(tmp_path / "ca"))

    missing = tmp_path / "reclock-discovery.key"
    data = missing.read_bytes()
    missing.unlink()
    async with following(Rig(Remote(found("east"), SYNCED), tls("server")), tls("reclock-discovery")) as world:
        await eventually(lambda: "reclock-discovery.key: No such file" in world.problems)
        missing.write_bytes(data)
        await eventually(lambda: world.names == {"east"})
