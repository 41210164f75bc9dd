"""Renewed serving certificates: what is half written must not take the place of what works."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from pathlib import Path

import pytest
import uvloop
from kube_fake import make_ca, make_pair, pem

from deploy.local.pki import Authority
from services.aggregator.front.certificates import Authorities
from services.aggregator.front.tls import ServerTls


def shakes_hands(server: ssl.SSLContext, ca: str) -> bool:
    """One handshake in memory."""
    trusting = ssl.create_default_context(cafile=ca)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = server.wrap_bio(to_server, to_client, server_side=True)
    there = trusting.wrap_bio(to_client, to_server, server_hostname="localhost")
    for _ in range(4):
        for side in (there, here):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return False
    return there.version() is not None


def test_a_certificate_whose_key_is_not_there_yet_leaves_the_old_pair(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca", "front-ca")
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    pairs = [authority.server(name, ["localhost"]) for name in ("first", "second")]
    shutil.copy(pairs[0].cert, cert)
    shutil.copy(pairs[0].key, key)
    holder = ServerTls(str(cert), str(key), Authorities(""))
    assert shakes_hands(holder.context, str(authority.pair.cert))
    shutil.copy(pairs[1].cert, cert)
    assert not holder.reload()
    assert shakes_hands(holder.context, str(authority.pair.cert)), "the old pair serves on"
    shutil.copy(pairs[1].key, key)
    assert holder.reload()
    assert shakes_hands(holder.context, str(authority.pair.cert))


@pytest.mark.parametrize("uv", [False, True], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize(("stranger", "hours", "alert"), [(True, 24, "unknown ca"), (False, -1, "certificate expired"), (False, 24, "")])
def test_a_client_is_told_why_its_certificate_is_refused(
    tmp_path: Path, stranger: bool, hours: float, alert: str, uv: bool
) -> None:
    authority = Authority(tmp_path / "ca", "front-ca")
    served = authority.server("front", ["localhost"])
    key, cert = make_ca("users")
    users = tmp_path / "users.pem"
    users.write_bytes(pem(cert))
    user = tmp_path / "user.pem"
    user.write_bytes(b"".join(make_pair(key, "users", "admin", hours=hours)))
    if stranger:  # as after another `make demo`: the authority of before had the same name
        users = Authority(tmp_path / "after", "users").pair.cert
        before = Authority(tmp_path / "before", "users").client("admin", file="admin")
        user.write_bytes(before.cert.read_bytes() + before.key.read_bytes())
    trusting = ssl.create_default_context(cafile=str(authority.pair.cert))
    trusting.load_cert_chain(user)
    tls = ServerTls(str(served.cert), str(served.key), Authorities(str(users)))

    async def talk() -> str:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.read(1))
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls.context)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting, server_hostname="localhost")
        try:
            for _ in range(3):  # as a client that has much to send before it reads
                writer.write(b"GET / HTTP/1.1\r\n")
                await asyncio.sleep(0.05)
            await reader.read(100)
        except ssl.SSLError as error:
            return str(error.reason).replace("_", " ").lower()
        finally:
            writer.transport.abort()
            server.close()
        return ""

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if uv else None) as runner:
        said = runner.run(asyncio.wait_for(talk(), 30))
        assert alert in said if alert else not said
