"""Passes a request on to a cluster and its answer back, streamed, with hop-by-hop headers left out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import cast

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from services.aggregator.away import WhileAnswering
from services.aggregator.front.limits import read_body
from services.aggregator.front.server import MAX_BODY, FrontRequest
from services.aggregator.front.tokens import without_token
from services.common.errors import (
    CredentialsRefused,
    MemberUnreachable,
    StatusError,
    decode_status,
    unauthorized,
)
from services.common.kube.client import KubeClient
from services.common.kube.shape import is_document

HOP_BY_HOP = frozenset({
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade",
})  # fmt: skip
_OURS = HOP_BY_HOP | {"host", "content-length", "authorization", "expect", "sec-websocket-protocol"}
"""Not passed on: of this connection, or replaced by our own."""
_IDENTITY = ("impersonate-", "x-remote-")
"""Never passed on from a client: they would name a user."""

BUFFER_LIMIT = 256 * 1024
"""Answers of known length up to this are sent in one piece."""


def request_headers(request: web.BaseRequest, extra: Mapping[str, str] | None = None) -> CIMultiDict[str]:
    """Headers to pass on; `extra` (who the user is) is added last."""
    named = _named_by_connection(request.headers.getall("Connection", ()))
    out: CIMultiDict[str] = CIMultiDict()
    for key, value in request.headers.items():
        lowered = key.lower()
        if lowered in _OURS or lowered in named or lowered.startswith(_IDENTITY):
            continue
        out.add(key, value)
    if protocols := without_token(request):
        out["Sec-WebSocket-Protocol"] = protocols
    if request.remote:
        before = out.pop("X-Forwarded-For", "")
        out["X-Forwarded-For"] = f"{before}, {request.remote}" if before else request.remote
    if extra:
        out.extend(extra)
    return out


def response_headers(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Headers of an answer to pass back."""
    return CIMultiDict((key, value) for key, value in headers.items() if key.lower() not in HOP_BY_HOP)


def _named_by_connection(values: Iterable[str]) -> frozenset[str]:
    return frozenset(part.strip().lower() for value in values for part in value.split(","))


async def relay(
    request: FrontRequest,
    client: KubeClient,
    path: str,
    query: str,
    *,
    identity: Mapping[str, str] | None = None,
    silence: float | None = None,
    proxied: bool = False,
    away: Callable[[], bool] = lambda: False,
) -> web.StreamResponse:
    """Send the request to `path` of a cluster, as `identity` (impersonation headers), and stream the answer.

    Status, headers and bytes stay as they are. Raises MemberUnreachable while nothing has been sent, also after
    `silence` seconds without a byte; `proxied`: a pod's own server answers, and may say 401 for itself; `away`: is the cluster known not to answer? Later the connection is broken off, which is how HTTP shows an answer cut short.
    """
    headers = request_headers(request, identity)
    headers.setdefault("Audit-Id", request.audit_id)
    if client.shape.namespace and request.method == "GET" and is_document(path):
        return await _document(client, path, query, headers)
    body = await request_body(request)
    # No limit on the whole: watches and logs last; the cluster ends what should end.
    async with WhileAnswering(client, away, request.method) as wait, client.stream(
        request.method, path, query=query, body=body, headers=headers, raw=True, check=False, sock_read=silence,
        renew=not proxied,
    ) as upstream:
        wait.answered()
        if upstream.status == 401 and not (proxied and await _is_foreign(upstream)):
            raise own_credentials_refused(client)
        return await send_back(request, upstream)


async def _document(client: KubeClient, path: str, query: str, headers: Mapping[str, str]) -> web.Response:
    """A discovery document of a cluster that is one namespace: as a whole, for types that it lacks are left out."""
    answer = await client.request("GET", path, query=query, headers=headers, check=False)
    if answer.status == 401:
        raise own_credentials_refused(client)
    kept = {key: value for key in ("Content-Type", "Vary") if (value := answer.headers.get(key))}
    return web.Response(status=answer.status, headers=kept, body=answer.body)


def own_credentials_refused(client: KubeClient) -> StatusError:
    """A cluster's 401 is about Reclock's own credentials: the client would take it for its own."""
    return CredentialsRefused(client.label, unauthorized()).outside()


async def _is_foreign(upstream: aiohttp.ClientResponse) -> bool:
    """Whether a 401 came from behind the apiserver: its own is a Status."""
    length = upstream.content_length
    return length is None or length > BUFFER_LIMIT or decode_status(await upstream.read()) is None


async def send_back(request: FrontRequest, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
    """Stream an answer to the client as it comes."""
    headers = response_headers(upstream.headers)
    length = upstream.content_length
    if request.method != "HEAD" and length is not None and length <= BUFFER_LIMIT:
        headers.popall("Content-Length", None)
        return web.Response(
            status=upstream.status, reason=upstream.reason, headers=headers, body=await upstream.read()
        )
    response = web.StreamResponse(status=upstream.status, reason=upstream.reason, headers=headers)
    await response.prepare(request)
    try:
        async for chunk in upstream.content.iter_any():
            await response.write(chunk)
    except (aiohttp.ClientError, MemberUnreachable) as error:
        raise ConnectionAbortedError("the cluster broke its answer off") from error
    await response.write_eof()
    return response


async def request_body(request: FrontRequest) -> bytes | None:
    """The body to pass on: None without one, bytes up to what Kubernetes takes, a stream beyond that."""
    if not request.body_exists:
        return None
    length = request.content_length
    if length is not None and length <= MAX_BODY:
        return await read_body(request)
    # Uploads into a pod's own server may be of any size. KubeClient hands the body to aiohttp, which takes iterators.
    return cast(bytes, _chunks(request))


async def _chunks(request: FrontRequest) -> AsyncIterator[bytes]:
    async for chunk in request.content.iter_any():
        yield chunk


def encoded_target(request: FrontRequest) -> tuple[str, str]:
    """Path and query as they stand in the request line (absolute-form targets reduced to their path)."""
    url = request.rel_url
    return url.raw_path, url.raw_query_string
