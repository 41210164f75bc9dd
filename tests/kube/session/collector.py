"""Receives OpenTelemetry spans over OTLP, so that tests can look at them."""

from __future__ import annotations

from concurrent import futures
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """A collector in this process; `spans` grows as they come, `service_of` says by their ids whose they are."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.service_of: dict[bytes, str] = {}
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def Export(self, request: Any, context: Any) -> Any:
        """Take a batch."""
        for resource in request.resource_spans:
            said = {one.key: one.value.string_value for one in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.service_of |= dict.fromkeys((span.span_id for span in scope.spans), said.get("service.name", ""))
                self.spans.extend(scope.spans)
        return trace_service_pb2.ExportTraceServiceResponse()

    def of_trace(self, trace_id: str) -> list[Any]:
        """Spans of one trace."""
        return [span for span in list(self.spans) if span.trace_id.hex() == trace_id]

    def close(self) -> None:
        """Stop listening."""
        self._server.stop(0)
