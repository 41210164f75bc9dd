"""Readiness probes over HTTP, and the one HTTP call they are made of."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from pathlib import Path

import aiohttp

from deploy.local.errors import NotReady
from deploy.local.pki import KeyPair
from deploy.local.process import Probe


def tls_context(authority: Path, identity: KeyPair | None = None) -> ssl.SSLContext:
    """A client context that trusts `authority` only and presents `identity`."""
    context = ssl.create_default_context(cafile=str(authority))
    if identity is not None:
        context.load_cert_chain(identity.cert, identity.key)
    return context


async def http(
    method: str,
    url: str,
    *,
    tls: ssl.SSLContext | None = None,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = 10.0,
) -> tuple[int, bytes]:
    """One request on a connection of its own: (status, body). Raises aiohttp.ClientError and TimeoutError."""
    limit = aiohttp.ClientTimeout(total=timeout)
    # trust_env off: a proxy of the environment has no business with loopback addresses.
    async with (
        aiohttp.ClientSession(timeout=limit, trust_env=False) as session,
        session.request(method, url, data=body, headers=headers, ssl=tls or True) as response,
    ):
        return response.status, await response.read()


def http_ready(url: str, tls: ssl.SSLContext | None = None) -> Probe:
    """Ready when `url` answers 200."""

    async def probe() -> str | None:
        try:
            status, body = await http("GET", url, tls=tls, timeout=5)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return f"{url}: {error or type(error).__name__}"
        return None if status == 200 else f"{url}: {status} {body[:300].decode(errors='replace')}"

    return probe


async def until(probe: Probe, what: str, timeout: float = 90.0) -> None:
    """Waits for a probe that no process owns; NotReady says what was missing."""
    deadline = time.monotonic() + timeout
    while True:
        reason = await probe()
        if reason is None:
            return
        if time.monotonic() > deadline:
            raise NotReady(f"{what} after {timeout:.0f} s: {reason}")
        await asyncio.sleep(0.2)
