"""A worker with an OpenTelemetry SDK, as a process: copies ConfigMaps labelled `traced` from east to west. `traced_worker.py OTLP`."""

from __future__ import annotations

import sys

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from reclock import For, Request, controller, run


@controller(for_=For("v1/configmaps", labels="traced=yes"), name="traced")
async def traced(request: Request) -> None:
    """Copy it."""
    found = await request.get()
    if found is None or request.cluster_name != "east":
        return
    metadata = {"name": f"copy-of-{request.name}", "namespace": request.namespace}
    await request.fleet.cluster("west").apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": found["data"]})


if __name__ == "__main__":
    provider = TracerProvider(resource=Resource.create({"service.name": "worker"}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=sys.argv[1], insecure=True)))
    trace.set_tracer_provider(provider)
    run(traced)
