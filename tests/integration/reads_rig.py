"""Reads on a real clock and etcd, with small members, and informers that follow them over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import aiohttp
from aiohttp import web

from services.aggregator.front.errors import response as error_response
from services.aggregator.front.request_info import parse
from services.aggregator.reads import Reads
from services.aggregator.types import Call
from services.common.errors import StatusError
from services.common.kube.client import KubeClient
from services.common.kube.reviews import User
from tests.integration.clock_member import FakeMember, _status
from tests.integration.clock_rig import FLEET, PODS, Rig
from tests.integration.etcd_server import EtcdServer

Key = tuple[str, str]


class Member(FakeMember):
    """Serves single objects too."""

    async def start(self) -> None:
        app = web.Application(handler_args={"handler_cancellation": True})
        app.router.add_get("/api/v1", self._discovery)
        app.router.add_get("/apis", self._groups)
        app.router.add_get("/api/v1/pods", self._serve)
        app.router.add_get("/api/v1/namespaces/{ns}/pods/{name}", self._one)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        if self.member.client is None:
            self.member.client = await KubeClient.connect(self.kubeconfig(), name=self.name)
        self.member.uid, self.member.reachable = self.uid, True

    async def _one(self, request: web.Request) -> web.StreamResponse:
        if self.refuse:
            return _status(503, "ServiceUnavailable", "away")
        one = self.objects.get((request.match_info["ns"], request.match_info["name"]))
        return web.json_response(one.json()) if one else _status(404, "NotFound", "not found")


class Owners:
    """Nothing is owned here."""

    def outgoing(self, cluster: str, uids: Any) -> dict[str, str | None]:
        return {}

    def incoming(self, cluster: str) -> dict[str, str]:
        return {}

    def object_uids(self, cluster: str) -> dict[str, str]:
        return {}


class ReadsRig(Rig):
    """A Rig with a server of Reads before it, which lives as long as the clock."""

    def __init__(self, etcd: EtcdServer, **options: Any) -> None:
        super().__init__(etcd, **options)
        self.reads: Reads | None = None
        self._server: web.ServerRunner | None = None
        self.port = 0

    async def add(self, *names: str) -> list[FakeMember]:
        out: list[FakeMember] = []
        for name in names:
            one = self.members[name] = Member(name)
            await one.start()
            await self.fleet.engage(one.member)
            out.append(one)
        return out

    async def up(self) -> None:
        """Clock and server."""
        await self.ready()
        assert self.clock is not None
        self.reads = Reads(
            self.clock, Owners(), fleet_id=FLEET, token_secret=b"secret", identity=lambda call, aggregated: {}  # type: ignore[arg-type]
        )  # fmt: skip
        self._server = web.ServerRunner(web.Server(self._serve, handler_cancellation=True), shutdown_timeout=0.05)
        await self._server.setup()
        site = web.TCPSite(self._server, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]

    async def down(self, *, kill: bool) -> None:
        """End both; `kill` as by a signal that cannot be caught."""
        if self._server is not None:
            for connection in list(self._server.server.connections):  # type: ignore[union-attr]
                if connection.transport is not None:
                    connection.transport.abort()
            await self._server.cleanup()
        if kill and self.clock is not None:
            await self.kill()
        if self.reads is not None:
            await self.reads.close()
        if not kill:
            await self.close()
        self._server = self.reads = None

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        info = parse(request.method, request.rel_url.raw_path, request.rel_url.raw_query_string)
        try:
            assert self.reads is not None
            return await getattr(self.reads, info.verb)(Call(request, info, User("jane")), PODS)  # type: ignore[arg-type]
        except StatusError as error:
            return error_response(error)


class Informer:
    """As client-go's: lists, watches from the list's version, resumes from the last event, relists on 410."""

    def __init__(self, rig: ReadsRig, *, watch_list: bool, query: str = "", retry: float = 0.02) -> None:
        self.rig, self.watch_list, self.query, self.retry = rig, watch_list, query, retry
        self.store: dict[Key, dict[str, Any]] = {}
        self.version = ""
        self.relists = 0
        self.problems: list[str] = []
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        async with aiohttp.ClientSession() as http:
            while True:
                with contextlib.suppress(aiohttp.ClientError, ConnectionError):
                    if not self.version and not self.watch_list:
                        await self._list(http)
                    else:
                        await self._watch(http)
                await asyncio.sleep(self.retry)

    def _url(self, query: str) -> str:
        return f"http://127.0.0.1:{self.rig.port}/api/v1/pods?{query}{self.query}"

    async def _list(self, http: aiohttp.ClientSession) -> None:
        async with http.get(self._url("")) as answer:
            body = await answer.json(content_type=None)
            if answer.status != 200:
                return
        self.relists += 1
        self.store = {self._key(obj): obj for obj in body["items"]}
        if len(self.store) != len(body["items"]):
            self.problems.append("a key twice in a list")
        self.version = body["metadata"]["resourceVersion"]

    async def _watch(self, http: aiohttp.ClientSession) -> None:
        query = "watch=1&allowWatchBookmarks=true&"
        begun = bool(self.version)
        query += f"resourceVersion={self.version}" if begun else (
            "sendInitialEvents=true&resourceVersionMatch=NotOlderThan")
        fresh: dict[Key, dict[str, Any]] = {}
        last = int(self.version or 0)
        async with http.get(self._url(query)) as answer:
            if answer.status != 200:
                return
            while line := await answer.content.readline():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    self.version = "" if event["object"]["code"] in (410, 504) else self.version
                    return
                meta = event["object"]["metadata"]
                number = int(meta["resourceVersion"])
                if not begun:
                    if event["type"] == "ADDED":
                        fresh[self._key(event["object"])] = event["object"]
                        continue
                    assert meta["annotations"] == {"k8s.io/initial-events-end": "true"}
                    begun, self.store, last = True, fresh, number
                    self.relists += 1
                elif event["type"] == "BOOKMARK":
                    if number < last:
                        self.problems.append(f"a bookmark {number} behind {last}")
                else:
                    self._take(event, number, last)
                last = max(last, number)
                self.version = str(last)

    def _take(self, event: dict[str, Any], number: int, last: int) -> None:
        if number <= last:
            self.problems.append(f"{event['type']} {number} after {last}")
        key = self._key(event["object"])
        if event["type"] == "DELETED":
            self.store.pop(key, None)
        else:
            self.store[key] = event["object"]

    @staticmethod
    def _key(obj: dict[str, Any]) -> Key:
        return obj["metadata"]["namespace"], obj["metadata"]["name"]

    def have(self) -> dict[Key, tuple[str, str, int]]:
        """key -> (cluster, uid, fleet version)."""
        return {
            key: (obj["metadata"]["annotations"]["reclock.dev/cluster"], obj["metadata"]["uid"],
                  int(obj["metadata"]["resourceVersion"]))
            for key, obj in self.store.items()
        }  # fmt: skip


def truth(rig: ReadsRig) -> dict[Key, tuple[str, str, int]]:
    """What merged views show now, as the markers have it."""
    out: dict[Key, tuple[str, str, int]] = {}
    for marker in rig.pods.iter_markers():
        out.setdefault((marker.namespace, marker.name), (marker.cluster, marker.uid, marker.fleet))
    return out
