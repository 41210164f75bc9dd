"""Connections whose credentials were replaced: what is read on them breaks, over TLS too."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from deploy.local.pki import Authority
from services.common.kube import transport as module
from services.common.kube.transport import Transport


async def _endless(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    try:
        while True:
            await answer.write(b"{}\n")
            await asyncio.sleep(0.05)
    except ConnectionError:
        return answer


async def test_a_watch_on_a_replaced_connection_breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """aiohttp lets the readers of a session that is closed wait, over TLS: the watch of a cluster stood still for minutes."""
    monkeypatch.setattr(module, "RETIRE_AFTER", 0.2)
    authority = Authority(tmp_path, "authority")
    pair = authority.server("server", ["127.0.0.1"])
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(pair.cert, pair.key)
    app = web.Application()
    app.router.add_get("/", _endless)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=serving).start()
    transport = Transport(ssl.create_default_context(cafile=str(authority.pair.cert)))
    try:
        transport.enter()
        response = transport.reads(await transport.session.get(f"https://127.0.0.1:{runner.addresses[0][1]}/"))
        assert await response.content.readany()
        transport.retire()
        with pytest.raises(aiohttp.ClientConnectionError, match="its connection is closed"):
            async with asyncio.timeout(10):
                while True:
                    await response.content.readany()
    finally:
        await transport.close()
        await runner.cleanup()
