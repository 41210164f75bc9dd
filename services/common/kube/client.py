"""An asyncio client of one Kubernetes cluster: raw requests and streams, and JSON conveniences.

Errors are StatusError (what the apiserver said) or MemberUnreachable (it did not answer as one). A 401
renews the credentials once. `reconnect` changes credentials or server in place: the object stays valid.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from multidict import CIMultiDict
from opentelemetry.trace import SpanKind
from yarl import URL

from services.common import telemetry
from services.common.errors import MemberUnreachable, StatusError, from_client_error
from services.common.kube import kubeconfig as kc
from services.common.kube.credentials import Credentials
from services.common.kube.objects import (
    APPLY_PATCH,
    JSON,
    MERGE_PATCH,
    ObjectApi,
    Query,
    Response,
    encode_query,
)  # fmt: skip
from services.common.kube.transport import Transport
from services.common.kube.tunnel import open_tunnel

__all__ = [
    "APPLY_PATCH", "JSON", "MERGE_PATCH", "KubeClient", "Kubeconfig", "Query", "Response", "encode_query",
]  # fmt: skip

log = logging.getLogger(__name__)

Kubeconfig = bytes | Mapping[str, Any] | Path
CONNECT_TIMEOUT = 10.0


class KubeClient(ObjectApi):
    """One cluster. Make it by `connect`; close it when done. Safe for any number of concurrent requests."""

    def __init__(self, credentials: Credentials, *, name: str, user_agent: str, source: Path | None) -> None:
        self.name = name
        self.user_agent = user_agent
        self._source = source
        self._lock = asyncio.Lock()
        self._closed = False
        self._use(credentials)
        self._transport = Transport(credentials.tls)

    def _use(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self.server = credentials.server
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
        single = await asyncio.to_thread(kc.resolve, kubeconfig)
        credentials = Credentials(single)
        if not credentials.renewable:
            await credentials.refresh()
        return cls(credentials, name=name, user_agent=user_agent, source=source)

    async def reconnect(self, kubeconfig: Kubeconfig) -> None:
        """Take other credentials or another server; streams of the old ones go on for a while, then break."""
        fresh = await KubeClient.connect(kubeconfig, name=self.name)
        async with self._lock:
            self._source = fresh._source
            self._use(fresh._credentials)
            self._swap(fresh._transport)

    def _swap(self, transport: Transport) -> None:
        old, self._transport = self._transport, transport
        old.retire()

    async def close(self) -> None:
        """Break all streams and connections; idempotent."""
        self._closed = True
        await self._transport.close()

    async def _renew(self, seen: Credentials, authorization: str) -> bool:
        """Renew credentials unless another request just did; say whether there is something new to try."""
        async with self._lock:
            current = self._credentials
            if current is not seen or current.authorization != authorization:
                return True
            if self._source is not None:
                # The file may have been rotated since it was read. As it was, it keeps its connections: a cluster that
                # refuses us must not make us break every stream to it.
                found = await asyncio.to_thread(kc.resolve, self._source)
                if not current.is_of(found):
                    current = Credentials(found)
                elif not current.renewable:
                    return False
            elif not current.renewable:
                return False
            await current.refresh()
            changed = current.authorization != authorization or current.tls is not self._transport.tls
            if current.tls is not self._transport.tls:
                self._swap(Transport(current.tls))
            self._use(current)
            return changed

    async def _ready(self) -> Credentials:
        if self._closed:
            raise MemberUnreachable(f"{self.label}: its connection is closed")
        if self._credentials.expired:
            async with self._lock:
                current = self._credentials
                if current.expired:
                    await current.refresh()
                    if current.tls is not self._transport.tls:
                        self._swap(Transport(current.tls))
        return self._credentials

    @property
    def label(self) -> str:
        """Name for people: the host has none."""
        return f"cluster {self.name}" if self.name else "host"

    async def auth_headers(self) -> dict[str, str]:
        """Headers that authenticate us (none with a client certificate); renewed when they expire."""
        credentials = await self._fresh(f"{self.label}: credentials")
        return {"Authorization": credentials.authorization} if credentials.authorization else {}

    async def _fresh(self, what: str) -> Credentials:
        try:
            return await self._ready()
        except kc.KubeconfigError as error:
            raise MemberUnreachable(f"{what}: {error}") from error

    def _url(self, path: str, query: Query) -> URL:
        text = encode_query(query)
        return URL(f"{self.server}{path}?{text}" if text else f"{self.server}{path}", encoded=True)

    async def _send(
        self, method: str, path: str, query: Query, body: bytes | None, headers: Mapping[str, str] | None,
        timeout: aiohttp.ClientTimeout, raw: bool, what: str, renew: bool = True,
    ) -> tuple[aiohttp.ClientResponse, Transport]:  # fmt: skip
        """Send, renewing the credentials once on a 401; the caller must leave the transport."""
        for attempt in (0, 1):
            credentials = await self._fresh(what)
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
            transport = self._transport
            transport.enter()
            try:
                response = await transport.session.request(
                    method, self._url(path, query), data=body, headers=out, timeout=timeout,
                    proxy=credentials.proxy, server_hostname=credentials.server_name,
                    allow_redirects=False, auto_decompress=not raw,
                )  # fmt: skip
            except BaseException as error:
                transport.leave()
                if isinstance(error, aiohttp.ClientError | TimeoutError | OSError):
                    raise from_client_error(error, what) from error
                raise
            once = body is not None and not isinstance(body, bytes)  # a stream: what was sent is gone
            final = attempt or once or not renew
            if response.status != 401 or final or not await self._renewed(credentials, sent, what):
                return response, transport
            response.close()
            transport.leave()
        raise AssertionError("unreachable")

    async def _renewed(self, credentials: Credentials, sent: str, what: str) -> bool:
        try:
            return await self._renew(credentials, sent)
        except kc.KubeconfigError as error:
            log.warning("%s: credentials were refused and cannot be renewed: %s", what, error)
            return False

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
    ) -> Response:
        """Send one request and read the whole answer within `timeout` seconds.

        `path` and a str `query` are taken encoded. With `check` an answer >= 400 is raised as StatusError.
        """
        limit = aiohttp.ClientTimeout(total=timeout, sock_connect=min(CONNECT_TIMEOUT, timeout))
        what = f"{self.label}: {method} {path}"
        with telemetry.span(
            f"{method} {self.label}", kind=SpanKind.CLIENT, cluster=self.name, path=path, method=method
        ) as span:
            response, transport = await self._send(method, path, query, body, headers, limit, False, what)
            try:
                data = await response.read()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise from_client_error(error, what) from error
            finally:
                response.close()
                transport.leave()
            span.set_attribute("http.response.status_code", response.status)
        if check and response.status >= 400:
            raise StatusError.from_response(
                response.status, data, what=what, retry_after=response.headers.get("Retry-After")
            )
        return Response(response.status, response.headers, data)

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
                    data = await response.read()
                    raise StatusError.from_response(
                        response.status, data, what=what, retry_after=response.headers.get("Retry-After")
                    )
                yield response
            except aiohttp.ClientError as error:
                raise from_client_error(error, what) from error
            finally:
                response.close()
                transport.leave()

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
