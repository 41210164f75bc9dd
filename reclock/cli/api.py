"""Calls through the front, with the user's own kubeconfig and rights."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import aiohttp
from kubernetes_asyncio import client, config

T = TypeVar("T")

GROUP = "/apis/reclock.dev/v1alpha1"
MERGE = "application/merge-patch+json"
DEMO = Path(".reclock/kubeconfig")


class CliError(Exception):
    """What is wrong and what to do, in one line."""


def kubeconfig_path(given: str | None) -> str:
    """The kubeconfig to use: the flag, $KUBECONFIG, the demo's in this directory, or the user's."""
    if given:
        return given
    if from_environment := os.environ.get("KUBECONFIG"):
        return from_environment
    return str(DEMO if DEMO.exists() else Path.home() / ".kube" / "config")


class Api:
    """A connection to the front."""

    def __init__(self, api: client.ApiClient, path: str) -> None:
        self._api = api
        self.path = path
        self.server = str(api.configuration.host)

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
        url = self.server + path + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": "application/json"}
        await self._api.update_params_for_auth(headers, [], ["BearerToken"])
        if body is not None:
            headers["Content-Type"] = kind
        try:
            answer = await self._api.rest_client.pool_manager.request(
                method, url, headers=headers, data=None if body is None else json.dumps(body)
            )
            text = await answer.text()
        except (aiohttp.ClientError, OSError) as error:
            raise CliError(
                f"{self.server} does not answer ({error}); is the fleet up? Its kubeconfig is {self.path}"
            ) from error
        return _decode(answer.status, text, path)

    async def lines(
        self, method: str, path: str, query: dict[str, str] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """The lines of an answer that goes on for as long as the work does. CliError as `call`."""
        url = self.server + path + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": "application/json"}
        await self._api.update_params_for_auth(headers, [], ["BearerToken"])
        request = self._api.rest_client.pool_manager.request(
            method, url, headers=headers, timeout=aiohttp.ClientTimeout(total=None, sock_connect=10)
        )
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
            raise CliError(f"{self.server} does not answer ({error}); its kubeconfig is {self.path}") from error
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
    settings = client.Configuration()
    try:
        await config.load_kube_config(path, client_configuration=settings)
    except (config.ConfigException, OSError) as error:
        raise CliError(
            f"kubeconfig {path} cannot be used: {error}; name one by --kubeconfig or KUBECONFIG"
        ) from error
    async with client.ApiClient(settings) as api:
        return await work(Api(api, path))
