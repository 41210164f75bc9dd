"""Renewed serving certificates: what is half written must not take the place of what works."""

from __future__ import annotations

import shutil
import ssl
from pathlib import Path

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
