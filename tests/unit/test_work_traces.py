"""A trace from the event to Done: the worker gets its context, and the lease is a span of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from services.common import telemetry
from tests.integration.work_rig import for_configmaps, rig


@pytest.fixture
def ratio() -> float:
    return 1.0


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch, ratio: float) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(ratio)))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", lambda name: provider.get_tracer(name))
    telemetry.enable(ratio=ratio)
    yield exporter
    telemetry.enable(False)


async def test_event_request_and_done_are_one_trace(spans: InMemorySpanExporter) -> None:
    async with rig("east") as it:
        it.clusters.clusters["east"].put("configmaps", "a", "one")
        worker = it.worker(for_configmaps())
        [request] = await worker.requests(1)
        await worker.done(request, error="no", terminal=True)
        await worker.until(lambda: any(span.name == "request" for span in spans.get_finished_spans()))
        [span] = [span for span in spans.get_finished_spans() if span.name == "request"]
        assert request.traceparent.split("-")[1] == format(span.context.trace_id, "032x")
        assert span.attributes is not None and span.attributes["outcome"] == "terminal"
        [event] = [each for each in spans.get_finished_spans() if each.name == "event"]
        assert span.parent is not None and span.parent.span_id == event.context.span_id
        await worker.close()


async def test_each_event_of_a_watch_begins_a_trace(spans: InMemorySpanExporter) -> None:
    async with rig("east") as it:
        worker = it.worker(for_configmaps())
        await it.synced()
        for name in ("one", "two"):
            it.clusters.clusters["east"].put("configmaps", "a", name)
        requests = await worker.requests(2)
        for request in requests:
            await worker.done(request)
        assert len({request.traceparent.split("-")[1] for request in requests}) == 2
        events = [span for span in spans.get_finished_spans() if span.name == "event"]
        assert len(events) == 2 and not any(span.parent for span in events)
        await worker.close()


@pytest.mark.parametrize("ratio", [0.0])
async def test_what_is_not_kept_of_the_event_is_not_kept_of_the_request(spans: InMemorySpanExporter) -> None:
    async with rig("east") as it:
        it.clusters.clusters["east"].put("configmaps", "a", "one")
        worker = it.worker(for_configmaps())
        [request] = await worker.requests(1)
        assert not int(request.traceparent.rpartition("-")[2], 16) & 1, "the worker's spans follow"
        await worker.done(request)
        await worker.close()
    assert not spans.get_finished_spans()
