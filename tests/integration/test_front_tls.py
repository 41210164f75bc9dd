"""Client certificates, front proxies, and clients that take their time, on a front with TLS."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from deploy.local.pki import Authority, KeyPair
from services.aggregator.config import Limits
from services.aggregator.front import connections
from services.aggregator.front import front as front_module
from services.aggregator.front.certificates import Authorities
from services.aggregator.front.tls import ServerTls
from tests.integration.front_fakes import FakeCluster, cluster, front
from tests.kube.front_rig import PODS, Config, OneMember, serving_files


@dataclass
class Trusted:
    """Authorities of users and of front proxies, and a front's port."""

    port: int
    serving: Path
    users: Authority
    proxies: Authority

    async def ask(self, pair: KeyPair | None, **headers: str) -> tuple[int, Any]:
        context = ssl.create_default_context(cafile=str(self.serving))
        if pair is not None:
            context.load_cert_chain(pair.cert, pair.key)
        sent = {key.replace("_", "-"): value for key, value in headers.items()}
        async with aiohttp.ClientSession() as session:
            url = f"https://127.0.0.1:{self.port}/api/v1/configmaps"
            async with session.get(url, ssl=context, headers=sent) as answer:
                return answer.status, json.loads(await answer.read())


@pytest.fixture
async def trusted(tmp_path: Path) -> AsyncIterator[Trusted]:
    users, proxies = Authority(tmp_path / "users", "users"), Authority(tmp_path / "proxies", "proxies")
    tls, authority = serving_files(tmp_path / "serving")
    config = Config(
        front_tls=tls, client_ca=str(users.pair.cert), request_header_ca=str(proxies.pair.cert),
        request_header_names=["front-proxy"],
    )  # fmt: skip
    async with cluster(FakeCluster()) as host:
        running = OneMember("east", None, [PODS]).front(config, host)
        yield Trusted(await running.start(), authority.pair.cert, users, proxies)
        await running.stop()


def named(body: Any) -> list[str]:
    return [value for key, value in body["headers"] if key.lower() in ("impersonate-user", "impersonate-group")]


async def test_a_users_certificate(trusted: Trusted) -> None:
    pair = trusted.users.client("alice", ["dev", "ops"])
    code, body = await trusted.ask(pair, X_Remote_User="root", X_Remote_Group="system:masters")
    assert (code, named(body)) == (200, ["alice", "dev", "ops", "system:authenticated"])


async def test_a_front_proxy_names_the_user(trusted: Trusted) -> None:
    pair = trusted.proxies.client("front-proxy")
    code, body = await trusted.ask(pair, X_Remote_User="bob", X_Remote_Group="dev", X_Remote_Extra_Team="a")
    assert (code, named(body)) == (200, ["bob", "dev", "system:authenticated"])
    assert ["Impersonate-Extra-Team", "a"] in [[key.title(), value] for key, value in body["headers"]]
    assert (await trusted.ask(pair))[0] == 401  # it is no user itself


async def test_certificates_that_do_not_count(trusted: Trusted, tmp_path: Path) -> None:
    assert (await trusted.ask(trusted.proxies.client("another"), X_Remote_User="bob"))[0] == 401
    assert (await trusted.ask(None))[0] == 401
    with pytest.raises(aiohttp.ClientError):
        await trusted.ask(Authority(tmp_path / "strange", "users").client("alice"))


def test_renewed_certificates_are_taken_and_broken_ones_are_not(tmp_path: Path) -> None:
    tls, _ = serving_files(tmp_path)
    holder = ServerTls(tls.cert, tls.key, Authorities(""))
    assert not holder.reload()
    serving_files(tmp_path)
    assert holder.reload()
    Path(tls.cert).write_text("nonsense")
    assert not holder.reload()


async def test_a_client_that_never_finishes_its_request_is_cut_off() -> None:
    limits = Limits(header_seconds=0.2)
    async with cluster(FakeCluster()) as host, front(host, OneMember("east", None, [PODS]), limits=limits) as up:
        for sent in (b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow"):
            reader, writer = await asyncio.open_connection("127.0.0.1", up.port)
            writer.write(sent)
            assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", up.port)
        for _ in range(2):  # an idle connection between requests is kept
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert await asyncio.wait_for(reader.readuntil(b"ok"), 10)
            await asyncio.sleep(0.5)
        writer.close()


async def test_an_authority_that_is_taken_out_is_trusted_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a restart: for new handshakes, for connections that are kept, and for streams that are under way."""
    monkeypatch.setattr(front_module, "RELOAD_PERIOD", 0.05)
    kept, gone = Authority(tmp_path / "kept", "kept"), Authority(tmp_path / "gone", "gone")
    tls, serving = serving_files(tmp_path / "serving")
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(kept.pair.cert.read_bytes() + gone.pair.cert.read_bytes())
    config = Config(front_tls=tls, client_ca=str(bundle))
    async with cluster(FakeCluster()) as host, AsyncExitStack() as stack:
        running = OneMember("east", None, [PODS]).front(config, host)
        port = await running.start()
        stack.push_async_callback(running.stop)

        async def client(authority: Authority, name: str) -> tuple[aiohttp.ClientSession, asyncio.StreamReader]:
            context = ssl.create_default_context(cafile=str(serving.pair.cert))
            pair = authority.client(name)
            context.load_cert_chain(pair.cert, pair.key)
            connector = aiohttp.TCPConnector(ssl=context)
            session = await stack.enter_async_context(aiohttp.ClientSession(f"https://127.0.0.1:{port}", connector=connector))
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            stack.callback(writer.close)
            writer.write(b"GET /api/v1/configmaps HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200" in await asyncio.wait_for(reader.readline(), 10)
            return session, reader

        (good, _), (bad, kept_open) = await client(kept, "alice"), await client(gone, "mallory")
        for session in (good, bad):
            async with session.get("/api/v1/configmaps") as answer:
                assert answer.status == 200
        bundle.write_bytes(kept.pair.cert.read_bytes())
        await asyncio.wait_for(kept_open.read(), 10)  # to its end: the front has closed it
        async with bad.get("/api/v1/configmaps") as answer:
            assert answer.status == 401
        async with good.get("/api/v1/configmaps") as answer:
            assert answer.status == 200
        bundle.write_text("nonsense")
        await asyncio.sleep(0.2)
        async with good.get("/api/v1/configmaps") as answer:
            assert answer.status == 200, "a file that cannot be read changes nothing"


async def test_handshakes_that_never_come_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection counts from the moment it is accepted: TLS is what a stranger can make the front wait for first."""
    tls, serving = serving_files(tmp_path / "serving")
    context = ssl.create_default_context(cafile=str(serving.pair.cert))
    ended = connections.CLOSED.labels("unauthenticated")._value
    async with cluster(FakeCluster()) as host:
        running = OneMember("east", None, [PODS]).front(Config(front_tls=tls), host, limits=Limits(unauthenticated=3))
        port = await running.start()
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        assert await asyncio.wait_for(silent[3][0].read(), 10) == b""
        before = ended.get()
        monkeypatch.setattr(connections, "YOUNG", 0.0)
        for number in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert (await asyncio.wait_for(reader.read(), 10)).endswith(b"ok")
            if number == 0:
                assert await asyncio.wait_for(silent[0][0].read(), 10) == b"" and ended.get() == before + 1
            writer.close()
        await running.stop()
        for reader, writer in silent:
            assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()
