"""An asyncio client of one Kubernetes cluster: raw requests and streams, and JSON conveniences.

Errors are StatusError (what the apiserver said) or MemberUnreachable (it did not answer as one). A 401
renews the credentials once. `reconnect` changes credentials or server in place: the object stays valid. Where the
access is to a part of a server (`shape`), every request keeps to that part.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
from multidict import CIMultiDict
from opentelemetry.trace import SpanKind
from yarl import URL

from services.common import telemetry
from services.common.errors import CredentialsRefused, MemberUnreachable, StatusError, from_client_error
from services.common.kube import kubeconfig as kc
from services.common.kube.credentials import Credentials, CredentialsError
from services.common.kube.look import Look
from services.common.kube.objects import (
    APPLY_PATCH,
    JSON,
    MERGE_PATCH,
    ObjectApi,
    Query,
    Response,
    encode_query,
)  # fmt: skip
from services.common.kube.shape import Shape, confine, confine_document, is_document, keep_below, shape_of
from services.common.kube.transport import Transport, sending
from services.common.kube.tunnel import open_tunnel

__all__ = [
    "APPLY_PATCH", "JSON", "MERGE_PATCH", "KubeClient", "Kubeconfig", "Query", "Response", "encode_query",
]  # fmt: skip

log = logging.getLogger(__name__)

Kubeconfig = bytes | Mapping[str, Any] | Path
CONNECT_TIMEOUT = 6.0
MAX_OBJECT = 8 << 20
"""Longest object that is taken from a cluster: an API server takes 3 MiB from its clients, etcd 1.5."""
MAX_ANSWER = 128 << 20
"""Longest answer that is read as a whole, lists of the host included."""
MAX_ERROR = 1 << 20
"""Longest answer with a status of 400 and above."""


async def _whole(response: aiohttp.ClientResponse, longest: int, what: str) -> bytes:
    """The answer's body; MemberUnreachable above `longest` bytes."""
    parts: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > longest:
            raise MemberUnreachable(f"{what}: its answer is longer than {longest} bytes")
        parts.append(chunk)
    return b"".join(parts)


class KubeClient(ObjectApi):
    """One cluster. Make it by `connect`; close it when done. Safe for any number of concurrent requests."""

    def __init__(self, credentials: Credentials, *, name: str, user_agent: str, source: Path | None) -> None:
        self.name = name
        self.user_agent = user_agent
        self.source = source
        """File that the access is read from, where it is one; an empty path is the pod's service account."""
        self._closed = False
        self._renewing: asyncio.Task[None] | None = None
        self._said = ""
        self._use(credentials)
        self._transport = Transport(credentials.tls)
        self._outlived: list[Transport] = []
        """What `renew` replaced, while something is still answered on it."""
        self.looking_at = f"{self.label}: GET /version"
        """What `look` calls itself in errors."""
        self.look = Look(lambda: self.request("GET", "/version", timeout=CONNECT_TIMEOUT, check=False), self.looking_at)
        """Does it answer now?"""

    def _use(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self.server = credentials.server
        self.shape: Shape = shape_of(credentials.kubeconfig)
        """What of the server is the cluster."""
        parts = urlsplit(credentials.server)
        self.host_header = parts.netloc.rpartition("@")[2]
        self.base_path = parts.path.rstrip("/")
        """Path of the server's URL, to be put before every path on sockets of `open_socket`."""

    @classmethod
    async def connect(
        cls, kubeconfig: Kubeconfig, *, name: str, user_agent: str = "reclock"
    ) -> KubeClient:
        """Make a client; does not contact the cluster (exec plugins run at the first request).

        Raises kubeconfig.KubeconfigError. An empty Path is the pod's own service account.
        """
        source = kubeconfig if isinstance(kubeconfig, Path) else None
        single = await asyncio.to_thread(kc.resolve, kubeconfig) if source is not None else kc.resolve(kubeconfig)
        credentials = Credentials(single)
        if not credentials.renewable:
            await credentials.refresh()
        return cls(credentials, name=name, user_agent=user_agent, source=source)

    async def reconnect(self, kubeconfig: Kubeconfig) -> None:
        """Take other credentials or another server; streams of the old ones go on for a while, then break.

        Waits for nobody: not for a plugin that is making credentials of before either.
        """
        fresh = await KubeClient.connect(kubeconfig, name=self.name)
        if self._renewing is not None:
            self._renewing.cancel()
        self.source = fresh.source
        self._use(fresh._credentials)
        self._swap(fresh._transport)

    def _swap(self, transport: Transport) -> None:
        old, self._transport = self._transport, transport
        outlived, self._outlived = self._outlived, []
        for one in (old, *outlived):
            one.retire()

    def renew(self) -> None:
        """Send what follows over new connections: those that are kept may be dead, and nobody was told. What is being
        answered on the others goes on."""
        if self._closed:
            return
        old, self._transport = self._transport, Transport(self._transport.tls)
        old.retire(breaking=False)
        self._outlived = [one for one in (*self._outlived, old) if not one.closed]

    async def close(self) -> None:
        """Break all streams and connections; idempotent."""
        self._closed = True
        if self._renewing is not None:
            self._renewing.cancel()
        self.look.close()
        for one in (self._transport, *self._outlived):
            await one.close()

    def _renewal(self, *, refused: str | None = None) -> asyncio.Task[None]:
        """The task that renews the credentials now; all who need them wait for the same one.

        `refused`: the server does not take that Authorization, though it has not ended.
        """
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renew(refused), name=f"{self.label}/credentials")
            self._renewing.add_done_callback(self._renewed)
        return self._renewing

    def _renewed(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and str(error) != self._said:
            log.warning("%s: credentials cannot be renewed: %s", self.label, error)
        if not task.cancelled():
            self._said = str(error) if error is not None else ""

    async def _renew(self, refused: str | None) -> None:
        current = self._credentials
        if refused is not None:
            if self.source is not None:
                # The file may have been rotated since it was read. As it was, it keeps its connections: a cluster that
                # refuses us must not make us break every stream to it.
                found = await asyncio.to_thread(kc.resolve, self.source)
                if not current.is_of(found):
                    current = Credentials(found)
                elif not current.renewable:
                    return
            elif not current.renewable:
                return
        await current.refresh()
        if current.tls is not self._transport.tls:
            self._swap(Transport(current.tls))
        self._use(current)

    async def _await(self, task: asyncio.Task[None], limit: float | None) -> None:
        """Wait for a renewal, not longer than `limit` seconds; it goes on without us."""
        done, _ = await asyncio.wait({task}, timeout=limit)
        if self._closed:
            raise MemberUnreachable(f"{self.label}: its connection is closed")
        if not done:
            raise CredentialsError("its plugin has not answered yet")
        if not task.cancelled():
            task.result()

    async def _ready(self, limit: float | None) -> Credentials:
        if self._closed:
            raise MemberUnreachable(f"{self.label}: its connection is closed")
        while self._credentials.expired:
            seen = self._credentials
            await self._await(self._renewal(), limit)
            if self._credentials is seen:  # else others came meanwhile, which may be to be had yet
                return seen
        if self._credentials.due:
            self._renewal()
        return self._credentials

    @property
    def certificate_end(self) -> datetime | None:
        """When our client certificate ends; None without one."""
        return self._credentials.certificate_end

    @property
    def label(self) -> str:
        """Name for people: the host has none."""
        return f"cluster {self.name}" if self.name else "host"

    async def auth_headers(self) -> dict[str, str]:
        """Headers that authenticate us (none with a client certificate); renewed when they expire."""
        credentials = await self._fresh(f"{self.label}: credentials")
        return {"Authorization": credentials.authorization} if credentials.authorization else {}

    async def _fresh(self, what: str, limit: float | None = None) -> Credentials:
        try:
            return await self._ready(limit)
        except kc.KubeconfigError as error:
            raise MemberUnreachable(f"{what}: {error}") from error

    def target(self, method: str, path_qs: str) -> str:
        """Path and query to write on a socket of `open_socket`; StatusError for what is not the cluster's."""
        path, mark, query = path_qs.partition("?")
        keep_below(self.base_path, path)
        if self.shape.namespace:
            path, query = confine(method, path, query, self.shape.namespace)
        return f"{self.base_path}{path}{mark if query else ''}{query}"

    def _url(self, method: str, path: str, query: Query) -> URL:
        text = encode_query(query)
        keep_below(self.base_path, path)
        if self.shape.namespace:
            path, text = confine(method, path, text, self.shape.namespace)
        return URL(f"{self.server}{path}?{text}" if text else f"{self.server}{path}", encoded=True)

    async def _send(
        self, method: str, path: str, query: Query, body: bytes | None, headers: Mapping[str, str] | None,
        timeout: aiohttp.ClientTimeout, raw: bool, what: str, renew: bool = True,
    ) -> tuple[aiohttp.ClientResponse, Transport]:  # fmt: skip
        """Send, renewing the credentials once on a 401; the caller must leave the transport."""
        for attempt in (0, 1):
            credentials = await self._fresh(what, timeout.total)
            out = CIMultiDict({"User-Agent": self.user_agent, "Accept": JSON})
            if headers:
                # Not `update`: a name may come several times (Impersonate-Group), in a plain dict spelled with other
                # capitals. aiohttp keeps repeated names only where they are spelled alike.
                for key in headers:
                    out.pop(key, None)
                for key, value in headers.items():
                    out.add(key.title(), value)
            sent = credentials.authorization
            if sent:
                out["Authorization"] = sent
            telemetry.inject(out)
            url = self._url(method, path, query)
            transport = self._transport
            transport.enter()
            try:
                response = transport.reads(await transport.session.request(
                    method, url, data=body, headers=out, timeout=timeout,
                    proxy=credentials.proxy, server_hostname=credentials.server_name,
                    allow_redirects=False, auto_decompress=not raw, middlewares=sending(method),
                ))  # fmt: skip
            except BaseException as error:
                transport.leave()
                if isinstance(error, aiohttp.ClientError | TimeoutError | OSError):
                    raise from_client_error(error, what) from error
                raise
            once = body is not None and not isinstance(body, bytes)  # a stream: what was sent is gone
            final = attempt or once or not renew
            if response.status != 401 or final or not await self._refused(credentials, sent, timeout.total):
                return response, transport
            response.close()
            transport.leave(response)
        raise AssertionError("unreachable")

    async def _refused(self, seen: Credentials, authorization: str, limit: float | None) -> bool:
        """Renew credentials that got a 401 unless another request just did; is there something new to try?"""
        tls = seen.tls
        if self._credentials is seen and seen.authorization == authorization:
            try:
                await self._await(self._renewal(refused=authorization), limit)
            except kc.KubeconfigError:
                return False
        now = self._credentials
        return now is not seen or now.authorization != authorization or now.tls is not tls

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Query = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30,
        check: bool = True,
        longest: int = MAX_ANSWER,
    ) -> Response:
        """Send one request and read the whole answer within `timeout` seconds.

        `path` and a str `query` are taken encoded. With `check` an answer >= 400 is raised as StatusError. An answer of
        more than `longest` bytes is MemberUnreachable: whatever sends it, memory is bounded.
        """
        limit = aiohttp.ClientTimeout(total=timeout, sock_connect=min(CONNECT_TIMEOUT, timeout))
        what = f"{self.label}: {method} {path}"
        with telemetry.span(
            f"{method} {self.label}", kind=SpanKind.CLIENT, cluster=self.name, path=path, method=method
        ) as span:
            response, transport = await self._send(method, path, query, body, headers, limit, False, what)
            try:
                data = await _whole(response, longest, what)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise from_client_error(error, what) from error
            finally:
                response.close()
                transport.leave(response)
            span.set_attribute("http.response.status_code", response.status)
        if self.shape.namespace and response.status == 200 and is_document(path):
            data = _confined(data)
        if check and response.status >= 400:
            raise self._failure(response, data, what)
        return Response(response.status, response.headers, data)

    def _failure(self, response: aiohttp.ClientResponse, data: bytes, what: str) -> StatusError:
        error = StatusError.from_response(
            response.status, data, what=what, retry_after=response.headers.get("Retry-After")
        )
        error.warnings = tuple(response.headers.getall("Warning", ()))
        return CredentialsRefused(self.label, error) if error.code == 401 else error

    @asynccontextmanager
    async def _stream(
        self, method: str, path: str, query: Query, body: bytes | None, headers: Mapping[str, str] | None,
        timeout: float | None, sock_read: float | None, raw: bool, check: bool, renew: bool,
    ) -> AsyncIterator[aiohttp.ClientResponse]:  # fmt: skip
        limit = aiohttp.ClientTimeout(total=timeout, sock_connect=CONNECT_TIMEOUT, sock_read=sock_read)
        what = f"{self.label}: {method} {path}"
        with telemetry.span(
            f"{method} {self.label}", kind=SpanKind.CLIENT, cluster=self.name, path=path, method=method
        ):
            response, transport = await self._send(method, path, query, body, headers, limit, raw, what, renew)
            try:
                if check and response.status >= 400:
                    raise self._failure(response, await _whole(response, MAX_ERROR, what), what)
                yield response
            except aiohttp.ClientError as error:
                raise from_client_error(error, what) from error
            finally:
                response.close()
                transport.leave(response)

    def stream(
        self,
        method: str,
        path: str,
        *,
        query: Query = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        sock_read: float | None = None,
        raw: bool = False,
        check: bool = True,
        renew: bool = True,
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Open a request whose answer is read as it comes; no total timeout by default.

        `sock_read` is the longest silence in seconds (MemberUnreachable after it); `raw` leaves
        Content-Encoding as it is; `renew`: a 401 is the apiserver's, about our credentials. Leaving the block before the end closes the connection.
        """
        return self._stream(method, path, query, body, headers, timeout, sock_read, raw, check, renew)

    async def open_socket(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection of its own (TLS; through `proxy-url` by CONNECT), for upgrades.

        The caller writes the request: `base_path`, `host_header` and `auth_headers` belong in it.
        """
        what = f"{self.label}: tunnel"
        credentials = await self._fresh(what)
        try:
            return await open_tunnel(credentials)
        except (OSError, TimeoutError, EOFError) as error:
            raise from_client_error(error, what) from error


def _confined(data: bytes) -> bytes:
    """A discovery document without the types that are not served here; anything else as it is."""
    if b'"APIResourceList"' not in data and b'"APIGroupDiscoveryList"' not in data:
        return data
    try:
        return msgspec.json.encode(confine_document(msgspec.json.decode(data)))
    except msgspec.DecodeError:
        return data
