"""Tunnels to a member: log, exec, attach, portforward, proxy, and upgrades in general.

An upgrade (WebSocket, SPDY/3.1, whatever comes) is sent on a connection of its own with the client's headers and
the member's credentials; the member's answer is relayed as it is, and after a 101 bytes pass both ways without
being looked at. Everything else is plain streaming.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping

from aiohttp import web
from prometheus_client import Counter, Gauge

from services.aggregator.front.pipes import pipe
from services.aggregator.front.relay import (
    own_credentials_refused,
    relay,
    request_body,
    request_headers,
    response_headers,
)
from services.aggregator.front.server import FrontRequest
from services.aggregator.front.upstream import Head, read_body, read_head
from services.aggregator.types import Call
from services.common import telemetry
from services.common.errors import MemberUnreachable, decode_status, from_client_error
from services.common.kube.client import KubeClient

log = logging.getLogger(__name__)

ANSWER_TIMEOUT = 60.0
"""Seconds for a member to answer an upgrade: its kubelet may have to start a process first."""

SILENCE = 90.0
"""Seconds after which a request that should have been answered long ago is given up (Kubernetes' limit is 60)."""
TUNNELS = frozenset({"log", "proxy", "exec", "attach", "portforward"})

OPEN = Gauge("reclock_aggregator_tunnels", "Upgraded connections that are open")
BYTES = Counter("reclock_aggregator_tunnel_bytes_total", "Bytes through upgraded connections", ["direction"])


class TakenOver(web.StreamResponse):
    """Stands for an answer that went over the bare connection: there is nothing left to send."""

    def __init__(self, status: int = 101) -> None:
        super().__init__(status=status)
        self._eof_sent = True
        self.force_close()


async def tunnel(
    call: Call, client: KubeClient, path_qs: str, identity: Mapping[str, str] | None = None,
    away: Callable[[], bool] = lambda: False,
) -> web.StreamResponse:  # fmt: skip
    """Pass the call's request on to `path_qs` of a cluster and answer with what comes.

    `identity`: impersonation headers; `away`: is the cluster known not to answer? Raises StatusError while the client has not been answered.
    """
    request = call.request
    assert isinstance(request, FrontRequest)
    if is_upgrade(request):
        return await _upgrade(request, client, path_qs, identity, call.info.subresource == "proxy")
    path, _, query = path_qs.partition("?")
    lasts = call.info.verb == "watch" or call.info.subresource in TUNNELS
    return await relay(
        request, client, path, query, identity=identity, silence=None if lasts else SILENCE,
        proxied=call.info.subresource == "proxy", away=away,
    )  # fmt: skip


def is_upgrade(request: web.BaseRequest) -> bool:
    """Whether the request asks to leave HTTP."""
    return "Upgrade" in request.headers and "upgrade" in request.headers.get("Connection", "").lower()


async def _upgrade(
    request: FrontRequest, client: KubeClient, path_qs: str, identity: Mapping[str, str] | None, proxied: bool
) -> web.StreamResponse:
    body = await request_body(request)
    if body is not None and not isinstance(body, bytes):
        body = await request.read()
    target = client.target(request.method, path_qs)
    reader, writer = await client.open_socket()
    try:
        what = f"{client.label}: {request.method} {path_qs.partition('?')[0]}"
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                writer.write(await _head(request, client, target, identity, body))
                await writer.drain()
                head = await read_head(reader)
            if head.status != 101:
                return await _refused(request, client, head, reader, proxied)
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            raise from_client_error(error, what) from error
        return await _piped(request, head, reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError, TimeoutError):  # how the other side ends is its own affair
            async with asyncio.timeout(5):
                await writer.wait_closed()


async def _head(
    request: FrontRequest, client: KubeClient, target: str, identity: Mapping[str, str] | None, body: bytes | None
) -> bytes:
    headers = request_headers(request, identity)
    headers.setdefault("Audit-Id", request.audit_id)
    headers["Connection"] = "Upgrade"
    headers["Upgrade"] = request.headers["Upgrade"]
    headers.update(await client.auth_headers())
    telemetry.inject(headers)
    if body is not None or request.method in ("POST", "PUT", "PATCH"):
        headers["Content-Length"] = str(len(body or b""))
    lines = [f"{request.method} {target} HTTP/1.1", f"Host: {client.host_header}"]
    lines += [f"{key}: {value}" for key, value in headers.items()]
    text = "\r\n".join(lines)
    if any("\r" in line or "\n" in line for line in lines):
        raise MemberUnreachable("a header holds a line break")
    return text.encode("utf-8", "surrogateescape") + b"\r\n\r\n" + (body or b"")


async def _refused(
    request: FrontRequest, client: KubeClient, head: Head, reader: asyncio.StreamReader, proxied: bool
) -> web.Response:
    """Relay an answer that is no upgrade: an error mostly. `proxied`: it may be a pod's own server's."""
    if head.status == 401 and not proxied:
        raise own_credentials_refused(client)
    body = b"" if request.method == "HEAD" else await read_body(head, reader)
    if head.status == 401 and decode_status(body) is not None:
        raise own_credentials_refused(client)
    headers = response_headers(head.headers)
    headers.popall("Content-Length", None)
    answer = web.Response(status=head.status, reason=head.reason, headers=headers, body=body)
    answer.force_close()
    return answer


async def _piped(
    request: FrontRequest, head: Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> web.StreamResponse:
    client = request.connection.take_over()
    OPEN.inc()
    try:
        await client.write(head.raw)
        up, down = await pipe(client, reader, writer)
        BYTES.labels("up").inc(up)
        BYTES.labels("down").inc(down)
    except OSError as error:
        log.debug("the client left before it could be told: %s", error)
    except Exception:
        # No Status can be shown any more: the connection speaks another protocol by now.
        log.exception("tunnel of %s broke", request.path)
    finally:
        OPEN.dec()
        client.close()
    return TakenOver()


def path_with_query(path: str, query: str) -> str:
    """Join an encoded path and query."""
    return f"{path}?{query}" if query else path
