"""Clients that do not read, do not stop sending, or ask for too much: bounded, closed, counted, and nobody else's affair."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from services.aggregator.front import limits, server
from services.aggregator.front.limits import REFUSED, Limits
from services.aggregator.front.server import CLOSED
from tests.integration.clock_rig import PODS, eventually
from tests.integration.etcd_server import EtcdServer
from tests.integration.sim_rig import OTHER_TOKEN, POD_PATH, STREAM, TOKEN, SimRig, pod

STREAMS = 10


@pytest_asyncio.fixture
async def rig(etcd: EtcdServer) -> AsyncIterator[SimRig]:
    rig = SimRig(etcd, [PODS])
    try:
        yield await rig.start(["east", "west"], Limits(streams=STREAMS))
    finally:
        await rig.close()


def closed(reason: str) -> float:
    return CLOSED.labels(reason)._value.get()


def head(method: str, path: str, *more: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: front", f"Authorization: Bearer {TOKEN}", *more]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def connect(rig: SimRig) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that takes little ahead."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", rig.port))
    return await asyncio.open_connection(sock=sock, limit=1024)


async def test_a_client_that_never_reads_is_closed(rig: SimRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "READ_TIMEOUT", 0.5)
    before = closed("reading")
    _, writer = await connect(rig)
    async with rig.watch(**STREAM) as watched:
        await rig.streamed(watched)
        writer.write(head("GET", f"{POD_PATH}?watch=1"))
        for i in range(60):  # 12 MB: more than sockets take
            rig.clusters["east"].create(pod(f"p{i}", size=200_000))
            await asyncio.sleep(0)
        await eventually(lambda: closed("reading") == before + 1, timeout=30)
        await eventually(lambda: len(watched.names()) == 60, "others miss nothing", timeout=30)
    assert (await rig.get(limit="1")).status == 200
    writer.close()


async def test_a_client_that_never_reads_its_list_is_closed(rig: SimRig, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(60):
        rig.clusters["east"].create(pod(f"p{i}", size=200_000))
    await rig.settled()
    monkeypatch.setattr(server, "READ_TIMEOUT", 0.5)
    before = closed("reading")
    _, writer = await connect(rig)
    writer.write(head("GET", POD_PATH))
    await eventually(lambda: closed("reading") == before + 1, timeout=30)
    writer.close()


async def test_watches_of_one_user_are_limited(rig: SimRig) -> None:
    """As many as are allowed are open; more are 429, counted, until some end; other users' are served."""
    refused = REFUSED.labels("stream")._value.get()
    opened = [await connect(rig) for _ in range(STREAMS + 5)]
    for _, writer in opened:
        writer.write(head("GET", f"{POD_PATH}?watch=1"))
    first = [await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20) for reader, _ in opened]
    codes = sorted(answer.split()[1] for answer in first)
    assert codes == [b"200"] * STREAMS + [b"429"] * 5
    assert all(b"retry-after: 1" in answer.lower() for answer in first if answer.split()[1] == b"429")
    assert REFUSED.labels("stream")._value.get() == refused + 5
    assert (await rig.get()).status == 200, "requests are counted apart"
    url = f"http://127.0.0.1:{rig.port}{POD_PATH}?watch=1&timeoutSeconds=1"
    async with rig.http.get(url, headers={"Authorization": f"Bearer {OTHER_TOKEN}"}) as other:
        assert other.status == 200
    for _, writer in opened:
        writer.close()

    for _ in range(200):
        async with rig.http.get(url) as answer:
            if answer.status == 200:
                break
        await asyncio.sleep(0.05)
    else:
        raise AssertionError("no room again after watches have ended")


async def trickle(rig: SimRig, first: bytes, reason: str) -> bytes:
    """Send `first`, then a byte now and then, until the front has closed; what it answered."""
    before = closed(reason)
    reader, writer = await connect(rig)
    writer.write(first)
    began = time.monotonic()
    answer = asyncio.create_task(reader.read())
    while not answer.done():
        assert time.monotonic() - began < 30, "it goes on"
        writer.write(b"x")
        assert (await rig.get(limit="1")).status == 200, "others are served"
        await asyncio.sleep(0.05)
    await eventually(lambda: closed(reason) == before + 1)
    writer.close()
    try:
        return await answer
    except ConnectionResetError:
        return b""


async def test_a_request_byte_by_byte_is_cut_off(rig: SimRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_TIMEOUT", 0.5)
    assert await trickle(rig, b"GET /api/v1/pods HTTP/1.1\r\nHost: front\r\nX-Slow: ", "request") == b""


async def test_a_body_byte_by_byte_is_cut_off(rig: SimRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODY_TIMEOUT", 0.5)
    path = "/api/v1/namespaces/default/configmaps"
    sent = head("POST", path, "Content-Type: application/json", "Content-Length: 1000")
    answer = await trickle(rig, sent, "body")
    if answer:  # closing while more bytes come may take the answer away from the client
        assert answer.startswith(b"HTTP/1.1 504 ") and json.loads(answer.partition(b"\r\n\r\n")[2])["kind"] == "Status"
