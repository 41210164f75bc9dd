"""Unary gRPC calls of our own: against grpc's server, and against servers that misbehave frame by frame."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
import pytest_asyncio

from services.common.unary import UnaryChannel, connection
from services.common.unary.connection import frame
from services.common.unary.headers import BadHeaders, Headers, encode

Code = grpc.StatusCode
OK_HEAD = b"\x88\x00\x0ccontent-type\x10application/grpc"  # :status 200
OK_TAIL = b"\x00\x0bgrpc-status\x010"


class Text(bytes):
    """A message of which every byte is payload."""

    def SerializeToString(self) -> bytes:
        return bytes(self)

    @staticmethod
    def FromString(data: bytes) -> Text:
        return Text(data)


class Service(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Methods by name: what they do with a message."""

    def __init__(self) -> None:
        self.metadata: list[tuple[str, str]] = []
        self.begun, self.ended = asyncio.Event(), asyncio.Event()

    def service(self, details: Any) -> Any:
        self.metadata = [(key, value) for key, value in details.invocation_metadata]
        return grpc.unary_unary_rpc_method_handler(getattr(self, details.method.rpartition("/")[2]))

    async def echo(self, request: bytes, context: Any) -> bytes:
        return request

    async def hang(self, request: bytes, context: Any) -> bytes:
        self.begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            self.ended.set()
        return b""

    async def refuse(self, request: bytes, context: Any) -> bytes:
        await context.abort(Code.FAILED_PRECONDITION, request.decode())
        return b""


class Real:
    """grpc's own server, and a channel to it."""

    def __init__(self) -> None:
        self.service = Service()
        self.server: Any = None
        self.port = 0

    async def start(self) -> None:
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self.server = grpc.aio.server(handlers=[self.service], options=options)
        self.port = self.server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self.server.start()
        self.channel = UnaryChannel(f"127.0.0.1:{self.port}")

    def call(self, method: str, data: bytes, timeout: float | None = 20, **more: Any) -> Awaitable[Any]:
        return self.channel.method(f"/test/{method}", Text)(Text(data), timeout=timeout, **more)


@pytest_asyncio.fixture
async def real() -> AsyncIterator[Real]:
    made = Real()
    await made.start()
    yield made
    await made.channel.close()
    await made.server.stop(None)


async def test_calls_side_by_side(real: Real) -> None:
    found = await asyncio.gather(*(real.call("echo", b"%d" % number) for number in range(200)))
    assert found == [b"%d" % number for number in range(200)]
    assert await real.call("echo", b"") == b""


@pytest.mark.parametrize("size", [16_379, 70_000, 6_000_000])
async def test_messages_longer_than_a_frame_and_a_window(real: Real, size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    assert await asyncio.gather(*(real.call("echo", data[:size]) for _ in range(3))) == [data[:size]] * 3


async def test_metadata_arrives(real: Real) -> None:
    await real.call("echo", b"", metadata=(("token", "x" * 300), ("hasleader", "true")))
    assert {("token", "x" * 300), ("hasleader", "true")} <= set(real.service.metadata)


async def test_a_refusal_says_why(real: Real) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await real.call("refuse", "weil 7 % größer".encode())
    assert (caught.value.code(), caught.value.details()) == (Code.FAILED_PRECONDITION, "weil 7 % größer")


async def test_an_answer_that_does_not_come_in_time(real: Real) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await real.call("hang", b"", timeout=0.05)
    assert caught.value.code() is Code.DEADLINE_EXCEEDED
    await asyncio.wait_for(real.service.ended.wait(), 10)  # the server was told
    assert await real.call("echo", b"next") == b"next"


async def test_a_caller_that_leaves(real: Real) -> None:
    task = asyncio.ensure_future(real.call("hang", b""))
    await asyncio.wait_for(real.service.begun.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(real.service.ended.wait(), 10)


async def test_a_server_that_stops_and_comes_back(real: Real) -> None:
    assert await real.call("echo", b"a") == b"a"
    waiting = asyncio.ensure_future(real.call("hang", b""))
    await asyncio.wait_for(real.service.begun.wait(), 10)
    await real.server.stop(None)
    with pytest.raises(grpc.aio.AioRpcError) as broken:
        await waiting
    assert broken.value.code() in (Code.UNAVAILABLE, Code.CANCELLED)
    with pytest.raises(grpc.aio.AioRpcError, match="failed to connect") as refused:
        await real.call("echo", b"b")
    assert refused.value.code() is Code.UNAVAILABLE
    channel = real.channel
    await real.start()
    real.channel = channel
    assert await real.call("echo", b"c") == b"c"


async def test_numbers_of_calls_are_used_up(real: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LAST_ID", 5)
    assert [await real.call("echo", b"%d" % number) for number in range(7)] == [b"%d" % n for n in range(7)]
    assert real.channel._connection is not None and real.channel._connection._next_id == 3


Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest_asyncio.fixture
async def scripted() -> AsyncIterator[Callable[[Script], Awaitable[UnaryChannel]]]:
    """A server that does what a test says, with each connection."""
    made: list[Any] = []

    async def start(script: Script) -> UnaryChannel:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await script(reader, writer)
            except (OSError, EOFError):
                pass  # the client has what it wanted
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        channel = UnaryChannel(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        made.extend((server, channel))
        return channel

    yield start
    for server, channel in zip(made[::2], made[1::2], strict=True):
        await channel.close()
        server.close()


async def frames(reader: asyncio.StreamReader) -> AsyncIterator[tuple[int, int, int, bytes]]:
    """(kind, flags, stream, payload) of what the client sends."""
    assert await reader.readexactly(len(connection.PREFACE)) == connection.PREFACE
    while True:
        head = await reader.readexactly(9)
        payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
        yield head[3], head[4], int.from_bytes(head[5:], "big"), payload


async def until_called(reader: asyncio.StreamReader) -> int:
    """Stream of the next call, when it was sent whole."""
    async for kind, flags, stream, _ in frames(reader):
        if kind == connection.DATA and flags & connection.END_STREAM:
            return stream
    raise EOFError


def echo(channel: UnaryChannel, data: bytes = b"x", timeout: float = 20) -> Awaitable[Any]:
    return channel.method("/test/echo", Text)(Text(data), timeout=timeout)


def answered(stream: int, data: bytes) -> bytes:
    """Answer in pieces, padded, with headers that go on in a second frame, pings and settings between."""
    message = b"\x00" + len(data).to_bytes(4, "big") + data
    return b"".join((
        frame(connection.SETTINGS, 0, 0, b"\x00\x04\x00\x00\x10\x00"), frame(connection.PING, 0, 0, b"12345678"),
        frame(connection.HEADERS, connection.PRIORITY, stream, b"\x00\x00\x00\x00\x10" + OK_HEAD[:9]),
        frame(connection.CONTINUATION, connection.END_HEADERS, stream, OK_HEAD[9:]),
        frame(connection.DATA, connection.PADDED, stream, b"\x03" + message[:4] + b"\0\0\0"),
        frame(0x63, 0, stream, b"of a later time"), frame(connection.DATA, 0, stream, message[4:]),
        frame(connection.HEADERS, connection.END_HEADERS | connection.END_STREAM, stream, OK_TAIL),
    ))  # fmt: skip


async def test_an_answer_in_the_oddest_frames_byte_by_byte(scripted: Any) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = await until_called(reader)
        for byte in answered(stream, b"whole"):
            writer.write(bytes((byte,)))
            await writer.drain()
        await reader.read()

    assert await echo(await scripted(script)) == b"whole"


async def test_pings_are_answered(scripted: Any) -> None:
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for kind, flags, stream, payload in frames(reader):
            if kind == connection.DATA:
                writer.write(answered(stream, b""))
            elif kind == connection.PING and flags & connection.ACK and not answer.done():
                answer.set_result(payload)

    await echo(await scripted(script))
    assert await asyncio.wait_for(answer, 10) == b"12345678"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", Code.UNAVAILABLE),
        (frame(connection.HEADERS, 5, 1, b"\xff\xff\xff\xff"), Code.UNAVAILABLE),
        (frame(connection.HEADERS, 5, 1, b"\xbe"), Code.UNAVAILABLE),  # of a table that we do not have
        (frame(connection.HEADERS, 1, 1, OK_HEAD) + frame(connection.PING, 0, 0, b"12345678"), Code.UNAVAILABLE),
        (frame(connection.DATA, 8, 1, b"\x09abc"), Code.UNAVAILABLE),
        (b"\x00\x40\x01\x00\x00\x00\x00\x00\x01", Code.UNAVAILABLE),  # a frame of 16,385 bytes
        (frame(connection.RST_STREAM, 0, 1, b"\x00\x00\x00\x02"), Code.INTERNAL),
        (frame(connection.RST_STREAM, 0, 1, b"\x00\x00\x00\x07"), Code.UNAVAILABLE),
        (frame(connection.HEADERS, 5, 1, b"\x08\x03503"), Code.UNAVAILABLE),
        (frame(connection.HEADERS, 5, 1, b"\x08\x03404"), Code.UNKNOWN),
        (frame(connection.HEADERS, 5, 1, OK_HEAD + OK_TAIL), Code.INTERNAL),  # no message
        (frame(connection.HEADERS, 5, 1, OK_HEAD + OK_TAIL[:-1] + b"9"), Code.FAILED_PRECONDITION),
        (b"", Code.UNAVAILABLE),
    ],
)
async def test_what_is_no_answer(scripted: Any, answer: bytes, code: grpc.StatusCode) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await until_called(reader)
        writer.write(answer)
        if answer:
            await reader.read()

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await echo(await scripted(script))
    assert caught.value.code() is code


async def test_a_server_that_goes_away_finishes_what_it_took(scripted: Any) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = 0
        async for kind, flags, stream, _ in frames(reader):
            if kind == connection.DATA and flags & connection.END_STREAM:
                if first:
                    writer.write(frame(connection.GOAWAY, 0, 0, first.to_bytes(4, "big") + bytes(4)))
                    writer.write(answered(first, b"done"))
                first = first or stream

    channel = await scripted(script)
    first, second = await asyncio.gather(echo(channel), echo(channel), return_exceptions=True)
    assert first == b"done"
    # It may be sent to another endpoint: this one has not looked at it.
    assert isinstance(second, grpc.aio.AioRpcError) and "failed to connect" in (second.details() or "")


async def test_a_connection_without_any_sign_of_life_is_left(scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SILENCE", 0.1)
    connections = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while connections == 1:
            await reader.readexactly(1)
        writer.write(answered(await until_called(reader), b"here"))
        await reader.read()

    channel = await scripted(script)
    begin = time.monotonic()
    while connections == 1 or not connections:
        with pytest.raises(grpc.aio.AioRpcError):
            await echo(channel, timeout=0.04)
        assert time.monotonic() - begin < 20
        if channel._connection is None:
            break
    assert await echo(channel) == b"here"
    assert connections == 2


def test_headers_that_are_long_or_none() -> None:
    block = encode("/a/b", "etcd:2379", [("token", "x" * 300)], tls=True)
    found = Headers().decode(block)
    assert found[":path"] == "/a/b" and found["token"] == "x" * 300 and found[":scheme"] == "https"
    with pytest.raises(BadHeaders):
        Headers().decode(b"\x40")
