"""One event's trace, from the member's feed to the clients of every replica."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from services.common import telemetry
from services.common.trace_ids import Ids
from tests.integration.clock_rig import eventually
from tests.integration.etcd_server import EtcdServer
from tests.integration.reads_rig import Informer, ReadsRig


def collecting(monkeypatch: pytest.MonkeyPatch, ratio: float) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(ratio)), id_generator=Ids())
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", lambda name: provider.get_tracer(name))
    telemetry.enable(ratio=ratio)
    return exporter


@pytest.fixture
def off_again() -> Iterator[None]:
    yield
    telemetry.enable(False)


@pytest.fixture
async def rig(etcd: EtcdServer, off_again: None) -> AsyncIterator[ReadsRig]:
    rig = ReadsRig(etcd)
    await rig.add("east", "west")
    yield rig
    await rig.down(kill=False)


def of_object(spans: InMemorySpanExporter, name: str) -> ReadableSpan | None:
    found = [one for one in spans.get_finished_spans() if one.name == "event" and one.attributes["object"] == name]  # type: ignore[index]
    return found[-1] if found else None


async def test_an_event_is_one_trace_from_feed_to_clients_of_two_replicas(
    rig: ReadsRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = collecting(monkeypatch, 1.0)
    await rig.up()
    other = rig.replica()
    await other.up()
    clients = [Informer(rig, watch_list=True), Informer(other, watch_list=True)]
    try:
        await eventually(lambda: rig.pods.tally.watchers == other.pods.tally.watchers == 1)
        await eventually(lambda: all(member.state == "Live" for member in rig.pods.members.values()))
        rig.members["east"].put("traced")
        await eventually(lambda: all(("default", "traced") in client.store for client in clients))
        event = await eventually(lambda: of_object(spans, "traced"))
        await eventually(lambda: len([one for one in spans.get_finished_spans() if one.name == "deliver"]) >= 2)
    finally:
        for client in clients:
            await client.close()
        await other.down(kill=False)
    mine = [one for one in spans.get_finished_spans() if one.context.trace_id == event.context.trace_id]
    assert sorted(one.name for one in mine) == ["commit", "deliver", "deliver", "event", "log", "queue"]
    assert event.parent is None
    assert all(one.parent.span_id == event.context.span_id for one in mine if one is not event)  # type: ignore[union-attr]
    at = {one.name: one for one in mine}
    assert event.start_time == at["queue"].start_time and at["queue"].end_time == at["commit"].start_time
    assert at["commit"].end_time == at["log"].start_time <= at["log"].end_time == event.end_time  # type: ignore[operator]
    assert event.attributes["cluster"] == "east" and event.attributes["fleetVersion"] == rig.pods.head  # type: ignore[index]


async def test_a_ratio_leaves_most_events_without_a_span(rig: ReadsRig, monkeypatch: pytest.MonkeyPatch) -> None:
    spans = collecting(monkeypatch, 0.2)
    await rig.up()
    for number in range(200):
        rig.members["east"].put(f"p{number}")
    await eventually(lambda: rig.pods.state.index.live == 200)
    events = [one for one in spans.get_finished_spans() if one.name == "event"]
    assert 10 <= len(events) <= 90, "about 40; uids are random"
    assert len(rig.pods.traces.open) == len(events), "what was chosen the sampler has kept"


async def test_without_traces_nothing_is_kept(rig: ReadsRig) -> None:
    await rig.up()
    rig.members["east"].put("plain")
    await eventually(lambda: rig.pods.state.index.live == 1)
    assert not rig.pods.traces.open and not rig.pods.traces.on
