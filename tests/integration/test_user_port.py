"""The port for users, with real TLS: a token and the host's RBAC, at the beginning and as long as a stream lasts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from reclock import Request, Worker, controller
from reclock.discovery.v1 import discovery_pb2, discovery_pb2_grpc
from reclock.reconciler.v1 import peer_pb2, peer_pb2_grpc
from reclock.reconciler.v1 import reconciler_pb2 as pb
from reclock.reconciler.v1 import reconciler_pb2_grpc as rpc
from services.common import access
from services.common.access import Access
from services.common.config import TLS, UserPort
from services.common.grpc import GrpcServer, channel
from services.common.kube import reviews as kube_reviews
from services.common.recheck import Recheck
from tests.integration.work_fleet import HOST, FakeCluster, FakeFleet
from tests.integration.work_rig import Rig, for_configmaps, rig
from tests.integration.work_rig import Worker as BareWorker
from tests.unit.kube_fake import eventually, make_ca, make_pair, pem

Code = grpc.StatusCode
ADA = {"username": "ada", "uid": "u1", "groups": ["dev"], "extra": {"team": ["a"]}}
CALL = 10.0


class Certificates:
    """One authority, and files of certificates that it has signed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key, authority = make_ca()
        self.ca = folder / "ca"
        self.ca.write_bytes(pem(authority))

    def pair(self, name: str) -> dict[str, str]:
        paths = {"cert": self._folder / f"{name}.crt", "key": self._folder / f"{name}.key"}
        for path, data in zip(paths.values(), make_pair(self._key, "ca", name), strict=True):
            path.write_bytes(data)
        return {kind: str(path) for kind, path in paths.items()}

    def tls(self, name: str) -> TLS:
        return TLS(**self.pair(name), ca=str(self.ca))

    def channel(self, address: str, name: str = "") -> grpc.aio.Channel:
        """As a user connects; with `name` it offers a certificate besides."""
        pair = {key: Path(path).read_bytes() for key, path in (self.pair(name) if name else {}).items()}
        return grpc.aio.secure_channel(
            address, grpc.ssl_channel_credentials(self.ca.read_bytes(), pair.get("key"), pair.get("cert"))
        )


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def who(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


async def code_of(call: Any) -> tuple[Code, str]:
    """How a call ends, and what it says."""
    try:
        async with asyncio.timeout(CALL):
            await (call.read() if hasattr(call, "read") else call)
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return Code.OK, ""


@asynccontextmanager
async def serving(certificates: Certificates, **options: Any) -> AsyncIterator[tuple[Rig, grpc.aio.Channel, FakeCluster]]:
    """A reconciler with a port for users, a channel to that, and the host that judges them."""
    config = {"userAddress": "127.0.0.1:0", "userTls": certificates.pair("front")}
    async with rig("east", **config, **options) as it, certificates.channel(it.server.users_bound) as chan:
        host = it.clusters.clusters[HOST]
        host.tokens["good"] = ADA
        yield it, chan, host


@pytest.fixture
def asked_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "VALID_SECONDS", 0.0)
    monkeypatch.setattr(access, "INVALID_SECONDS", 0.0)


async def test_a_worker_with_a_token_alone(certificates: Certificates) -> None:
    async with serving(certificates) as (it, chan, host):
        host.allow = lambda spec: spec["user"] == "ada"
        worker = BareWorker(rpc.ReconcilerServiceStub(chan), for_configmaps(), "good")
        await worker.next("registered")
        it.clusters.clusters["east"].put("configmaps", "default", "a")
        [request] = await worker.requests(1)
        await worker.done(request)
        assert (request.cluster, request.name) == ("east", "a")
        asked = [each["resourceAttributes"] for each in host.reviews]
        assert {"verb": "work", "group": "reclock.dev", "resource": "controllers", "name": "c"} in asked
        assert host.reviews[0]["extra"] == {"team": ["a"]} and host.reviews[0]["uid"] == "u1"
        await worker.close()


async def test_messages_that_are_too_large(certificates: Certificates) -> None:
    """Above the protocol's limit a problem is told; what gRPC itself does not take ends the stream with a status, and no more."""
    async with serving(certificates, lease=2) as (it, chan, _):
        it.clusters.clusters["east"].put("configmaps", "default", "a")
        worker = BareWorker(rpc.ReconcilerServiceStub(chan), for_configmaps(), "good")
        [request] = await worker.requests(1)
        await worker.done(request, error="x" * (1 << 20))
        problem = await worker.next("problem")
        assert problem.code == pb.PROBLEM_CODE_TOO_LARGE and problem.token == request.token
        assert not worker.ended
        await worker.done(request, error="x" * (8 << 20))
        error = await worker.refused()
        assert error.code() is Code.RESOURCE_EXHAUSTED
        assert "larger than max" in (error.details() or "") and "8388608" in (error.details() or "")
        # The connection lives, and what the worker held comes again.
        again = BareWorker(rpc.ReconcilerServiceStub(chan), for_configmaps(), "good")
        [same] = await again.requests(1, 60)
        assert same.name == "a" and same.token != request.token
        await again.done(same)
        await again.close()


async def test_without_a_token_there_is_health_and_nothing_else(certificates: Certificates) -> None:
    async with serving(certificates) as (it, chan, _):
        work, queues = rpc.ReconcilerServiceStub(chan), rpc.QueueServiceStub(chan)
        for metadata, wanted in (
            (None, "bearer token is needed"), (who("bad"), "does not accept"), ((("authorization", "Basic eA=="),), "no bearer token"),
        ):  # fmt: skip
            for call in (
                queues.ListQueues(pb.ListQueuesRequest(), metadata=metadata), work.Work(metadata=metadata),
                queues.WatchQueues(pb.WatchQueuesRequest(), metadata=metadata),
                reflection_pb2_grpc.ServerReflectionStub(chan).ServerReflectionInfo(metadata=metadata),
                health_pb2_grpc.HealthStub(chan).Watch(health_pb2.HealthCheckRequest(), metadata=metadata),
            ):  # fmt: skip
                code, text = await code_of(call)
                assert code is Code.UNAUTHENTICATED and wanted in text
        assert (await code_of(health_pb2_grpc.HealthStub(chan).Check(health_pb2.HealthCheckRequest())))[0] is Code.OK
        # What is not for users is not there; and a user may not call it where it is either.
        added = peer_pb2_grpc.PeerServiceStub(chan).Add(peer_pb2.AddRequest(), metadata=who("good"))
        assert (await code_of(added))[0] is Code.UNIMPLEMENTED
        added = peer_pb2_grpc.PeerServiceStub(it.channel).Add(peer_pb2.AddRequest(), metadata=who("good"))
        code, text = await code_of(added)
        assert code is Code.PERMISSION_DENIED and "between services" in text


async def test_reflection_is_for_users(certificates: Certificates) -> None:
    async with serving(certificates) as (_, chan, _):
        call = reflection_pb2_grpc.ServerReflectionStub(chan).ServerReflectionInfo(metadata=who("good"))
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        shown = {each.name for each in (await call.read()).list_services_response.service}
        call.cancel()
        assert "reclock.reconciler.v1.QueueService" in shown and "reclock.reconciler.v1.PeerService" not in shown


async def test_queues_are_steered_by_who_may(certificates: Certificates) -> None:
    async with serving(certificates) as (_, chan, host):
        queues = rpc.QueueServiceStub(chan)
        host.allow = lambda spec: spec["resourceAttributes"]["verb"] == "list"
        assert (await code_of(queues.ListQueues(pb.ListQueuesRequest(), metadata=who("good"))))[0] is Code.OK
        request = pb.UpdateQueueRequest(controller="c", cluster="east", paused=True)
        code, text = await code_of(queues.UpdateQueue(request, metadata=who("good")))
        assert code is Code.PERMISSION_DENIED and "'ada' cannot update controllers.reclock.dev 'c'" in text
        host.allow = lambda spec: spec["resourceAttributes"].get("name") == "c"
        host.tokens["other"] = {"username": "bob"}
        code, _ = await code_of(queues.UpdateQueue(request, metadata=who("other")))
        assert code is Code.NOT_FOUND, "allowed: there is no such controller"


class Clusters(discovery_pb2_grpc.DiscoveryServiceServicer):
    """Takes what it is told, and notes that it was."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def RegisterCluster(self, request: Any, context: Any) -> Any:
        self.calls.append(f"register {request.name}")
        return discovery_pb2.RegisterClusterResponse()

    async def ListClusters(self, request: Any, context: Any) -> Any:
        self.calls.append("list")
        return discovery_pb2.ListClustersResponse()

    async def ReleaseCluster(self, request: Any, context: Any) -> Any:
        self.calls.append("release")
        return discovery_pb2.ReleaseClusterResponse()


async def test_clusters_are_registered_by_who_may_create_and_update_them(certificates: Certificates) -> None:
    fleet = FakeFleet()
    await fleet.start()
    host, servicer = fleet.clusters[HOST], Clusters()
    host.tokens["good"] = ADA
    client = await fleet.client(HOST)
    pair = certificates.pair("front")
    server = GrpcServer(
        "127.0.0.1:0", certificates.tls("reclock-discovery"), users=UserPort("127.0.0.1:0", pair["cert"], pair["key"]),
        access=Access(client),
    )  # fmt: skip
    server.add(discovery_pb2_grpc.add_DiscoveryServiceServicer_to_server, servicer, "reclock.discovery.v1.DiscoveryService")
    await server.start()
    request = discovery_pb2.RegisterClusterRequest(name="north", kubeconfig=b"{}")
    async with certificates.channel(server.users_bound) as chan:
        stub = discovery_pb2_grpc.DiscoveryServiceStub(chan)
        host.allow = lambda spec: spec["resourceAttributes"]["verb"] == "create"
        code, text = await code_of(stub.RegisterCluster(request, metadata=who("good")))
        assert code is Code.PERMISSION_DENIED and "cannot update clusters.reclock.dev 'north'" in text
        assert (await code_of(stub.ListClusters(discovery_pb2.ListClustersRequest(), metadata=who("good"))))[0] is Code.PERMISSION_DENIED
        host.tokens["admin"] = {"username": "root", "groups": ["system:masters"]}
        assert (await code_of(stub.RegisterCluster(request, metadata=who("admin"))))[0] is Code.OK
        code, text = await code_of(stub.ReleaseCluster(discovery_pb2.ReleaseClusterRequest(), metadata=who("admin")))
        assert code is Code.PERMISSION_DENIED and "between services" in text, "whoever it is"
        await client.close()
        await fleet.stop()
        host.tokens["late"] = ADA
        code, text = await code_of(stub.RegisterCluster(request, metadata=who("late")))
        assert code is Code.UNAVAILABLE and "the host does not answer a TokenReview" in text
    assert servicer.calls == ["register north"]
    await _services_port(certificates, server, servicer)
    await server.stop(0)


async def _services_port(certificates: Certificates, server: GrpcServer, servicer: Clusters) -> None:
    """A certificate of the authority is not enough there, and means nothing at the users' port."""
    release = discovery_pb2.ReleaseClusterRequest()
    for name, wanted in (("someone", Code.PERMISSION_DENIED), ("reclock-aggregator", Code.PERMISSION_DENIED), ("reclock-reconciler", Code.OK)):
        async with channel(server.bound, certificates.tls(name)) as chan:
            stub = discovery_pb2_grpc.DiscoveryServiceStub(chan)
            assert (await code_of(stub.ReleaseCluster(release)))[0] is wanted, name
            if name == "someone":
                code, text = await code_of(stub.ListClusters(discovery_pb2.ListClustersRequest()))
                assert code is Code.PERMISSION_DENIED and "with a token, at userAddress" in text
    async with certificates.channel(server.users_bound, "reclock-reconciler") as chan:
        assert (await code_of(discovery_pb2_grpc.DiscoveryServiceStub(chan).ReleaseCluster(release)))[0] is Code.UNAUTHENTICATED
    async with certificates.channel(server.bound) as chan:
        code, _ = await code_of(discovery_pb2_grpc.DiscoveryServiceStub(chan).ReleaseCluster(release, timeout=2, metadata=who("admin")))
        assert code in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED), "no connection without a certificate"
    assert servicer.calls[-1] == "release"


@pytest.mark.usefixtures("asked_each_time")
@pytest.mark.parametrize(("change", "code", "text"), [
    (lambda host: host.tokens.clear(), Code.UNAUTHENTICATED, "does not accept the token"),
    (lambda host: setattr(host, "allow", lambda spec: False), Code.PERMISSION_DENIED, "'ada' cannot"),
    (lambda host: host.tokens.update(good={"username": "eve"}), Code.UNAUTHENTICATED, "another user's"),
], ids=["token", "right", "user"])  # fmt: skip
async def test_a_stream_of_work_ends_with_its_rights(certificates: Certificates, change: Any, code: Code, text: str) -> None:
    async with serving(certificates, recheck=Recheck(0.1, 60)) as (it, chan, host):
        worker = BareWorker(rpc.ReconcilerServiceStub(chan), for_configmaps(), "good")
        await worker.next("registered")
        seen = len(host.reviews)
        await eventually(lambda: len(host.reviews) >= seen + 9)  # three times: work, list, watch
        assert not worker.ended
        change(host)
        error = await worker.refused()
        assert error.code() is code and text in (error.details() or "")
        await eventually(lambda: not it.work.parts.sessions)


@pytest.mark.usefixtures("asked_each_time")
async def test_every_stream_for_users_ends_with_its_rights(certificates: Certificates) -> None:
    async with serving(certificates, recheck=Recheck(0.1, 60)) as (_, chan, host):
        call = rpc.QueueServiceStub(chan).WatchQueues(pb.WatchQueuesRequest(interval=Duration(seconds=60)), metadata=who("good"))
        assert await call.read() is not grpc.aio.EOF
        host.allow = lambda spec: False
        code, text = await code_of(call)  # it has nothing to say for a minute
        assert code is Code.PERMISSION_DENIED and "cannot list controllers" in text


@pytest.mark.usefixtures("asked_each_time")
async def test_a_host_that_is_away_ends_no_stream_for_a_while(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_reviews, "TIMEOUT", 0.05)
    recheck = Recheck(0.05, 3600)
    async with serving(certificates, recheck=recheck) as (_, chan, host):
        worker = BareWorker(rpc.ReconcilerServiceStub(chan), for_configmaps(), "good")
        await worker.next("registered")
        host.hangs = True
        await asyncio.sleep(0.5)
        assert not worker.ended, "the last answer holds"
        host.hangs = False
        seen = len(host.reviews)
        await eventually(lambda: len(host.reviews) >= seen + 3)
        object.__setattr__(recheck, "patience", 0.2)
        host.hangs = True
        error = await worker.refused()
        assert error.code() is Code.UNAVAILABLE and "nobody could say" in (error.details() or "")


@pytest.mark.usefixtures("asked_each_time")
async def test_the_sdk_comes_back_with_a_renewed_token(certificates: Certificates, tmp_path: Path) -> None:
    """Its token ends while it works; what runs meanwhile goes on, and is answered on the next stream."""
    done: list[str] = []
    go_on = asyncio.Event()

    @controller(for_="v1/configmaps", name="c")
    async def reconcile(request: Request) -> None:
        if request.name == "slow":
            await go_on.wait()
        done.append(request.name)

    token = tmp_path / "token"
    token.write_text("good")
    async with serving(certificates, recheck=Recheck(0.1, 60), lease=10) as (it, _, host):
        settings = {
            "front": "https://127.0.0.1:1", "token_file": str(token), "reconciler": it.server.users_bound, "tls_ca": str(certificates.ca),
        }  # fmt: skip
        async with Worker(reconcile, **settings):
            east = it.clusters.clusters["east"]
            east.put("configmaps", "default", "slow")
            [session] = it.work.parts.sessions
            await eventually(lambda: session.running)
            token.write_text("renewed")
            host.tokens = {"renewed": ADA}
            await eventually(lambda: it.work.parts.sessions and session not in it.work.parts.sessions)
            go_on.set()
            east.put("configmaps", "default", "next")
            await eventually(lambda: sorted(done) == ["next", "slow"])
