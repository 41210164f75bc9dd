"""Plays fault rules on HTTP connections."""

from __future__ import annotations

import asyncio

from aiohttp import web

from deploy.local.sim.errors import Refused
from deploy.local.sim.faults import Rule, spoil
from deploy.local.sim.represent import error_bytes
from deploy.local.sim.requests import Response

_LOOK_SECONDS = 0.2
_PADDING = b" " * 4096


async def before(rule: Rule, http: web.Request) -> web.StreamResponse | None:
    """What happens before the request reaches the API server; None when it reaches it after all."""
    if rule.kind == "delay":
        await asyncio.sleep(rule.seconds)
    elif rule.kind == "hang":
        await _lifted(rule)
        cut(http)
        return web.Response(status=504)
    elif rule.kind == "refuse":
        cut(http)
        return web.Response(status=503)
    elif rule.kind == "error":
        return _error(rule.status)
    return None


async def _lifted(rule: Rule) -> None:
    """Rules are lifted from outside the event loop's code (virtual time has none), so they are looked at."""
    while not rule.lifted:  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_SECONDS)


def cut(http: web.Request) -> None:
    """Ends the connection without an answer."""
    if http.transport is not None:
        http.transport.abort()


def _error(status: int) -> web.Response:
    reasons = {429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 401: "Unauthorized"}
    refused = Refused(status, reasons.get(status, ""), f"simulated failure {status}")
    headers = {"Content-Type": "application/json"}
    if status in (429, 503):
        headers["Retry-After"] = "1"
    return web.Response(status=status, body=error_bytes(refused), headers=headers)


async def spoiled(rule: Rule, http: web.Request, answer: Response) -> web.StreamResponse:
    """An answer that is none: see `faults.GARBAGE`."""
    kind = "text/html" if rule.garbage == "html" else answer.content_type
    response = web.StreamResponse(status=answer.status, headers={"Content-Type": kind})
    if rule.garbage == "half":
        response.content_length = len(answer.body)
    else:
        response.enable_chunked_encoding()
    await response.prepare(http)
    await spoil_stream(rule, response, answer.body, http)
    return response


async def spoil_stream(rule: Rule, response: web.StreamResponse, data: bytes, http: web.Request) -> None:
    """The same on an answer that has begun."""
    try:
        if rule.garbage == "endless":
            while not rule.lifted:
                await response.write(_PADDING)
                await asyncio.sleep(0.001)
            cut(http)
            return
        await response.write(spoil(data, rule.garbage))
        if rule.garbage == "half":
            cut(http)
        else:
            await response.write_eof()
    except ConnectionError:
        pass  # the client had enough
