"""A KubeClient without sockets: straight into a simulated cluster, in whatever time the event loop has.

    world = World(7, now=loop.time); driver = Driver(world, loop)
    member = Member("east", uid=east.uid, reachable=True, ready=True, client=SimClient(east))

Fault rules of the cluster are played as the HTTP server plays them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl, unquote

from multidict import CIMultiDict, CIMultiDictProxy

from deploy.local.sim import Cluster, Request, Rule, WatchResponse
from deploy.local.sim import Response as Answer
from deploy.local.sim.faults import spoil
from services.common.errors import MemberUnreachable, StatusError
from services.common.kube.client import MAX_ANSWER
from services.common.kube.look import Look
from services.common.kube.objects import ObjectApi, Query, Response, encode_query

_ANSWER_SECONDS = 10.0
_LOOK_SECONDS = 0.2
BOOKMARK_SECONDS = 60.0


class SimClient(ObjectApi):
    """One cluster; offers what the services use of a KubeClient. `closed` breaks everything that is open."""

    def __init__(self, cluster: Cluster, name: str | None = None) -> None:
        self.cluster = cluster
        self.name = cluster.name if name is None else name
        self.server = f"sim://{cluster.name}"
        self.user_agent = "reclock"
        self.requests = 0
        self.look = Look(lambda: self.request("GET", "/version", timeout=_ANSWER_SECONDS, check=False), self.looking_at)

    @property
    def label(self) -> str:
        return f"cluster {self.name}" if self.name else "host"

    @property
    def looking_at(self) -> str:
        """As KubeClient's: what `look` does, in its errors."""
        return f"{self.label}: GET /version"

    async def request(
        self, method: str, path: str, *, query: Query = None, body: bytes | None = None,
        headers: Mapping[str, str] | None = None, timeout: float = 30, check: bool = True,
        longest: int = MAX_ANSWER,
    ) -> Response:  # fmt: skip
        """As KubeClient's."""
        what = f"{self.label}: {method} {path}"
        async with _limited(timeout, what):
            answer, rule = await self._ask(method, path, query, body, headers)
            if not isinstance(answer, Answer):
                raise MemberUnreachable(f"{what}: a stream where an answer belongs")
            data = answer.body
            if rule is not None and rule.kind == "garbage":
                data = await _spoiled(rule, data, what)
        if len(data) > longest:
            raise MemberUnreachable(f"{what}: its answer is longer than {longest} bytes")
        if check and answer.status >= 400:
            raise StatusError.from_response(
                answer.status, data, what=what, retry_after=answer.headers.get("Retry-After")
            )
        return Response(answer.status, _headers(answer), data)

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, *, query: Query = None, body: bytes | None = None,
        headers: Mapping[str, str] | None = None, timeout: float | None = None, sock_read: float | None = None,
        raw: bool = False, check: bool = True, renew: bool = True,
    ) -> AsyncIterator[SimStream]:  # fmt: skip
        """As KubeClient's; what it yields has `status`, `headers`, `content` and `read`."""
        what = f"{self.label}: {method} {path}"
        async with _limited(timeout, what):
            async with _limited(sock_read, what):
                answer, rule = await self._ask(method, path, query, body, headers)
            stream = SimStream(answer, rule, sock_read, what)
            try:
                if check and stream.status >= 400:
                    raise StatusError.from_response(stream.status, await stream.read(), what=what)
                yield stream
            finally:
                stream.close()

    def renew(self) -> None:
        """As KubeClient's: each request is on a connection of its own."""

    async def close(self) -> None:
        """Nothing but who wonders whether it answers."""
        self.look.close()

    async def _ask(
        self, method: str, path: str, query: Query, body: bytes | None, headers: Mapping[str, str] | None
    ) -> tuple[Any, Rule | None]:
        self.requests += 1
        await asyncio.sleep(0)  # an answer never comes in the turn of its request
        known = {name.lower(): value for name, value in (headers or {}).items()}
        known.setdefault("user-agent", self.user_agent)
        pairs = dict(parse_qsl(encode_query(query), keep_blank_values=True))
        request = Request(method, unquote(path), pairs, known, body or b"")
        rule = self.cluster.faults.decide(*self.cluster.verb(request)) if self.cluster.faults.rules else None
        if rule is not None:
            await _before(rule, f"{self.label}: {method} {path}")
            if rule.kind == "error":
                return Answer(rule.status, b'{"kind":"Status","message":"simulated failure"}'), rule
        return self.cluster.handle(request), rule


@asynccontextmanager
async def _limited(seconds: float | None, what: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise MemberUnreachable(f"{what}: no answer in time") from None


async def _before(rule: Rule, what: str) -> None:
    if rule.kind == "delay":
        await asyncio.sleep(rule.seconds)
    elif rule.kind == "hang":
        while not rule.lifted:  # noqa: ASYNC110 - rules are lifted from synchronous code
            await asyncio.sleep(_LOOK_SECONDS)
        raise MemberUnreachable(f"{what}: the connection was cut")
    elif rule.kind == "refuse":
        raise MemberUnreachable(f"{what}: the connection was refused")


async def _spoiled(rule: Rule, data: bytes, what: str) -> bytes:
    if rule.garbage == "endless":
        while not rule.lifted:  # noqa: ASYNC110 - as above
            await asyncio.sleep(_LOOK_SECONDS)
        raise MemberUnreachable(f"{what}: the connection was cut")
    if rule.garbage == "half":
        raise MemberUnreachable(f"{what}: the answer ended early")
    return spoil(data, rule.garbage)


def _headers(answer: Answer) -> CIMultiDictProxy[str]:
    return CIMultiDictProxy(CIMultiDict({**answer.headers, "Content-Type": answer.content_type}))


class SimStream:
    """What of an aiohttp.ClientResponse the services read; its own `content` too."""

    def __init__(self, answer: Any, rule: Rule | None, sock_read: float | None, what: str) -> None:
        self._answer = answer
        self._garbage = rule if rule is not None and rule.kind == "garbage" else None
        self._sock_read = sock_read
        self._what = what
        self._done = False
        self.content = self
        self.status = answer.status if isinstance(answer, Answer) else 200
        self.headers = (
            _headers(answer)
            if isinstance(answer, Answer)
            else CIMultiDictProxy(CIMultiDict({"Content-Type": "application/json"}))
        )
        self._end = asyncio.get_running_loop().time() + getattr(answer, "timeout", 0.0)

    def close(self) -> None:
        if isinstance(self._answer, WatchResponse):
            self._answer.watch.close()

    async def read(self) -> bytes:
        """Everything to the end."""
        return b"".join([chunk async for chunk in self.iter_any()])

    async def iter_any(self) -> AsyncIterator[bytes]:
        while chunk := await self.readany():
            yield chunk

    async def readany(self) -> bytes:
        """The next piece; b"" at the end. Raises MemberUnreachable when the connection breaks or stays silent."""
        await asyncio.sleep(0)
        async with _limited(self._sock_read, self._what):
            data = await self._next()
        if data and self._garbage is not None:
            self._done = True
            return await _spoiled(self._garbage, data, self._what)
        return data

    async def _next(self) -> bytes:
        if isinstance(self._answer, Answer):
            data, self._done = b"" if self._done else self._answer.body, True
            return data
        if self._done:
            return b""
        return await self._events(self._answer)

    async def _events(self, answer: WatchResponse) -> bytes:
        watch, loop = answer.watch, asyncio.get_running_loop()
        changed = asyncio.Event()
        watch.wake = changed.set
        while True:
            if events := watch.take():
                return b"".join([answer.frames.frame(event) for event in events])
            if watch.closed:
                self._done = True
                if watch.reason == "dropped":
                    raise MemberUnreachable(f"{self._what}: the connection was cut")
                return b""
            left = self._end - loop.time()
            if left <= 0:
                watch.bookmark()
                watch.close("timeout")
                continue
            changed.clear()
            try:
                async with asyncio.timeout(min(left, BOOKMARK_SECONDS)):
                    await changed.wait()
            except TimeoutError:
                watch.bookmark()
