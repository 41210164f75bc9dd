"""Unary gRPC calls, many on one HTTP/2 connection, in the event loop's own thread.

grpc.aio hands every call to threads of its own and back, some 0.2 ms of CPU and two changes of threads each. The clock
commits some hundred times a second, and answers of writes wait for it. Here a call is one write and one read of a socket.
"""

from services.common.unary.channel import UnaryChannel

__all__ = ["UnaryChannel"]
