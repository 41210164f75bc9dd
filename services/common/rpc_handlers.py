"""Handlers of gRPC methods with something put around what they do; interceptors of servers are made of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

Unary = Callable[[Any, Any], Awaitable[Any]]
Stream = Callable[[Any, Any], AsyncIterator[Any]]


def wrapped(handler: Any, unary: Callable[[Unary], Unary], stream: Callable[[Stream], Stream]) -> Any:
    """`handler` with its one behaviour (request, context) wrapped, by `stream` where it answers with a stream.

    Request streams are the behaviour's own to read.
    """
    serializers = {
        "request_deserializer": handler.request_deserializer, "response_serializer": handler.response_serializer,
    }  # fmt: skip
    if handler.unary_unary:
        return grpc.unary_unary_rpc_method_handler(unary(handler.unary_unary), **serializers)
    if handler.stream_unary:
        return grpc.stream_unary_rpc_method_handler(unary(handler.stream_unary), **serializers)
    if handler.unary_stream:
        return grpc.unary_stream_rpc_method_handler(stream(handler.unary_stream), **serializers)
    return grpc.stream_stream_rpc_method_handler(stream(handler.stream_stream), **serializers)
