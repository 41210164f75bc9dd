"""Connections to one cluster: an aiohttp session that is closed when its last user has left it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

import aiohttp

from services.common.errors import reason_of

READ_BUFFER = 256 * 1024
MAX_HEADER = 64 * 1024
KEEPALIVE = 60.0
"""Seconds that an idle connection is kept: less than the apiserver's 90, or requests would race its close."""
RETIRE_AFTER = 30.0
"""Seconds that streams of replaced credentials may go on."""


def make_socket(info: tuple[Any, ...]) -> socket.socket:
    """Make a TCP socket that notices a dead peer within about a minute and sends small writes at once."""
    family, kind, proto = info[0], info[1], info[2]
    sock = socket.socket(family, kind, proto)
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


async def _once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise  # there was no connection: aiohttp does not try those again, and they count as unsent
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise aiohttp.ClientConnectionError(reason_of(error)) from error


def sending(method: str) -> tuple[aiohttp.ClientMiddlewareType, ...] | None:
    """Middlewares of a request.

    Where a kept connection breaks, aiohttp sends PUT and DELETE again by itself, as HTTP allows. In Kubernetes the second is
    answered 409 or 404 if the first was done: its caller would be told that it was not. Go's client sends neither again.
    """
    return (_once,) if method in ("PUT", "DELETE") else None


class Transport:
    """One session for one TLS context; `enter`/`leave` count its requests, and note what they read."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self.tls = tls
        self._users = 0
        self._reading: set[aiohttp.ClientResponse] = set()
        self._retired = False
        self._closing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        connector = aiohttp.TCPConnector(
            limit=0, ssl=tls if tls is not None else True, keepalive_timeout=KEEPALIVE, ttl_dns_cache=30,
            socket_factory=make_socket,
        )  # fmt: skip
        self.session = aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar(), read_bufsize=READ_BUFFER,
            max_line_size=MAX_HEADER, max_field_size=MAX_HEADER,
            # Without it the apiserver does not compress: between services that costs more than it saves.
            skip_auto_headers=("Accept-Encoding",),
        )  # fmt: skip

    def enter(self) -> None:
        """Count a request in."""
        self._users += 1

    def reads(self, response: aiohttp.ClientResponse) -> aiohttp.ClientResponse:
        """Note an answer that is being read, until its request leaves."""
        self._reading.add(response)
        return response

    def leave(self, response: aiohttp.ClientResponse | None = None) -> None:
        """Count a request out; the last one closes a retired transport."""
        self._users -= 1
        if response is not None:
            self._reading.discard(response)
        if self._retired and not self._users:
            self._close_soon()

    def retire(self, *, breaking: bool = True) -> None:
        """Close when the last request has left; with `breaking` after RETIRE_AFTER seconds at the latest."""
        self._retired = True
        if not self._users:
            self._close_soon()
        elif breaking and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(RETIRE_AFTER, self._close_soon)

    @property
    def closed(self) -> bool:
        """Has its last user left a retired one?"""
        return self._closing is not None

    def _close_soon(self) -> None:
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self.close(), name="transport/close")

    async def close(self) -> None:
        """Close all connections and break what is being read on them; idempotent.

        A session that is closed tells its readers nothing over TLS, and takes away the limit of their silence: they would wait
        for their request's whole time, a watch for minutes in which nothing of its cluster is seen.
        """
        for response in self._reading:
            response.content.set_exception(aiohttp.ClientConnectionError("its connection is closed"))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self.session.close()
