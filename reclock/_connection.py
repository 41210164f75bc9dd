"""The one HTTP connection pool to the front. Workers hold no credentials of members: every cluster is behind it."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import aiohttp
from opentelemetry import propagate

from reclock._errors import ReclockError, from_answer, from_transport
from reclock._settings import Settings

if TYPE_CHECKING:
    from kubernetes_asyncio.client import ApiClient

CONNECT_SECONDS = 10.0
TOKEN_SECONDS = 60.0
"""How long a token read from a file is used before it is read again."""

Query = Mapping[str, str | int | bool | None]


class Connection:
    """Made by `open`; shared by all clients of a fleet. `close` ends every request and watch."""

    def __init__(self, api: ApiClient, settings: Settings) -> None:
        self._api = api
        self._settings = settings
        self._session: aiohttp.ClientSession = api.rest_client.pool_manager
        self._token = ""
        self._token_until = 0.0
        self.server = str(api.configuration.host).rstrip("/")

    @classmethod
    async def open(cls, settings: Settings) -> Connection:
        """Read the credentials; the front is not asked yet. ReclockError when they cannot be read."""
        # Imported here: it takes a second and 40 MB, which the stubs' other users have no use for.
        from kubernetes_asyncio import client, config

        configuration = client.Configuration()
        if settings.front:
            configuration.host = settings.front
            configuration.ssl_ca_cert = settings.ca_file or None
        elif isinstance(settings.kubeconfig, Mapping):
            await config.load_kube_config_from_dict(
                dict(settings.kubeconfig), client_configuration=configuration
            )
        else:
            try:
                await config.load_kube_config(str(settings.kubeconfig), client_configuration=configuration)
            except (config.ConfigException, OSError) as error:
                raise ReclockError(
                    f"kubeconfig {settings.kubeconfig} cannot be used: {error}; name one by KUBECONFIG, or a front by "
                    f"RECLOCK_FRONT"
                ) from error
        configuration.connection_pool_maxsize = 0  # one watch for each cluster and type: no limit of ours
        try:
            return cls(client.ApiClient(configuration), settings)
        except OSError as error:
            raise ReclockError(f"the certificates for {configuration.host} cannot be read: {error}") from error

    async def close(self) -> None:
        """Break all requests and watches; idempotent."""
        await self._api.close()

    async def authorization(self) -> str:
        """The value of the Authorization header; empty with a client certificate."""
        if self._settings.front:
            return await self._file_token()
        headers: dict[str, str] = {}
        await self._api.update_params_for_auth(headers, [], ["BearerToken"])
        return headers.get("authorization") or headers.get("Authorization") or ""

    def renew(self) -> None:
        """The token was refused: read the file again before it is used once more."""
        self._token_until = 0.0

    async def _file_token(self) -> str:
        path = self._settings.token_file
        if not path:
            return ""
        now = time.monotonic()
        if now >= self._token_until:
            try:
                self._token = (await asyncio.to_thread(Path(path).read_text)).strip()
            except OSError as error:
                raise ReclockError(f"token_file {path}: {error.strerror}") from error
            self._token_until = now + TOKEN_SECONDS
        return f"Bearer {self._token}"

    async def _headers(self, accept: str, content_type: str) -> dict[str, str]:
        headers = {"Accept": accept, "User-Agent": self._settings.user_agent}
        if content_type:
            headers["Content-Type"] = content_type
        if token := await self.authorization():
            headers["Authorization"] = token
        propagate.inject(headers)
        return headers

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: bytes | None = None,
        content_type: str = "",
        accept: str = "application/json",
        timeout: float = 30.0,
    ) -> bytes:
        """One request; returns the whole answer. Raises ApiError; Unreachable after `timeout` seconds."""
        what = f"{method} {path}"
        limit = aiohttp.ClientTimeout(total=timeout, sock_connect=min(CONNECT_SECONDS, timeout))
        headers = await self._headers(accept, content_type)
        try:
            async with self._session.request(
                method, self._url(path, query), data=body, headers=headers, timeout=limit, allow_redirects=False,
                server_hostname=self._api.rest_client.server_hostname, proxy=self._api.rest_client.proxy,
            ) as answer:  # fmt: skip
                data = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise from_transport(error, what) from error
        if answer.status >= 400:
            raise from_answer(answer.status, data, what, answer.headers.get("Retry-After"))
        return data

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Query, silence: float, accept: str = "application/json"
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """A GET whose answer is read line by line; `silence` seconds without a byte are Unreachable."""
        what = f"GET {path}"
        limit = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=silence)
        headers = await self._headers(accept, "")
        try:
            async with self._session.request(
                "GET", self._url(path, query), headers=headers, timeout=limit, allow_redirects=False,
                server_hostname=self._api.rest_client.server_hostname, proxy=self._api.rest_client.proxy,
            ) as answer:  # fmt: skip
                if answer.status >= 400:
                    raise from_answer(answer.status, await answer.read(), what, answer.headers.get("Retry-After"))
                yield _lines(answer)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise from_transport(error, what) from error

    def _url(self, path: str, query: Query | None) -> str:
        given = {key: _text(value) for key, value in (query or {}).items() if value not in (None, "")}
        return f"{self.server}{path}?{urlencode(given)}" if given else f"{self.server}{path}"

    def typed(self, prefix: str) -> ApiClient:
        """A kubernetes_asyncio ApiClient of its own whose server is ours with `prefix`; the caller closes it."""
        from kubernetes_asyncio import client

        configuration = copy.copy(self._api.configuration)
        configuration.host = f"{self.server}{prefix}"
        return client.ApiClient(configuration)


class NoFront(Connection):
    """Stands where a front would: every call of it fails."""

    def __init__(self, token: str) -> None:
        self._own_token = token
        self.server = ""

    async def close(self) -> None:
        """Nothing is open."""

    async def authorization(self) -> str:
        """See Connection."""
        return f"Bearer {self._own_token}" if self._own_token else ""

    async def request(self, method: str, path: str, **_: Any) -> bytes:
        """Fails."""
        raise ReclockError(f"{method} {path}: this worker has no front")

    @asynccontextmanager
    async def stream(self, path: str, **_: Any) -> AsyncIterator[AsyncIterator[bytes]]:
        """Fails."""
        raise ReclockError(f"GET {path}: this worker has no front")
        yield  # makes it a generator, as its base is

    def typed(self, prefix: str) -> ApiClient:
        """Fails."""
        raise ReclockError(f"{prefix}: this worker has no front")


def _text(value: str | int | bool | None) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Lines of any length (aiohttp's own reading of lines has a limit)."""
    rest = bytearray()
    async for chunk in answer.content.iter_any():
        rest += chunk
        while (end := rest.find(b"\n")) >= 0:
            line = bytes(rest[:end])
            del rest[: end + 1]
            if line:
                yield line
