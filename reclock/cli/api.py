"""Calls through the front, with the user's own kubeconfig and rights."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import urlencode

import aiohttp

from reclock._errors import reason_of
from reclock.cli.access import Access, KubeconfigError, access, kubeconfig_path

T = TypeVar("T")

GROUP = "/apis/reclock.dev/v1alpha1"
MERGE = "application/merge-patch+json"
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0


class CliError(Exception):
    """What is wrong and what to do, in one line."""


class Api:
    """A connection to the front."""

    def __init__(self, session: aiohttp.ClientSession, access: Access, path: str) -> None:
        self._session = session
        self._access = access
        self.path = path
        self.server = access.server

    def _request(self, method: str, path: str, query: dict[str, str] | None, **more: Any) -> Any:
        url = self.server + path + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": "application/json", **more.pop("headers", {})}
        if self._access.authorization:
            headers["Authorization"] = self._access.authorization
        return self._session.request(
            method, url, headers=headers, server_hostname=self._access.server_name, proxy=self._access.proxy, **more
        )

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: Any = None,
        kind: str = MERGE,
    ) -> Any:
        """One call; returns the decoded answer. CliError with the server's own words."""
        sent: dict[str, Any] = {"timeout": aiohttp.ClientTimeout(total=ANSWER_SECONDS, sock_connect=CONNECT_SECONDS)}
        if body is not None:
            sent |= {"data": json.dumps(body), "headers": {"Content-Type": kind}}
        try:
            async with self._request(method, path, query, **sent) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, OSError) as error:
            raise CliError(
                f"{self.server} does not answer ({reason_of(error)}); is the fleet up? Its kubeconfig is {self.path}"
            ) from error
        return _decode(answer.status, text, path)

    async def lines(
        self, method: str, path: str, query: dict[str, str] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """The lines of an answer that goes on for as long as the work does. CliError as `call`."""
        request = self._request(method, path, query, timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS))
        done = False
        try:
            async with request as answer:
                if answer.status >= 400:
                    _decode(answer.status, await answer.text(), path)
                async for text in answer.content:
                    line: dict[str, Any] = json.loads(text)
                    if line["kind"] == "Failed":
                        raise CliError(line["message"])
                    done = line["kind"] == "Done"
                    if not done:
                        yield line
        except (aiohttp.ClientError, OSError) as error:
            raise CliError(f"{self.server} does not answer ({reason_of(error)}); its kubeconfig is {self.path}") from error
        if not done:
            raise CliError(f"{path}: the answer ended before the work did")

    async def items(self, path: str, **query: str) -> list[dict[str, Any]]:
        """The items of a list."""
        answer = await self.call("GET", path, query=query or None)
        items: list[dict[str, Any]] = answer["items"]
        return items


def _decode(status: int, text: str, path: str) -> Any:
    try:
        answer = json.loads(text)
    except ValueError:
        raise CliError(f"{path}: HTTP {status}, and no JSON: is this server a Reclock front?") from None
    if status < 400:
        return answer
    message = answer.get("message", f"HTTP {status}")
    if status == 404 and "could not find the requested resource" in message:
        raise CliError("this server knows no reclock.dev: point --kubeconfig at a Reclock front")
    if status == 404 and path.startswith(f"{GROUP}/clusters/"):
        message += "; the fleet's clusters: reclock clusters"
    raise CliError(message)


def run(kubeconfig: str | None, work: Callable[[Api], Awaitable[T]]) -> T:
    """Connect, do the work, disconnect."""
    return asyncio.run(_run(kubeconfig, work))


async def _run(kubeconfig: str | None, work: Callable[[Api], Awaitable[T]]) -> T:
    path = kubeconfig_path(kubeconfig)
    try:
        found = await access(path)
    except KubeconfigError as error:
        raise CliError(
            f"kubeconfig {path} cannot be used: {error}; name one by --kubeconfig or KUBECONFIG"
        ) from error
    connector = aiohttp.TCPConnector(ssl=found.tls or True)
    # An object may be larger than aiohttp's lines.
    async with aiohttp.ClientSession(connector=connector, trust_env=True, read_bufsize=2**21) as session:
        return await work(Api(session, found, path))
