"""One trace from a member's event to the result in another member, through real processes: reconciler, worker, front."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from deploy.local.api import Api
from deploy.local.engines import SIM, EtcdMissing, own_etcd
from deploy.local.fleet import Fleet
from tests.integration.test_sim_fleet import until
from tests.kube.session.collector import Collector

ROOT = Path(__file__).parents[2]


def attributes(span: Span) -> dict[str, str]:
    return {one.key: one.value.string_value for one in span.attributes}


async def test_from_the_event_to_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        own_etcd()
    except EtcdMissing as missing:
        pytest.skip(str(missing))
    collector = Collector()
    endpoint = f"http://127.0.0.1:{collector.port}"
    for service in ("RECONCILER", "AGGREGATOR"):
        monkeypatch.setenv(f"RECLOCK_{service}_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv(f"RECLOCK_{service}_TRACE_RATIO", "1")
    fleets = Fleet.start(tmp_path / "fleet", members=["east", "west"], services=True, placement=False, engine=SIM)
    async with fleets as fleet:
        assert fleet.services is not None
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.integration.traced_worker", endpoint, cwd=ROOT,
            env={**os.environ, "RECLOCK_KUBECONFIG": str(fleet.kubeconfig),
                 "RECLOCK_RECONCILER": fleet.services.describe()["reconciler"]["grpcAddress"]},
        )  # fmt: skip
        try:
            east, front = fleet.members["east"].api, Api(fleet.services.front_access())
            place = "/api/v1/namespaces/default/configmaps"

            async def copied() -> Any:
                assert child.returncode is None, "the worker has ended"
                found = await front.request("GET", f"/clusters/west{place}")
                return [one["metadata"]["name"] for one in found["items"]]

            body = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}}
            await east.create({**body, "metadata": {"name": "early", "labels": {"traced": "yes"}}})
            await until(copied, lambda names: "copy-of-early" in names)
            # This one comes by a watch.
            await east.create({**body, "metadata": {"name": "late", "labels": {"traced": "yes"}}})
            await until(copied, lambda names: "copy-of-late" in names)

            async def spans() -> dict[str, Span]:
                """`service name` -> the span, of the trace of late's event."""
                events = [s for s in list(collector.spans) if s.name == "event" and attributes(s).get("object") == "late"]
                ids = {span.trace_id for span in events if attributes(span).get("cluster") == "east"}
                assert len(ids) <= 1, "one trace for one event"
                return {
                    f"{collector.service_of[span.span_id]} {span.name}": span
                    for span in list(collector.spans) if span.trace_id in ids
                }  # fmt: skip

            chain = (
                "reclock-reconciler event", "reclock-reconciler request", "worker reconcile traced",
                "reclock-aggregator PATCH", "reclock-aggregator PATCH cluster west",
            )  # fmt: skip
            found = await until(spans, lambda got: set(chain) <= set(got))
            event, request, reconcile, front, member = (found[name] for name in chain)
            assert not event.parent_span_id
            assert request.parent_span_id == reconcile.parent_span_id == event.span_id
            assert attributes(request)["outcome"] == "success"
            assert (front.parent_span_id, member.parent_span_id) == (reconcile.span_id, front.span_id)
            assert event.start_time_unix_nano <= request.start_time_unix_nano <= request.end_time_unix_nano
            # Nothing but this event: neither the watch that brought it, nor what came before.
            assert {name for name in found if name.startswith("reclock-reconciler")} == set(chain[:2])
            early = {span.trace_id for span in collector.spans if attributes(span).get("object") == "early"}
            assert event.trace_id not in early
        finally:
            if child.returncode is None:
                child.terminate()
            await child.wait()
            collector.close()
