"""gRPC set-up: health, reflection, errors with details, mutual TLS, traces; and the life of a service."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from kube_fake import eventually, make_ca, make_pair, pem
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from reclock.discovery.v1 import discovery_pb2 as pb
from reclock.discovery.v1 import discovery_pb2_grpc
from services.common import telemetry
from services.common.access import has_certificate
from services.common.config import TLS, ConfigError, ServiceConfig
from services.common.grpc import GrpcServer, abort, channel
from services.common.service import Service

NAME = "reclock.discovery.v1.DiscoveryService"


class Servicer(discovery_pb2_grpc.DiscoveryServiceServicer):
    def __init__(self) -> None:
        self.traces: list[str] = []
        self.secrets: list[bool] = []

    async def ListClusters(self, request: Any, context: Any) -> Any:
        self.traces.append(telemetry.current_trace_id())
        self.secrets.append(has_certificate(context))
        return pb.ListClustersResponse()

    async def WatchClusters(self, request: Any, context: Any) -> Any:
        self.traces.append(telemetry.current_trace_id())
        yield pb.WatchClustersResponse()

    async def GetCluster(self, request: Any, context: Any) -> Any:
        await abort(context, grpc.StatusCode.NOT_FOUND, "no such", {"reason": "Gone", "name": "east"})


async def serve(servicer: Servicer, address: str = "127.0.0.1:0", tls: TLS | None = None) -> GrpcServer:
    server = GrpcServer(address, tls)
    server.add(discovery_pb2_grpc.add_DiscoveryServiceServicer_to_server, servicer, NAME)
    await server.start()
    return server


async def test_health_reflection_and_errors() -> None:
    server = await serve(Servicer())
    async with channel(server.bound) as chan:
        health = health_pb2_grpc.HealthStub(chan)
        for name in ("", NAME):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        await server.set_serving(True)
        answer = await health.Check(health_pb2.HealthCheckRequest(service=NAME))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        call = reflection_pb2_grpc.ServerReflectionStub(chan).ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = {service.name for service in (await call.read()).list_services_response.service}
        assert {NAME, "grpc.health.v1.Health"} <= listed
        call.cancel()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await discovery_pb2_grpc.DiscoveryServiceStub(chan).GetCluster(pb.GetClusterRequest(name="x"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        packed = dict(caught.value.trailing_metadata())["grpc-status-details-bin"]
        info = error_details_pb2.ErrorInfo()
        assert status_pb2.Status.FromString(packed).details[0].Unpack(info)
        assert (info.reason, dict(info.metadata)) == ("Gone", {"name": "east"})
    await server.stop(0)


async def test_a_taken_address_and_plaintext_to_elsewhere_are_refused() -> None:
    server = await serve(Servicer())
    with pytest.raises(ConfigError, match="cannot listen"):
        await serve(Servicer(), server.bound)
    await server.stop(0)
    with pytest.raises(ConfigError, match=r"tls\.cert"):
        channel("discovery:7401")
    with pytest.raises(ConfigError, match=r"tls\.ca"):
        channel("discovery:7401", TLS(cert="/no", key="/no", ca="/no"))


def write_tls(folder: Path, name: str, key: Any, ca: Any) -> TLS:
    cert_pem, key_pem = make_pair(key, "ca", name)
    for suffix, data in (("crt", cert_pem), ("key", key_pem), ("ca", pem(ca))):
        (folder / f"{name}.{suffix}").write_bytes(data)
    return TLS(cert=f"{folder}/{name}.crt", key=f"{folder}/{name}.key", ca=f"{folder}/{name}.ca")


async def test_mutual_tls(tmp_path: Path) -> None:
    ca_key, ca = make_ca()
    other_key, other = make_ca()
    server_side = write_tls(tmp_path, "server", ca_key, ca)
    client_side = write_tls(tmp_path, "reclock-aggregator", ca_key, ca)
    stranger = write_tls(tmp_path, "stranger", other_key, ca)
    servicer = Servicer()
    server = await serve(servicer, "127.0.0.1:0", server_side)
    address = f"localhost:{server.port}"
    async with channel(address, client_side) as chan:
        await discovery_pb2_grpc.DiscoveryServiceStub(chan).ListClusters(pb.ListClustersRequest())
    assert servicer.secrets == [True]
    for chan in (channel(address, stranger), channel(address)):
        with pytest.raises(grpc.aio.AioRpcError):
            await discovery_pb2_grpc.DiscoveryServiceStub(chan).ListClusters(
                pb.ListClustersRequest(), timeout=2
            )
        await chan.close()
    await server.stop(0)
    assert other is not None


async def test_traces_pass_from_client_to_handler() -> None:
    trace.set_tracer_provider(TracerProvider())
    telemetry.enable()
    try:
        servicer = Servicer()
        server = await serve(servicer)
        async with channel(server.bound) as chan:
            stub = discovery_pb2_grpc.DiscoveryServiceStub(chan)
            with telemetry.span("request"):
                mine = telemetry.current_trace_id()
                await stub.ListClusters(pb.ListClustersRequest())
                assert len([event async for event in stub.WatchClusters(pb.WatchClustersRequest())]) == 1
        assert servicer.traces == [mine, mine]
        await server.stop(0)
    finally:
        telemetry.enable(False)


class Sample(Service[ServiceConfig]):
    name = "sample"

    def __init__(self, config: ServiceConfig) -> None:
        super().__init__(config)
        self.steps: list[str] = []
        self.missing: str | None = "the other service"

    async def start(self) -> None:
        self.checks["other"] = lambda: self.missing
        self.steps.append("start")

    async def stop_intake(self) -> None:
        self.steps.append("stop intake")

    async def drain(self) -> None:
        self.steps.append("drain")
        raise ValueError("a step that fails must not keep the others from running")

    async def flush(self) -> None:
        self.steps.append("flush")

    async def close(self) -> None:
        self.steps.append(f"close {len(self.tasks)}")


async def test_service_is_ready_after_its_checks_and_stops_in_order() -> None:
    service = Sample(ServiceConfig(http_address="127.0.0.1:0"))
    run = asyncio.create_task(service.run())
    await eventually(lambda: service.grpc.port > 0)
    async with channel(service.grpc.bound) as chan:
        health = health_pb2_grpc.HealthStub(chan)
        request = health_pb2.HealthCheckRequest()
        assert (await health.Check(request)).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert service.ops.failing() == {"other": "the other service"}
        service.missing = None
        await eventually(lambda: service._ready)
        assert (await health.Check(request)).status == health_pb2.HealthCheckResponse.SERVING
    service.request_stop()
    assert await run == 0
    assert service.steps == ["start", "stop intake", "drain", "flush", "close 0"]


async def test_a_failed_task_stops_the_service_with_its_reason() -> None:
    service = Sample(ServiceConfig(http_address=""))
    run = asyncio.create_task(service.run())
    await eventually(lambda: service.grpc.port > 0)

    async def fail() -> None:
        raise ValueError("broken")

    service.tasks.spawn(fail(), "worker")
    assert await run == 1
    assert "sample/worker failed: ValueError: broken" in str(service.failure)
