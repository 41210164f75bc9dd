"""Unary gRPC calls of our own: against grpc's server, and against servers that answer oddly, or do not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
import pytest_asyncio
from h2.connection import H2Connection
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from services.common.unary import UnaryChannel, connection

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
    monkeypatch.setattr(H2Connection, "HIGHEST_ALLOWED_STREAM_ID", 5)
    assert [await real.call("echo", b"%d" % number) for number in range(7)] == [b"%d" % n for n in range(7)]
    assert real.channel._connection is not None and real.channel._connection._h2.highest_outbound_stream_id == 1


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


async def frames(reader: asyncio.StreamReader) -> AsyncIterator[Frame]:
    """What the client sends."""
    await reader.readexactly(24)  # what every HTTP/2 connection begins with
    while True:
        found, size = Frame.parse_frame_header(memoryview(await reader.readexactly(9)))
        found.parse_body(memoryview(await reader.readexactly(size)))
        yield found


async def until_called(reader: asyncio.StreamReader) -> int:
    """Stream of the next call, when it was sent whole."""
    async for found in frames(reader):
        if "END_STREAM" in found.flags:
            return found.stream_id
    raise EOFError


def sent(*parts: Frame) -> bytes:
    return b"".join(part.serialize() for part in parts)


def refused(stream: int, code: int) -> bytes:
    return sent(RstStreamFrame(stream, code))


def heads(block: bytes) -> bytes:
    """An answer of headers alone."""
    return sent(HeadersFrame(1, block, flags=["END_HEADERS", "END_STREAM"]))


def echo(channel: UnaryChannel, data: bytes = b"x", timeout: float = 20) -> Awaitable[Any]:
    return channel.method("/test/echo", Text)(Text(data), timeout=timeout)


def answered(stream: int, data: bytes) -> bytes:
    """Answer in pieces, padded, with headers that go on in a second frame, pings and settings between."""
    message = b"\x00" + len(data).to_bytes(4, "big") + data
    return sent(
        SettingsFrame(0, {4: 4096}), PingFrame(0, b"12345678"), HeadersFrame(stream, OK_HEAD[:9]),
        ContinuationFrame(stream, OK_HEAD[9:], flags=["END_HEADERS"]),
        DataFrame(stream, message[:4], pad_length=3, flags=["PADDED"]),
    ) + b"\0\0\x04\x63\0\0\0\0\0" + b"new!" + sent(  # a kind of frame that is not known yet
        DataFrame(stream, message[4:]),
        HeadersFrame(stream, OK_TAIL, flags=["END_HEADERS", "END_STREAM"]),
    )  # fmt: skip


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
        async for found in frames(reader):
            if isinstance(found, DataFrame):
                writer.write(answered(found.stream_id, b""))
            elif isinstance(found, PingFrame) and "ACK" in found.flags and not answer.done():
                answer.set_result(found.opaque_data)

    await echo(await scripted(script))
    assert await asyncio.wait_for(answer, 10) == b"12345678"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", Code.UNAVAILABLE),
        (heads(b"\xff\xff\xff\xff"), Code.UNAVAILABLE),
        (refused(1, 2), Code.INTERNAL),
        (refused(1, 7), Code.UNAVAILABLE),
        (heads(b"\x08\x03503"), Code.UNAVAILABLE),
        (heads(b"\x08\x03404"), Code.UNKNOWN),
        (heads(OK_HEAD + OK_TAIL), Code.INTERNAL),  # no message
        (heads(OK_HEAD + OK_TAIL[:-1] + b"9"), Code.FAILED_PRECONDITION),
        (b"", Code.UNAVAILABLE),
    ],
)
async def test_what_is_no_answer(scripted: Any, answer: bytes, code: grpc.StatusCode) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await until_called(reader)
        writer.write(answer)
        if answer and not answer.startswith(b"HTTP"):  # servers of HTTP/1.1 close after what they do not understand
            await reader.read()

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await echo(await scripted(script))
    assert caught.value.code() is code


async def test_a_server_that_goes_away_finishes_what_it_took(scripted: Any) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = 0
        async for found in frames(reader):
            if "END_STREAM" in found.flags:
                if first:
                    writer.write(sent(GoAwayFrame(0, last_stream_id=first)) + answered(first, b"done"))
                first = first or found.stream_id

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


async def test_a_server_that_takes_one_call_at_a_time(scripted: Any) -> None:
    """A call too many is certainly not done, and the next one is taken."""
    held = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent(SettingsFrame(0, {3: 1})))
        async for found in frames(reader):
            if "END_STREAM" in found.flags:
                if found.stream_id == 3:
                    held.set()
                    continue
                writer.write(answered(found.stream_id, b"taken"))

    channel = await scripted(script)
    assert await echo(channel) == b"taken"
    waiting = asyncio.ensure_future(echo(channel))
    await asyncio.wait_for(held.wait(), 10)
    with pytest.raises(grpc.aio.AioRpcError, match="failed to connect"):
        await echo(channel)
    waiting.cancel()
    await asyncio.wait({waiting})
    assert await echo(channel) == b"taken"


async def test_a_long_call_that_is_broken_off_leaves_the_others(scripted: Any) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = 0
        async for found in frames(reader):
            if found.stream_id == 1 and isinstance(found, DataFrame):
                size += len(found.data)
                if size == 65_535:  # its window is used up
                    more = [WindowUpdateFrame(number, 100_000) for number in (0, 1)]
                    writer.write(sent(*more, RstStreamFrame(1, 7)))
            elif "END_STREAM" in found.flags:
                writer.write(answered(found.stream_id, b"here"))

    channel = await scripted(script)
    with pytest.raises(grpc.aio.AioRpcError, match="broke the call off"):
        await echo(channel, b"x" * 100_000)
    first = channel._connection
    assert await echo(channel) == b"here"
    assert channel._connection is first is not None
