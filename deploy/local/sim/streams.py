"""Logs, exec and attach of simulated pods over HTTP.

Logs are computed from the pod's start time, so that they cost nothing: one line at the start, one every five seconds.
Exec runs a command of this machine in an empty directory, as the `kube` engine's nodes do.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

from aiohttp import web

from deploy.local.sim.channels import PROTOCOLS, Channels
from deploy.local.sim.cluster import Cluster
from deploy.local.sim.commands import run
from deploy.local.sim.errors import bad_request
from deploy.local.sim.represent import error_bytes
from deploy.local.sim.requests import StreamResponse
from deploy.local.sim.timers import parse_timestamp
from deploy.local.sim.world import World

_TICK_SECONDS = 5.0
_SPDY = (
    "the simulated cluster speaks the WebSocket protocols v4 and v5.channel.k8s.io only, not SPDY: use kubectl >= 1.31 "
    "(or KUBECTL_REMOTE_COMMAND_WEBSOCKETS=true)"
)
_NO_FORWARD = "the simulated cluster has nothing to forward a port to: use the kube engine for port-forward"


class Streams:
    """Carries out what the pure core answers with a StreamResponse."""

    def __init__(self, world: World, home: Path | None) -> None:
        self._world = world
        self._home = home

    async def serve(self, cluster: Cluster, answer: StreamResponse, http: web.Request) -> web.StreamResponse:
        """One whole stream."""
        if answer.kind == "empty":
            return web.Response(text="")
        if answer.kind == "log":
            return await self._log(cluster, answer, http)
        if answer.kind == "portforward":
            return _refused(_NO_FORWARD)
        if http.headers.get("Upgrade", "").lower() != "websocket":
            return _refused(_SPDY)
        socket = web.WebSocketResponse(protocols=PROTOCOLS, heartbeat=None)
        await socket.prepare(http)
        channels = Channels(socket)
        if answer.kind == "attach":
            await self._attach(cluster, answer, channels)
        else:
            command = http.rel_url.query.getall("command", [])
            await run(command, channels, dict(answer.query), cluster.name, self._directory(cluster.name))
        await channels.close()
        return socket

    def _directory(self, name: str) -> Path:
        if self._home is None:
            self._home = Path(tempfile.mkdtemp(prefix="reclock-sim-"))
        found = self._home / name
        found.mkdir(parents=True, exist_ok=True)
        return found

    async def _attach(self, cluster: Cluster, answer: StreamResponse, channels: Channels) -> None:
        sending = asyncio.ensure_future(self._send_lines(cluster, answer, channels))
        try:
            await channels.closed.wait()
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _send_lines(self, cluster: Cluster, answer: StreamResponse, channels: Channels) -> None:
        async for line in self._lines(cluster, answer, {"follow": "true", "tailLines": "1"}):
            await channels.send(1, line)

    async def _log(self, cluster: Cluster, answer: StreamResponse, http: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        response.enable_chunked_encoding()
        await response.prepare(http)
        with contextlib.suppress(ConnectionError):
            async for line in self._lines(cluster, answer, answer.query):
                await response.write(line)
            await response.write_eof()
        return response

    async def _lines(
        self, cluster: Cluster, answer: StreamResponse, query: Mapping[str, str]
    ) -> AsyncIterator[bytes]:
        now = self._world.timers.now
        lines = log_lines(cluster, answer.namespace, answer.name, now(), query)
        for line in lines:
            yield line
        if query.get("follow") not in ("true", "1"):
            return
        last = now()
        while cluster.core.find(cluster.type("pods"), answer.namespace, answer.name) is not None:
            span = life(cluster, answer.namespace, answer.name)
            if span is None:
                return
            start, end = span
            upcoming = start + ((last - start) // _TICK_SECONDS + 1) * _TICK_SECONDS
            if end is not None and upcoming > end:
                return
            await asyncio.sleep(min(0.5, max(0.0, upcoming - now())))
            if now() >= upcoming:
                last = upcoming
                yield _line(upcoming, f"tick {round((upcoming - start) / _TICK_SECONDS)}", query)


def life(cluster: Cluster, namespace: str, name: str) -> tuple[float, float | None] | None:
    """(when the pod's containers started, when they ended or None); None when they never started."""
    status = cluster.get("pods", namespace, name).get("status") or {}
    for one in status.get("containerStatuses") or ():
        state = one.get("state") or {}
        if "running" in state:
            return parse_timestamp(state["running"]["startedAt"]), None
        if "terminated" in state:
            ended = state["terminated"]
            return parse_timestamp(ended["startedAt"]), parse_timestamp(ended["finishedAt"])
    return None


def log_lines(
    cluster: Cluster, namespace: str, name: str, now: float, query: Mapping[str, str]
) -> list[bytes]:
    """What the pod's container has written so far, cut as the query says."""
    span = life(cluster, namespace, name)
    if span is None:
        return []
    start, end = span
    times = list(_times(start, now if end is None else min(now, end)))
    texts = [f"container started on cluster {cluster.name}", *(f"tick {n}" for n in range(1, len(times)))]
    entries = list(zip(times, texts, strict=True))
    since = query.get("sinceSeconds", "")
    if since.isdigit():
        entries = [entry for entry in entries if entry[0] >= now - int(since)]
    tail = query.get("tailLines", "")
    if tail.isdigit():
        entries = entries[len(entries) - min(len(entries), int(tail)) :]
    return [_line(when, text, query) for when, text in entries]


def _times(start: float, end: float) -> Iterator[float]:
    when = start
    while when <= end:
        yield when
        when += _TICK_SECONDS


def _line(when: float, text: str, query: Mapping[str, str]) -> bytes:
    from deploy.local.sim.timers import micro_timestamp

    stamp = f"{micro_timestamp(when)[:-1]}000Z " if query.get("timestamps") in ("true", "1") else ""
    return f"{stamp}{text}\n".encode()


def _refused(why: str) -> web.Response:
    return web.Response(status=400, body=error_bytes(bad_request(why)), content_type="application/json")
