"""Logging and OpenTelemetry traces. Metrics are plain `prometheus_client` objects, served by `ops`."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Span, SpanKind, Tracer

from services.common.config import ServiceConfig

_enabled = False
_ratio = 1.0


class _TextFormatter(logging.Formatter):
    converter = staticmethod(time.gmtime)

    def __init__(self, service: str) -> None:
        super().__init__(
            f"%(asctime)s.%(msecs)03dZ %(levelname).1s {service} %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S"
        )

    def format(self, record: logging.LogRecord) -> str:
        record.name = record.name.removeprefix("services.")
        return super().format(record)


class _JsonFormatter(logging.Formatter):
    converter = staticmethod(time.gmtime)

    def __init__(self, service: str) -> None:
        super().__init__(datefmt="%Y-%m-%dT%H:%M:%S")
        self.service = service

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "ts": f"{self.formatTime(record, self.datefmt)}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "service": self.service,
            "logger": record.name.removeprefix("services."),
            "msg": record.getMessage(),
        }
        if trace_id := current_trace_id():
            entry["traceId"] = trace_id
        fields = getattr(record, "fields", None)
        if isinstance(fields, Mapping):
            entry.update(fields)
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def setup_logging(service: str, level: str = "info", style: str = "text") -> None:
    """Send all logging to stderr; a record's `extra={"fields": {…}}` becomes members of the JSON line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter(service) if style == "json" else _TextFormatter(service))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # These say on every request what our own lines say better, and name URLs with queries.
    for noisy in ("aiohttp.access", "asyncio", "grpc", "kubernetes_asyncio", "opentelemetry"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))


def setup(config: ServiceConfig, service: str) -> None:
    """Set up logging, and traces where `otlpEndpoint` is set. Call once, before the loop runs."""
    setup_logging(service, config.log_level, config.log_format)
    if not config.otlp_endpoint:
        return
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    from services.common.trace_ids import Ids

    provider = TracerProvider(
        resource=Resource.create({"service.name": f"reclock-{service}"}),
        sampler=ParentBased(TraceIdRatioBased(config.trace_ratio)),
        id_generator=Ids(),
    )
    insecure = not config.otlp_endpoint.startswith("https://")
    provider.add_span_processor(
        BatchSpanProcessor(OTLPSpanExporter(endpoint=config.otlp_endpoint, insecure=insecure, timeout=5))
    )
    trace.set_tracer_provider(provider)
    enable(ratio=config.trace_ratio)


def shutdown() -> None:
    """Send what is still buffered (5 s at most); for the end of the process."""
    provider = trace.get_tracer_provider()
    if _enabled and hasattr(provider, "force_flush"):
        provider.force_flush(5000)
        provider.shutdown()


def enable(on: bool = True, *, ratio: float = 1.0) -> None:
    """Turn propagation and spans on without an exporter (tests set their own provider)."""
    global _enabled, _ratio
    _enabled, _ratio = on, ratio


def ratio() -> float:
    """Part of the traces that is kept; 0 where traces are off."""
    return _ratio if _enabled else 0.0


def enabled() -> bool:
    """Whether traces are on; where they are not, the hot path pays one global read."""
    return _enabled


def tracer(name: str = "reclock") -> Tracer:
    """Return the tracer; a no-op one where traces are off."""
    return trace.get_tracer(name)


def current_trace_id() -> str:
    """Hex id of the running trace, or ""."""
    if not _enabled:
        return ""
    context = trace.get_current_span().get_span_context()
    return format(context.trace_id, "032x") if context.is_valid else ""


def inject(headers: MutableMapping[str, Any]) -> None:
    """Add `traceparent` of the running span to `headers` (HTTP, or gRPC metadata as a dict)."""
    if _enabled:
        propagate.inject(headers)


def extract(headers: Mapping[str, Any]) -> Context:
    """Return the trace context that `headers` carry."""
    return propagate.extract(headers)


@contextmanager
def span(
    name: str, *, kind: SpanKind = SpanKind.INTERNAL, parent: Context | None = None, **attributes: str | int
) -> Iterator[Span]:
    """Run the block in a span; free where traces are off."""
    if not _enabled:
        yield trace.INVALID_SPAN
        return
    token = attach(parent) if parent is not None else None
    try:
        with tracer().start_as_current_span(name, kind=kind, attributes=attributes) as current:
            yield current
    finally:
        if token is not None:
            detach(token)


def record(name: str, begin: int, end: int, parent: Context, **attributes: str | int) -> Context:
    """A span that is over, from `begin` to `end` (ns since the epoch); its context, for children."""
    made = tracer().start_span(name, context=parent, start_time=begin, attributes=attributes)
    made.end(end)
    return trace.set_span_in_context(made)
