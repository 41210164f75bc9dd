"""Unary gRPC calls, many on one HTTP/2 connection, in the event loop's own thread.

grpc.aio hands every call to threads of its own and back. Here a call is one write and one read of a socket; HTTP/2 is
the library `h2`'s. It takes a fifth less CPU.
"""

from services.common.unary.channel import UnaryChannel

__all__ = ["UnaryChannel"]
