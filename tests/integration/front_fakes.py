"""A host (and members) in this process, for tests of the front: reviews by tables, everything else echoed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

from services.aggregator.front.front import Front
from services.common.kube.client import KubeClient
from tests.kube.front_rig import Config, OneMember

USERS = {
    "alice-token": {
        "username": "alice",
        "uid": "u1",
        "groups": ["dev", "ops"],
        "extra": {"example.com/team": ["a", "b"]},
    },
    "root-token": {"username": "root", "groups": ["system:masters"]},
}
Raw = Callable[[asyncio.StreamReader, asyncio.StreamWriter, str], Awaitable[None]]


class FakeCluster:
    """An apiserver of sorts. `allow` decides access reviews; `routes` overrides paths; others are echoed."""

    def __init__(self) -> None:
        self.allow: Callable[[dict[str, Any]], bool] = lambda spec: False
        self.reviews: list[dict[str, Any]] = []
        self.tokens: list[str] = []
        self.requests: list[web.BaseRequest] = []
        self.routes: dict[str, Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]] = {}
        self.port = 0

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests.append(request)
        if request.path.endswith("/tokenreviews"):
            token = (await request.json())["spec"]["token"]
            self.tokens.append(token)
            user = USERS.get(token)
            return web.json_response(
                {"status": {"authenticated": bool(user), "user": user or {}}}, status=201
            )
        if request.path.endswith("/subjectaccessreviews"):
            spec = (await request.json())["spec"]
            self.reviews.append(spec)
            return web.json_response(
                {"status": {"allowed": self.allow(spec), "reason": "by table"}}, status=201
            )
        if request.path in self.routes:
            return await self.routes[request.path](request)
        body = await request.read()
        return web.json_response(
            {
                "method": request.method, "target": request.raw_path, "body": body.decode("latin-1"),
                "headers": [[key, value] for key, value in request.headers.items()],
            },
            headers={"X-Answered-By": "cluster", "Keep-Alive": "timeout=5"},
        )  # fmt: skip


async def connect(port: int, name: str = "", token: str = "reclock-secret") -> KubeClient:
    """A client of a plain HTTP server of this machine."""
    return await KubeClient.connect(
        {
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        },
        name=name,
    )  # fmt: skip


@asynccontextmanager
async def cluster(fake: FakeCluster, name: str = "") -> AsyncIterator[KubeClient]:
    """Serve a fake cluster and give its client."""
    server = web.Server(fake.handle)
    listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    fake.port = listener.sockets[0].getsockname()[1]
    client = await connect(fake.port, name)
    try:
        yield client
    finally:
        await client.close()
        listener.close()
        await server.shutdown(1)


@asynccontextmanager
async def raw_cluster(serve: Raw, name: str = "east") -> AsyncIterator[KubeClient]:
    """Serve bare connections: `serve` gets the request's head as text; yields a client of it."""
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            await serve(reader, writer, head)
        finally:
            writer.close()
            tasks.discard(task)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    client = await connect(server.sockets[0].getsockname()[1], name)
    try:
        yield client
    finally:
        await client.close()
        server.close()
        for task in tasks:
            task.cancel()


class Served:
    """A running front (plain HTTP) and a session towards it."""

    def __init__(self, running: Front, port: int, session: aiohttp.ClientSession, member: OneMember) -> None:
        self.running, self.port, self.session, self.member = running, port, session, member

    async def ask(
        self, method: str, path: str, *, token: str | None = "alice-token", headers: dict[str, str] | None = None,
        data: bytes | None = None,
    ) -> tuple[int, Any, aiohttp.ClientResponse]:  # fmt: skip
        """Status, decoded body and the answer."""
        sent = dict(headers or {})
        if token:
            sent["Authorization"] = f"Bearer {token}"
        url = f"http://127.0.0.1:{self.port}{path}"
        async with self.session.request(method, url, headers=sent, data=data) as answer:
            body = await answer.read()
            try:
                return answer.status, json.loads(body), answer
            except ValueError:
                return answer.status, body, answer


@asynccontextmanager
async def front(host: KubeClient, member: OneMember, **options: Any) -> AsyncIterator[Served]:
    """Run a front."""
    running = member.front(Config(), host, **options)
    port = await running.start()
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        try:
            yield Served(running, port, session, member)
        finally:
            await running.stop()
