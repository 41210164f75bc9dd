"""Upgrades: bytes pass both ways as they are, whatever protocol they speak."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.integration.front_fakes import FakeCluster, Raw, Served, cluster, front, raw_cluster
from tests.kube.front_rig import NODES, PODS, OneMember

EXEC = "/api/v1/namespaces/a/pods/web/exec?command=sh&command=-c&stdin=true"
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4\r\n\r\n"


@asynccontextmanager
async def tunnels(serve: Raw) -> AsyncIterator[Served]:
    host = FakeCluster()
    host.allow = lambda spec: True
    async with (
        cluster(host) as client,
        raw_cluster(serve) as member,
        front(client, OneMember("east", member, [PODS])) as up,
    ):
        yield up


def upgrade(
    method: str = "POST", path: str = EXEC, protocol: str = "SPDY/3.1", *more: str, token: bool = True
) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: front", "Connection: Upgrade", f"Upgrade: {protocol}", *more]
    if token:
        lines.append("Authorization: Bearer alice-token")
    if method == "POST":
        lines.append("Content-Length: 0")
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


async def read_all(reader: asyncio.StreamReader) -> bytes:
    return await asyncio.wait_for(reader.read(), 20)


@pytest.mark.parametrize(
    ("method", "protocol"),
    [("POST", "SPDY/3.1"), ("GET", "SPDY/3.1"), ("GET", "websocket"), ("POST", "websocket")],
)
async def test_fault_13_14_16_upgrades_by_get_and_post_of_both_protocols_with_their_query(method: str, protocol: str) -> None:
    heads: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str) -> None:
        heads.append(head)
        writer.write(SWITCH + b"\x00first")
        sent = await reader.read()  # until the client has ended its direction
        writer.write(b"got %d " % len(sent) + sent[-4:])

    async with tunnels(serve) as up:
        reader, writer = await asyncio.open_connection("127.0.0.1", up.port)
        writer.write(
            upgrade(
                method, EXEC, protocol, "X-Stream-Protocol-Version: v4.channel.k8s.io", "Sec-WebSocket-Key: k"
            )
        )
        assert await reader.readuntil(b"\r\n\r\n") == SWITCH
        assert await reader.readexactly(6) == b"\x00first"
        writer.write(bytes(range(256)) * 4096)
        writer.write_eof()
        assert await read_all(reader) == b"got 1048576 \xfc\xfd\xfe\xff"
        writer.close()
    first, *lines = heads[0].split("\r\n")
    assert first == f"{method} {EXEC} HTTP/1.1"
    lowered = [line.lower() for line in lines]
    assert "upgrade: " + protocol.lower() in lowered and "connection: upgrade" in lowered
    assert "x-stream-protocol-version: v4.channel.k8s.io" in lowered and "sec-websocket-key: k" in lowered
    assert "authorization: bearer reclock-secret" in lowered
    assert not any("alice-token" in line for line in lowered)
    assert not any(line.startswith("impersonate-") for line in lowered)  # authorization: Host


async def test_bytes_sent_right_behind_the_request_are_not_lost() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str) -> None:
        writer.write(SWITCH)
        writer.write(await reader.readexactly(5))

    async with tunnels(serve) as up:
        reader, writer = await asyncio.open_connection("127.0.0.1", up.port)
        writer.write(upgrade("GET", EXEC, "websocket") + b"early")
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(5) == b"early"
        writer.close()


async def test_a_refusal_is_relayed_as_it_is() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str) -> None:
        body = b'{"kind":"Status","code":400,"message":"container not found"}'
        writer.write(
            b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))

    async with tunnels(serve) as up:
        reader, writer = await asyncio.open_connection("127.0.0.1", up.port)
        writer.write(upgrade())
        answer = await read_all(reader)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.endswith(b'{"kind":"Status","code":400,"message":"container not found"}')


async def test_a_member_that_breaks_off_instead_of_answering_is_503() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str) -> None:
        writer.write(b"HTTP/1.1 1")

    async with tunnels(serve) as up:
        headers = {"Connection": "Upgrade", "Upgrade": "websocket"}
        code, body, _ = await up.ask("GET", EXEC, headers=headers)
    assert (code, body["reason"]) == (503, "ServiceUnavailable")
    assert "cluster east" in body["message"]


async def test_an_object_that_nobody_has_is_404() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str) -> None:
        raise AssertionError("the member must not be asked")

    async with tunnels(serve) as up:
        up.member.absent.add(("a", "web"))
        code, body, _ = await up.ask("GET", "/api/v1/namespaces/a/pods/web/log")
    assert (code, body["message"]) == (404, 'pods "web" not found')


async def test_a_member_that_ends_its_connection_ends_the_clients() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str) -> None:
        writer.write(SWITCH + b"bye")

    async with tunnels(serve) as up:
        reader, writer = await asyncio.open_connection("127.0.0.1", up.port)
        writer.write(upgrade())
        assert (await read_all(reader)).endswith(b"bye")
        writer.close()


async def test_a_client_that_leaves_ends_the_members_connection() -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str) -> None:
        writer.write(SWITCH)
        try:
            while await reader.read(1):
                pass
        finally:
            ended.set()

    async with tunnels(serve) as up:
        reader, writer = await asyncio.open_connection("127.0.0.1", up.port)
        writer.write(upgrade())
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()
        await asyncio.wait_for(ended.wait(), 10)


async def test_a_client_that_does_not_read_holds_the_member_back() -> None:
    sent = 0
    stuck = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str) -> None:
        nonlocal sent
        writer.write(SWITCH)
        while sent < 256 * 1024 * 1024:
            writer.write(b"x" * 65536)
            sent += 65536
            try:
                async with asyncio.timeout(2):
                    await writer.drain()
            except TimeoutError:
                stuck.set()
                return

    async with tunnels(serve) as up:
        _, writer = await asyncio.open_connection("127.0.0.1", up.port, limit=1024)
        writer.write(upgrade())
        await asyncio.wait_for(stuck.wait(), 60)
        assert sent < 64 * 1024 * 1024  # what sockets and buffers hold, not everything
        writer.transport.abort()


async def test_logs_are_streamed_without_an_upgrade() -> None:
    more = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nline1\r\n"
        )
        await more.wait()
        writer.write(b"5\r\nline2\r\n0\r\n\r\n")

    async with tunnels(serve) as up:
        url = f"http://127.0.0.1:{up.port}/api/v1/namespaces/a/pods/web/log?follow=true"
        async with up.session.get(url, headers={"Authorization": "Bearer alice-token"}) as answer:
            assert await answer.content.readexactly(5) == b"line1"
            more.set()
            assert await answer.content.read() == b"line2"
            assert answer.headers["Content-Type"] == "text/plain"


async def test_a_browsers_token_comes_as_a_subprotocol_and_is_not_passed_on() -> None:
    heads: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str) -> None:
        heads.append(head)
        writer.write(SWITCH)

    token = base64.urlsafe_b64encode(b"alice-token").decode().rstrip("=")
    protocols = f"Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.{token}, v5.channel.k8s.io"
    async with tunnels(serve) as up:
        reader, writer = await asyncio.open_connection("127.0.0.1", up.port)
        writer.write(upgrade("GET", EXEC, "websocket", protocols, token=False))
        assert await reader.readuntil(b"\r\n\r\n") == SWITCH
        writer.close()
    assert "sec-websocket-protocol: v5.channel.k8s.io\r\n" in heads[0].lower()
    assert token not in heads[0]


async def test_a_member_addressed_directly_is_passed_through_for_who_may() -> None:
    heads: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str) -> None:
        heads.append(head)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    host = FakeCluster()
    host.allow = lambda spec: spec["resourceAttributes"]["verb"] == "list"
    async with (
        cluster(host) as client,
        raw_cluster(serve) as member,
        front(client, OneMember("east", member, [PODS])) as up,
    ):
        path = "/clusters/east/api/v1/pods?limit=3"
        assert (await up.ask("GET", path))[1] == b"ok"
        code, body, _ = await up.ask("DELETE", "/clusters/east/api/v1/namespaces/a/pods/web")
        # Taken apart, the first names a list (allowed); sent on, it would be another path.
        assert (await up.ask("GET", "/clusters/east%2Fapi/v1/pods/api/v1/namespaces/a/secrets/b"))[0] in (403, 404)
        assert (await up.ask("GET", "/clusters/east%2Fapi/v1/pods"))[0] == 404
    assert (
        code == 403
        and 'cannot delete resource "clusters/proxy" in API group "reclock.dev"' in body["message"]
    )
    assert heads[0].startswith("GET /api/v1/pods?limit=3 HTTP/1.1\r\n")
    assert "impersonate" not in heads[0].lower() and len(heads) == 1
    assert host.reviews[0]["resourceAttributes"]["name"] == "east"


async def test_a_node_s_heartbeat_is_its_member_s() -> None:
    """`kubectl describe node` reads it; the host's own leases stay the host's, and it is asked who may."""
    heads: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str) -> None:
        heads.append(head)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    host = FakeCluster()
    host.allow = lambda spec: spec["user"] == "alice"
    leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
    async with (
        cluster(host) as client,
        raw_cluster(serve) as member,
        front(client, OneMember("east", member, [NODES])) as up,
    ):
        up.member.absent.add(("", "other"))
        assert (await up.ask("GET", f"{leases}/east-n0"))[1] == b"ok"
        for method, path in (("GET", f"{leases}/other"), ("GET", leases), ("DELETE", f"{leases}/east-n0")):
            await up.ask(method, path)
        assert len(heads) == 1 and heads[0].startswith(f"GET {leases}/east-n0 HTTP/1.1\r\n")
        host.allow = lambda spec: False
        assert (await up.ask("GET", f"{leases}/east-n1"))[0] == 403
    assert len(heads) == 1


@pytest.mark.parametrize("authorization", ["Host", "Member"])
async def test_a_node_s_heartbeat_is_read_as_nodes_are(authorization: Any) -> None:
    """Who the member decides about, it decides about here too: by the aggregation of nodes."""
    heads: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str) -> None:
        heads.append(head.lower())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    host = FakeCluster()
    host.allow = lambda spec: True
    async with (
        cluster(host) as client,
        raw_cluster(serve) as member,
        front(client, OneMember("east", member, [replace(NODES, authorization=authorization)])) as up,
    ):
        path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/east-n0"
        assert (await up.ask("GET", path))[1] == b"ok"
    assert ("impersonate-user: alice" in heads[0]) == (authorization == "Member")


async def test_an_upgrade_to_the_host_impersonates_the_caller() -> None:
    heads: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str) -> None:
        heads.append(head)
        if "tokenreviews" in head:
            body = b'{"status":{"authenticated":true,"user":{"username":"alice","groups":["dev","ops"]}}}'
            writer.write(
                b"HTTP/1.1 201 Created\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
                % (len(body), body)
            )
            return
        writer.write(SWITCH + b"host")

    async with raw_cluster(serve, "") as host, front(host, OneMember("east", None, [PODS])) as up:
        reader, writer = await asyncio.open_connection("127.0.0.1", up.port)
        writer.write(upgrade("GET", "/api/v1/namespaces/a/services/web/proxy/", "websocket"))
        assert (await read_all(reader)).endswith(b"host")
        writer.close()
    lowered = heads[1].lower()
    assert "impersonate-user: alice\r\n" in lowered
    assert lowered.count("impersonate-group: ") == 3
