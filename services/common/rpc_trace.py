"""Trace context over gRPC: clients send `traceparent` as metadata, servers run handlers in a span of it.

Nothing is installed where traces are off: interceptors cost a coroutine for every call.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from opentelemetry.trace import SpanKind

from services.common import telemetry
from services.common.rpc_handlers import wrapped


def _with_trace(details: grpc.aio.ClientCallDetails) -> grpc.aio.ClientCallDetails:
    headers: dict[str, str] = {}
    telemetry.inject(headers)
    if not headers:
        return details
    metadata = grpc.aio.Metadata(*(details.metadata or ()), *headers.items())
    return grpc.aio.ClientCallDetails(
        details.method, details.timeout, metadata, details.credentials, details.wait_for_ready
    )


class _UnaryUnary(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    async def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return await continuation(_with_trace(details), request)


class _UnaryStream(grpc.aio.UnaryStreamClientInterceptor):  # type: ignore[misc]
    async def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        return await continuation(_with_trace(details), request)


class _StreamStream(grpc.aio.StreamStreamClientInterceptor):  # type: ignore[misc]
    async def intercept_stream_stream(self, continuation: Any, details: Any, requests: Any) -> Any:
        return await continuation(_with_trace(details), requests)


def client_interceptors() -> list[Any]:
    """Interceptors for a channel."""
    return [_UnaryUnary(), _UnaryStream(), _StreamStream()] if telemetry.enabled() else []


class _Server(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        handler = await continuation(details)
        if handler is None or details.method.startswith(("/grpc.health.", "/grpc.reflection.")):
            return handler
        parent = telemetry.extract(dict(details.invocation_metadata or ()))
        return _traced(handler, details.method, parent)


def server_interceptors() -> list[Any]:
    """Interceptors for a server."""
    return [_Server()] if telemetry.enabled() else []


def _traced(handler: Any, method: str, parent: Any) -> Any:
    """Wrap the one behaviour that `handler` has; request streams are the handler's own to read."""

    def unary(behaviour: Any) -> Any:
        async def run(request: Any, context: Any) -> Any:
            with telemetry.span(method, kind=SpanKind.SERVER, parent=parent):
                return await behaviour(request, context)

        return run

    def stream(behaviour: Any) -> Any:
        async def run(request: Any, context: Any) -> AsyncIterator[Any]:
            with telemetry.span(method, kind=SpanKind.SERVER, parent=parent):
                async for response in behaviour(request, context):
                    yield response

        return run

    return wrapped(handler, unary, stream)
