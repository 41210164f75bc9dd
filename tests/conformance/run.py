"""One run of a scenario on one engine: requests that are recorded, helpers that are not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from deploy.local.api import Api
from deploy.local.sim import Cluster, Request, WatchResponse, World
from deploy.local.sim import Response as SimResponse

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
PARTIAL_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
MERGE, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
STRATEGIC, APPLY = "application/strategic-merge-patch+json", "application/apply-patch+yaml"
_PATIENCE = 15.0


@dataclass
class Asked:
    """One request."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Got:
    """Its answer."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def decoded(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            return self.body.decode(errors="replace").strip()


class Lines(Protocol):
    """A watch's events."""

    async def next(self) -> bytes | None:
        """The next line; None at the end."""


class Engine(Protocol):
    """A cluster to be asked."""

    async def ask(self, asked: Asked) -> Got: ...

    def stream(self, asked: Asked) -> AbstractAsyncContextManager[Lines]: ...

    async def pause(self) -> None:
        """Lets its controllers work."""


class SimEngine:
    """A simulated cluster, without sockets and in virtual time."""

    def __init__(self, world: World, cluster: Cluster) -> None:
        self._world = world
        self._cluster = cluster

    def _request(self, asked: Asked) -> Request:
        headers = {name.lower(): value for name, value in asked.headers.items()}
        return Request(asked.method, asked.path, asked.query, headers, asked.body or b"")

    async def ask(self, asked: Asked) -> Got:
        answer = self._cluster.handle(self._request(asked))
        assert isinstance(answer, SimResponse), asked
        return Got(answer.status, answer.body, {"Content-Type": answer.content_type, **answer.headers})

    @asynccontextmanager
    async def stream(self, asked: Asked) -> AsyncIterator[Lines]:
        answer = self._cluster.handle(self._request(asked))
        assert isinstance(answer, WatchResponse), answer
        yield _SimLines(answer)
        answer.watch.close()

    async def pause(self) -> None:
        self._world.advance(0.1)


class _SimLines:
    def __init__(self, answer: WatchResponse) -> None:
        self._answer = answer

    async def next(self) -> bytes | None:
        events = self._answer.watch.take(1)
        return self._answer.frames.frame(events[0]) if events else None


class HttpEngine:
    """An API server, as an administrator."""

    def __init__(self, session: aiohttp.ClientSession, api: Api) -> None:
        self._session = session
        self._api = api

    def _open(self, asked: Asked) -> Any:
        return self._session.request(
            asked.method, self._api.server + asked.path, params=asked.query, data=asked.body,
            headers={"User-Agent": "conformance/1", **asked.headers}, ssl=self._api.tls,
        )  # fmt: skip

    async def ask(self, asked: Asked) -> Got:
        async with self._open(asked) as response:
            return Got(response.status, await response.read(), dict(response.headers))

    @asynccontextmanager
    async def stream(self, asked: Asked) -> AsyncIterator[Lines]:
        async with self._open(asked) as response:
            assert response.status == 200, await response.read()
            yield _HttpLines(response)

    async def pause(self) -> None:
        await asyncio.sleep(0.1)


class _HttpLines:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def next(self) -> bytes | None:
        try:
            async with asyncio.timeout(_PATIENCE):
                return await self._response.content.readline() or None
        except TimeoutError:
            return None


@dataclass
class Run:
    """A scenario's way to the engine. `steps` are its records: what was asked and what came."""

    engine: Engine
    namespace: str
    steps: list[dict[str, Any]] = field(default_factory=list)

    def path(self, plural: str, name: str = "", group: str = "", version: str = "v1", sub: str = "") -> str:
        """The path in the scenario's namespace."""
        root = f"/apis/{group}/{version}" if group else f"/api/{version}"
        parts = [root, "namespaces", self.namespace, plural, name, sub]
        return "/".join(part for part in parts if part)

    async def quietly(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json", **query: str
    ) -> Any:
        """A request that is not recorded, which must succeed; its decoded body."""
        got = await self.engine.ask(self._asked(method, path, body, content_type, "application/json", query))
        assert got.status < 300, (method, path, got)
        return got.decoded

    async def ask(
        self, method: str, path: str, body: Any = None, *, content_type: str = "application/json",
        accept: str = "application/json", **query: str,
    ) -> Got:  # fmt: skip
        """A recorded request."""
        got = await self.engine.ask(self._asked(method, path, body, content_type, accept, query))
        shown = {name: value for name, value in query.items() if name not in ("resourceVersion", "continue_")}
        said = f"{method} {path.replace(self.namespace, 'NS')} {json.dumps(shown, sort_keys=True) if shown else ''}"
        kept = {name: got.headers[name] for name in ("Content-Type", "Retry-After") if name in got.headers}
        self.steps.append({"asked": said.strip(), "status": got.status, "headers": kept, "body": got.decoded})
        return got

    def _asked(
        self, method: str, path: str, body: Any, content_type: str, accept: str, query: Mapping[str, str]
    ) -> Asked:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {"Accept": accept, "User-Agent": "conformance/1"}
        if data is not None:
            headers["Content-Type"] = content_type
        # aiohttp takes no trailing underscores for us: `continue_` is `continue`.
        return Asked(method, path, {name.rstrip("_"): value for name, value in query.items()}, data, headers)

    @asynccontextmanager
    async def watching(
        self, path: str, *, accept: str = "application/json", **query: str
    ) -> AsyncIterator[Callable[[int], Any]]:
        """A watch; what it gives takes so many events and records them."""
        asked = self._asked("GET", path, None, "", accept, {"watch": "1", **query})
        async with self.engine.stream(asked) as lines:

            async def take(count: int) -> list[Any]:
                events = []
                for _ in range(count):
                    line = await lines.next()
                    if line is None:
                        break
                    events.append(json.loads(line))
                shown = {name: value for name, value in query.items() if name != "resourceVersion"}
                said = f"WATCH {path.replace(self.namespace, 'NS')} {json.dumps(shown, sort_keys=True)}"
                self.steps.append({"asked": said, "events": events})
                return events

            yield take

    async def until(self, path: str, is_so: Callable[[Any], bool], status: int = 200) -> Any:
        """Asks, unrecorded, until the answer is so."""
        got = Got(0, b"")
        for _ in range(150):
            got = await self.engine.ask(self._asked("GET", path, None, "", "application/json", {}))
            if got.status == status and is_so(got.decoded):
                return got.decoded
            await self.engine.pause()
        raise AssertionError(f"{path}: {got}")


RECORDED = Path(__file__).parent / "recorded"
Scenario = Callable[[Run], Any]


async def play(engine: Engine, name: str, scenario: Scenario) -> list[dict[str, Any]]:
    """Runs a scenario in a namespace of its own; its normalised steps."""
    from tests.conformance.normalise import normalise

    run = Run(engine, f"conformance-{name}")
    await run.until(
        f"/api/v1/namespaces/{run.namespace}", lambda _: True, status=404
    )  # of an earlier recording
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": run.namespace}}
    await run.quietly("POST", "/api/v1/namespaces", namespace)
    await run.until(run.path("serviceaccounts", "default"), lambda _: True)
    await run.until(run.path("configmaps", "kube-root-ca.crt"), lambda _: True)
    try:
        await scenario(run)
    finally:
        await run.quietly("DELETE", f"/api/v1/namespaces/{run.namespace}")
    return normalise(run.steps, run.namespace)


def recorded(name: str) -> list[dict[str, Any]]:
    """What kube-apiserver answered."""
    found: list[dict[str, Any]] = json.loads((RECORDED / f"{name}.json").read_text())
    return found


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Where two values differ, in words; steps are named by what was asked."""
    if isinstance(one, dict) and isinstance(other, dict):
        found = []
        path = f"{path} {one['asked']} " if "asked" in one else path
        for key in sorted({*one, *other}, key=str):
            if key not in one or key not in other:
                found.append(f"{path}.{key}: {one.get(key, '-')!r} | {other.get(key, '-')!r}")
            else:
                found += differences(one[key], other[key], f"{path}.{key}")
        return found
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [
            d
            for n, pair in enumerate(zip(one, other, strict=True))
            for d in differences(*pair, f"{path}[{n}]")
        ]
    return [] if one == other else [f"{path}: {one!r} | {other!r}"]
