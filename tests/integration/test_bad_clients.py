"""Clients that do not read, do not stop sending, or ask for too much: bounded, closed, counted, and nobody else's affair."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from services.aggregator.config import Limits
from services.aggregator.front import connections, server
from services.aggregator.front import limits as bodies
from services.aggregator.front.connections import CLOSED
from services.aggregator.front.limits import REFUSED
from tests.integration.clock_rig import PODS, eventually
from tests.integration.etcd_server import EtcdServer
from tests.integration.sim_rig import OTHER_TOKEN, POD_PATH, STREAM, TOKEN, SimRig, pod

WATCHES = int(os.environ.get("RECLOCK_WATCHES", "15"))
"""By hand: RECLOCK_WATCHES=10000, with the limit as it is by default; `ulimit -n` must leave room for them."""
STREAMS = 10 if Limits().streams >= WATCHES else Limits().streams


@pytest.fixture
def limits() -> Limits:
    """Those of the front; a test may change them while it runs."""
    return Limits(streams=STREAMS)


@pytest_asyncio.fixture
async def rig(etcd: EtcdServer, limits: Limits) -> AsyncIterator[SimRig]:
    rig = SimRig(etcd, [PODS])
    try:
        yield await rig.start(["east", "west"], limits)
    finally:
        await rig.close()


def resident() -> int:
    """KiB of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4


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
    refused, begun, before = REFUSED.labels("stream")._value.get(), time.monotonic(), resident()
    others = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.integration.many_watches", str(rig.port), str(WATCHES),
        head("GET", f"{POD_PATH}?watch=1").decode(), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert others.stdout is not None and others.stdin is not None
    told = json.loads(await others.stdout.readline())
    print(f"{WATCHES} watches: {time.monotonic() - begun:.1f} s, {(resident() - before) / 1024:.0f} MiB more")
    assert told["codes"] == {"200": STREAMS, "429": WATCHES - STREAMS} and told["told"] == WATCHES - STREAMS
    assert REFUSED.labels("stream")._value.get() == refused + WATCHES - STREAMS
    assert (await rig.get()).status == 200, "requests are counted apart"
    url = f"http://127.0.0.1:{rig.port}{POD_PATH}?watch=1&timeoutSeconds=1"
    async with rig.http.get(url, headers={"Authorization": f"Bearer {OTHER_TOKEN}"}) as other:
        assert other.status == 200
    others.stdin.close()
    assert await others.wait() == 0

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


async def test_a_request_byte_by_byte_is_cut_off(rig: SimRig, limits: Limits) -> None:
    limits.header_seconds = 0.5
    assert await trickle(rig, b"GET /api/v1/pods HTTP/1.1\r\nHost: front\r\nX-Slow: ", "request") == b""


async def test_a_body_byte_by_byte_is_cut_off(rig: SimRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_TIMEOUT", 0.5)
    path = "/api/v1/namespaces/default/configmaps"
    sent = head("POST", path, "Content-Type: application/json", "Content-Length: 1000")
    answer = await trickle(rig, sent, "body")
    if answer:  # closing while more bytes come may take the answer away from the client
        assert answer.startswith(b"HTTP/1.1 504 ") and json.loads(answer.partition(b"\r\n\r\n")[2])["kind"] == "Status"


def opened(state: str) -> float:
    return connections.OPEN.labels(state)._value.get()


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What came until the front closed the connection."""
    try:
        return await asyncio.wait_for(reader.read(), 20)
    except ConnectionResetError:
        return b""


def lines_of(size: int) -> bytes:
    """Headers of so many bytes, none of which is long."""
    line = b"X-Filler: " + b"x" * 20_000 + b"\r\n"
    return line * (size // len(line) + 1)


async def test_headers_are_bounded_as_a_whole(rig: SimRig, limits: Limits) -> None:
    """256 lines of 64 KiB would be 16 MiB of a stranger's, for as long as it may take to send them."""
    before = closed("headers")
    reader, writer = await connect(rig)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: front\r\n" + lines_of(limits.header_bytes))
    answer = await ended(reader)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 431 "), "what was not read may take the answer away"
    assert closed("headers") == before + 1
    writer.close()
    reader, writer = await connect(rig)
    for _ in range(2):  # below it, and again on the same connection
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: front\r\n" + lines_of(limits.header_bytes // 2) + b"\r\n")
        assert (await asyncio.wait_for(reader.readuntil(b"ok"), 20)).startswith(b"HTTP/1.1 200 ")
    writer.close()


async def test_a_body_is_no_head(rig: SimRig, limits: Limits) -> None:
    limits.header_bytes = 8192
    body = b'{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"}, "data": {"a": "%b"}}' % (b"x" * 500_000)
    for number in range(3):
        url = f"http://127.0.0.1:{rig.port}/api/v1/namespaces/default/configmaps"
        async with rig.http.post(url, data=body, headers={"Content-Type": "application/json"}) as answer:
            assert answer.status == (201 if number == 0 else 409)


async def test_strangers_are_bounded_and_take_nobodys_place(rig: SimRig, limits: Limits, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that say nothing: so many, and the oldest of them make room; who was authenticated is not concerned."""
    async with rig.watch(**STREAM) as watched:
        await rig.streamed(watched)
        limits.unauthenticated = 5
        refused, ended_for_room = closed("refused"), closed("unauthenticated")
        silent = [await connect(rig) for _ in range(8)]
        assert [await ended(reader) for reader, _ in silent[5:]] == [b""] * 3, "those that are new together are all kept"
        assert (closed("refused"), opened("unauthenticated")) == (refused + 3, 5)
        monkeypatch.setattr(connections, "YOUNG", 0.0)
        assert (await rig.get(limit="1")).status == 200, "a connection that is open is not a new one"
        reader, writer = await connect(rig)
        writer.write(head("GET", f"{POD_PATH}?limit=1"))
        assert (await asyncio.wait_for(reader.readline(), 20)).startswith(b"HTTP/1.1 200 ")
        assert await ended(silent[0][0]) == b"" and closed("unauthenticated") == ended_for_room + 1
        rig.clusters["east"].create(pod("p"))
        await eventually(lambda: watched.names() == ["p"])
        for _, each in (*silent, (reader, writer)):
            each.close()
    await eventually(lambda: opened("unauthenticated") == 0)


async def test_connections_are_bounded(rig: SimRig, limits: Limits) -> None:
    """Of all users together: an idle one makes room, else requests are 429 until one ends."""
    await rig.http.close()
    await eventually(lambda: opened("authenticated") == 0)
    limits.connections = 3
    idle, refused = closed("idle"), REFUSED.labels("connection")._value.get()
    lasting = [await connect(rig) for _ in range(2)]
    for reader, writer in lasting:
        writer.write(head("GET", f"{POD_PATH}?watch=1"))
        assert (await asyncio.wait_for(reader.readline(), 20)).startswith(b"HTTP/1.1 200 ")
    for number in range(2):
        resting, writer = await connect(rig)
        writer.write(head("GET", f"{POD_PATH}?limit=1"))
        assert (await asyncio.wait_for(resting.readline(), 20)).startswith(b"HTTP/1.1 200 ")
        await eventually(lambda: opened("authenticated") == 3)
        await eventually(lambda made=number: closed("idle") == idle + made)
    third = await connect(rig)
    third[1].write(head("GET", f"{POD_PATH}?watch=1"))  # in the place of the one that rests
    assert (await asyncio.wait_for(third[0].readline(), 20)).startswith(b"HTTP/1.1 200 ")
    reader, writer = await connect(rig)
    writer.write(head("GET", f"{POD_PATH}?limit=1"))
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
    assert answer.startswith(b"HTTP/1.1 429 ") and b"retry-after: 1" in answer.lower()
    assert REFUSED.labels("connection")._value.get() == refused + 1
    third[1].close()
    await eventually(lambda: opened("authenticated") == 2)
    await asyncio.wait_for(reader.readexactly(int(answer.lower().partition(b"content-length: ")[2].split()[0])), 20)
    writer.write(head("GET", f"{POD_PATH}?limit=1"))
    assert (await asyncio.wait_for(reader.readline(), 20)).startswith(b"HTTP/1.1 200 "), "the same connection, now that there is room"
    for _, each in (*lasting, (reader, writer)):
        each.close()
