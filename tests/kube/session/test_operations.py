"""Health, reflection, metrics and traces of every service."""

from __future__ import annotations

import json
import secrets
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.kube.session.collector import Collector
from tests.kube.session.test_bad_input import Raw
from tests.kube.session.test_watches import watching
from tests.kube.session.tools import Kubectl, RunningFleet, eventually

SERVICES = {
    "discovery": "reclock.discovery.v1.DiscoveryService",
    "scheduler": "reclock.scheduler.v1.PlacementService",
    "aggregator": "reclock.aggregator.v1.ClockService",
    "reconciler": "reclock.reconciler.v1.ReconcilerService",
}


def addresses(fleet: RunningFleet, service: str) -> dict[str, str]:
    described: dict[str, dict[str, str]] = json.loads(fleet.layout.fleet_json.read_text())["services"]
    return described[service]


@pytest.mark.parametrize("service", SERVICES)
def test_grpc_health_and_reflection(fleet: RunningFleet, service: str) -> None:
    with grpc.insecure_channel(addresses(fleet, service)["grpcAddress"]) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        asked = health_pb2.HealthCheckRequest(service=SERVICES[service])
        assert health.Check(asked, timeout=10).status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        answers = reflection.ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=10
        )
        names = {one.name for one in next(answers).list_services_response.service}
    assert SERVICES[service] in names


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("path", ["/livez", "/readyz?verbose", "/metrics"])
def test_operations_over_http(fleet: RunningFleet, service: str, path: str) -> None:
    url = f"http://{addresses(fleet, service)['httpAddress']}{path}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    assert answer.status == 200
    assert path != "/metrics" or f"reclock_{service}" in text


def test_work_that_begins_without_a_registration_is_refused(fleet: RunningFleet) -> None:
    from reclock.reconciler.v1 import reconciler_pb2, reconciler_pb2_grpc

    with grpc.insecure_channel(addresses(fleet, "reconciler")["grpcAddress"]) as channel:
        stub = reconciler_pb2_grpc.ReconcilerServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            next(stub.Work(iter([reconciler_pb2.WorkRequest()]), timeout=10))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
    assert "Register" in caught.value.details()  # type: ignore[attr-defined]


def test_one_trace_from_the_client_to_the_member(
    fleet: RunningFleet, collector: Collector, kubectl: Kubectl, tmp_path: Path
) -> None:
    kubectl("run", "traced", "--image=example/web:1")
    trace, parent = secrets.token_hex(16), secrets.token_hex(8)
    path = f"/api/v1/namespaces/{kubectl.namespace}/pods/traced"
    status, _ = Raw(fleet, tmp_path)("GET", path, headers={"traceparent": f"00-{trace}-{parent}-01"})
    assert status == 200
    spans = eventually(lambda: len(collector.of_trace(trace)) >= 2 and collector.of_trace(trace), 20)
    server = next(span for span in spans if span.parent_span_id.hex() == parent)
    ids = {span.span_id: span for span in spans}
    client = [span for span in spans if span.kind == span.SPAN_KIND_CLIENT]
    assert client, [span.name for span in spans]
    for span in client:
        top = span
        while top.parent_span_id in ids:
            top = ids[top.parent_span_id]
        assert top.span_id == server.span_id


def said(span: Any, key: str) -> str:
    return next((one.value.string_value for one in span.attributes if one.key == key), "")


def test_one_trace_of_an_event_from_the_member_to_the_client(fleet: RunningFleet, collector: Collector) -> None:
    """A pod is made on a member, behind the front's back; who watches at the front is the trace's end."""
    name, east = f"told-{secrets.token_hex(4)}", fleet.member("east").within("default")
    version = json.loads(fleet.kubectl("get", "--raw", "/api/v1/namespaces/default/pods?limit=1"))["metadata"]["resourceVersion"]
    with watching(fleet.kubectl.within("default"), f"resourceVersion={version}") as watch:
        east("run", name, "--image=example/web:1")
        eventually(lambda: watch.types(name), 20)
    east("delete", "pod", name, "--wait=false")

    def whole() -> list[Any]:
        for event in [span for span in list(collector.spans) if span.name == "event" and said(span, "object") == name]:
            spans = collector.of_trace(event.trace_id.hex())
            if {"queue", "commit", "log", "deliver"} <= {span.name for span in spans}:
                return [event, *(span for span in spans if span is not event)]
        return []

    event, *parts = eventually(whole, 30)
    assert not event.parent_span_id and said(event, "cluster") == "east"
    assert all(span.parent_span_id == event.span_id for span in parts), [(span.name, span.parent_span_id) for span in parts]
