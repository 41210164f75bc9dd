"""Unary calls over our own HTTP/2 connection: on real etcd servers, with and without TLS, and on a gRPC server of C."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from aetcd.rpc import rpc_pb2

from deploy.local.pki import Authority
from services.common.config import TLS
from services.common.etcd import Etcd, EtcdError, EtcdUnavailable, compare, op_put, op_range
from services.common.http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    Frames,
    ProtocolError,
    frame,
)
from services.common.unary import Unary, UnaryError
from tests.integration.etcd_server import EtcdServer, find_etcd, free_port

KV = "/etcdserverpb.KV/"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EtcdServer]:
    binary = find_etcd()
    if binary is None:
        pytest.skip("no etcd")
    made = EtcdServer(binary, tmp_path / "etcd")
    await made.start()
    yield made
    made.resume()
    made.kill()


@pytest.fixture
async def unary(server: EtcdServer) -> AsyncIterator[Unary]:
    made = Unary(server.endpoint)
    yield made
    await made.close()


def pause(server: EtcdServer) -> None:
    """Stop it: when this returns, no thread of it runs."""
    server.pause()
    assert server.process is not None
    threads = Path(f"/proc/{server.process.pid}/task")
    while any(one.joinpath("stat").read_text().rpartition(")")[2].split()[0] != "T" for one in threads.iterdir()):
        time.sleep(0.01)


async def put(unary: Unary, key: bytes, value: bytes, timeout: float = 10) -> int:
    request = rpc_pb2.PutRequest(key=key, value=value)
    answer = await unary.call(KV + "Put", request.SerializeToString(), timeout)
    return int(rpc_pb2.PutResponse.FromString(answer).header.revision)


async def read(unary: Unary, key: bytes, revision: int = 0) -> bytes:
    request = rpc_pb2.RangeRequest(key=key, revision=revision)
    answer = rpc_pb2.RangeResponse.FromString(await unary.call(KV + "Range", request.SerializeToString(), 10))
    return bytes(answer.kvs[0].value)


async def test_many_calls_at_once_each_get_their_own_answer(unary: Unary) -> None:
    revisions = await asyncio.gather(*(put(unary, b"k%d" % i, b"v%d" % i) for i in range(300)))
    assert len(set(revisions)) == 300
    assert await asyncio.gather(*(read(unary, b"k%d" % i) for i in range(300))) == [b"v%d" % i for i in range(300)]


async def test_messages_longer_than_every_window(unary: Unary) -> None:
    values = [bytes([i]) * 1_200_000 for i in range(4)]
    await asyncio.gather(*(put(unary, b"big%d" % i, value) for i, value in enumerate(values)))
    for _ in range(3):
        assert await asyncio.gather(*(read(unary, b"big%d" % i) for i in range(4))) == values


async def test_errors_of_the_server_keep_code_and_text(unary: Unary) -> None:
    with pytest.raises(UnaryError) as caught:
        await read(unary, b"a", revision=10**9)
    assert caught.value.code() is grpc.StatusCode.OUT_OF_RANGE
    assert caught.value.details() == "etcdserver: mvcc: required revision is a future revision"
    with pytest.raises(UnaryError) as caught:
        await unary.call("/etcdserverpb.KV/None", b"", 10)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert await put(unary, b"a", b"b")


async def test_a_server_that_dies_and_comes_back(unary: Unary, server: EtcdServer) -> None:
    revision = await put(unary, b"a", b"1")
    pause(server)
    late = asyncio.create_task(put(unary, b"a", b"2"))
    await asyncio.sleep(0.1)
    server.kill()
    with pytest.raises(UnaryError) as caught:
        await late
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(UnaryError) as caught:
        await put(unary, b"a", b"3")
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    await server.start()
    assert await put(unary, b"a", b"4") > revision


async def test_a_server_that_hangs_is_given_up_and_tried_anew(unary: Unary, server: EtcdServer) -> None:
    await put(unary, b"a", b"1")
    pause(server)
    with pytest.raises(UnaryError) as caught:
        await put(unary, b"a", b"2", timeout=0.3)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    server.resume()
    assert await put(unary, b"a", b"3")
    assert await read(unary, b"a") == b"3"


async def test_a_call_that_is_cancelled_leaves_the_others_alone(unary: Unary, server: EtcdServer) -> None:
    await put(unary, b"a", b"1")
    pause(server)
    first, second = (asyncio.create_task(put(unary, key, b"2")) for key in (b"a", b"b"))
    await asyncio.sleep(0.1)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    server.resume()
    assert await second and first.cancelled()


async def test_what_is_no_grpc_server() -> None:
    async def http1(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(http1, "127.0.0.1", 0)
    unary = Unary(f"127.0.0.1:{listener.sockets[0].getsockname()[1]}")
    with pytest.raises(UnaryError) as caught:
        await put(unary, b"a", b"b")
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    listener.close()
    await unary.close()


@asynccontextmanager
async def tls_etcd(folder: Path) -> AsyncIterator[tuple[str, TLS, TLS]]:
    """An etcd that wants client certificates: its URL, ours, and one of another authority."""
    authority, other = Authority(folder / "ca", "ca"), Authority(folder / "other", "ca")
    pair, mine, wrong = authority.server("etcd", ["127.0.0.1"]), authority.client("me"), other.client("stranger")
    url, peer = (f"{scheme}://127.0.0.1:{free_port()}" for scheme in ("https", "http"))
    process = await asyncio.create_subprocess_exec(
        find_etcd() or "etcd", "--data-dir", str(folder / "data"), "--log-level", "error", "--listen-client-urls",
        url, "--advertise-client-urls", url, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
        "--initial-cluster", f"default={peer}", "--client-cert-auth", "--trusted-ca-file", str(authority.pair.cert),
        "--cert-file", str(pair.cert), "--key-file", str(pair.key),
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    ca = str(authority.pair.cert)
    try:
        yield url, *(TLS(cert=str(one.cert), key=str(one.key), ca=ca) for one in (mine, wrong))
    finally:
        process.kill()
        await process.wait()


async def test_transactions_on_an_etcd_with_tls(tmp_path: Path) -> None:
    if find_etcd() is None:
        pytest.skip("no etcd")
    async with tls_etcd(tmp_path) as (url, mine, wrong):
        etcd, stranger = Etcd.connect([url], mine), Etcd.connect([url], wrong)
        for _ in range(200):
            try:
                await etcd.status()
                break
            except EtcdUnavailable:
                await asyncio.sleep(0.05)
        done = await etcd.txn([compare(b"a", "version", "=", 0)], [op_put(b"a", b"x" * 300_000), op_range(b"a")])
        assert done.succeeded and done.responses[1].response_range.kvs[0].value == b"x" * 300_000
        with pytest.raises(EtcdError, match="duplicate key"):
            await etcd.txn([], [op_put(b"a", b"1"), op_put(b"a", b"2")])
        with pytest.raises(EtcdUnavailable):
            await stranger.txn([], [op_put(b"a", b"1")])
        await etcd.close()
        await stranger.close()


async def test_another_make_of_server() -> None:
    async def echo(request: bytes, context: Any) -> bytes:
        if request == b"no":
            await context.abort(grpc.StatusCode.NOT_FOUND, "nicht da: 100 % weg ✗")
        return request[::-1]

    server = grpc.aio.server()
    handler = grpc.method_handlers_generic_handler("test.Echo", {"Turn": grpc.unary_unary_rpc_method_handler(echo)})
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    unary = Unary(f"127.0.0.1:{port}")
    for message in (b"", b"abc", bytes(range(256)) * 4000):
        assert await unary.call("/test.Echo/Turn", message, 10) == message[::-1]
    with pytest.raises(UnaryError, match="nicht da: 100 % weg ✗") as caught:
        await unary.call("/test.Echo/Turn", b"no", 10)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    await unary.close()
    await server.stop(None)


def test_frames_in_any_pieces() -> None:
    sent = (
        frame(HEADERS, END_STREAM, 1, b"ab") + frame(CONTINUATION, 0, 1, b"cd") + frame(CONTINUATION, END_HEADERS, 1, b"e")
        + frame(DATA, 0x8, 3, b"\x02xyz\0\0") + frame(HEADERS, END_HEADERS | 0x20, 5, b"\0\0\0\0\x10h")
    )  # fmt: skip
    want = [(HEADERS, END_STREAM | END_HEADERS, 1, b"abcde"), (DATA, 0x8, 3, b"xyz"), (HEADERS, 0x24, 5, b"h")]
    for size in range(1, len(sent) + 1):
        frames = Frames()
        assert [one for i in range(0, len(sent), size) for one in frames.feed(sent[i : i + size])] == want


@pytest.mark.parametrize("sent", [
    b"\xff\xff\xff" + bytes(6), frame(CONTINUATION, END_HEADERS, 1, b""), frame(DATA, 0x8, 1, b""),
    frame(DATA, 0x8, 1, b"\x09abc"), frame(HEADERS, 0, 1, b"a") + frame(DATA, 0, 1, b"b"),
    frame(HEADERS, 0, 1, b"a") + frame(CONTINUATION, 0, 3, b"b"),
])  # fmt: skip
def test_frames_that_are_none(sent: bytes) -> None:
    with pytest.raises(ProtocolError):
        list(Frames().feed(sent))
