"""`/reclock/markers/…`: figures, verification, rebuild and defragmentation, as lines of JSON while they go on.

Each line is an object with a `kind`; the last one is `Done`, or `Failed` with a message. Authorised by the front as
get or post of the path.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict
from typing import Any

import msgspec
from aiohttp import web

from services.aggregator.clock.clocks import Clocks
from services.aggregator.clock.rebuild import rebuild
from services.aggregator.clock.resource import ResourceClock
from services.aggregator.clock.stats import etcd_stats, resource_stats
from services.aggregator.clock.store import StartRefused
from services.aggregator.clock.verify import verify
from services.aggregator.types import Call
from services.common.errors import StatusError, bad_request, conflict, method_not_allowed, not_found
from services.common.etcd import EtcdError
from services.common.etcd_admin import EndpointState, defragment, disarm

ROOT = "/reclock/markers/"
Line = dict[str, Any]


class Operations:
    """`serve` answers a path that it `knows`."""

    def __init__(self, clocks: Clocks, fleet_id: str) -> None:
        self._clocks, self._fleet_id = clocks, fleet_id
        self._pages: dict[str, tuple[str, Callable[[Call], AsyncIterator[Line]]]] = {
            "fleet": ("GET", self._fleet), "stats": ("GET", self._stats), "verify": ("GET", self._verify),
            "rebuild": ("POST", self._rebuild), "defragment": ("POST", self._defragment),
        }  # fmt: skip

    def knows(self, path: str) -> bool:
        """Is this one of the pages?"""
        return path.startswith(ROOT) and path[len(ROOT) :] in self._pages

    async def serve(self, call: Call) -> web.StreamResponse:
        """Answer line by line. StatusError for what is refused before anything is done."""
        method, lines = self._pages[call.info.path[len(ROOT) :]]
        if call.request.method != method:
            raise method_not_allowed(f"{call.info.path} takes a {method}")
        self._check(call)
        response = web.StreamResponse()
        response.content_type = "application/x-ndjson"
        response.enable_chunked_encoding()
        await response.prepare(call.request)
        await self._stream(lines(call), response.write)
        await response.write_eof()
        return response

    async def _stream(self, lines: AsyncIterator[Line], write: Callable[[bytes], Awaitable[None]]) -> None:
        last: Line = {"kind": "Done"}
        try:
            async for line in lines:
                await write(msgspec.json.encode(line) + b"\n")
        except (EtcdError, StartRefused) as error:
            last = {"kind": "Failed", "message": str(error)}
        except StatusError as error:
            last = {"kind": "Failed", "message": error.message}
        await write(msgspec.json.encode(last) + b"\n")

    def _check(self, call: Call) -> None:
        if call.info.path.endswith("/rebuild"):
            given = call.query.get("fleetId", "")
            if not given:
                raise bad_request("rebuild takes the fleet's id as fleetId, so that no other fleet's markers go")
            if given != self._fleet_id:
                raise conflict("fleets", given, f"this is the fleet {self._fleet_id}")
        wanted = call.query.get("resource", "")
        if wanted and wanted not in self._clocks.resources:
            raise not_found("apiaggregations", wanted, "reclock.dev")

    def _chosen(self, call: Call) -> list[ResourceClock]:
        wanted = call.query.get("resource", "")
        return [one for key, one in sorted(self._clocks.resources.items()) if wanted in ("", key)]

    async def _fleet(self, call: Call) -> AsyncIterator[Line]:
        yield {"kind": "Fleet", "fleetId": self._fleet_id}

    async def _stats(self, call: Call) -> AsyncIterator[Line]:
        yield {"kind": "Fleet", "fleetId": self._fleet_id}
        for clock in self._clocks.each:
            yield {"kind": "Etcd", **await etcd_stats(clock)}
        for one in self._chosen(call):
            yield {"kind": "Resource", **await resource_stats(one)}

    async def _verify(self, call: Call) -> AsyncIterator[Line]:
        for one in self._chosen(call):
            yield {"kind": "Verifying", "resource": one.label}
            async for finding in verify(one):
                yield {"kind": type(finding).__name__, **asdict(finding)}

    async def _rebuild(self, call: Call) -> AsyncIterator[Line]:
        async for progress in rebuild(self._clocks):
            yield {"kind": "Rebuilt", **asdict(progress)}

    async def _defragment(self, call: Call) -> AsyncIterator[Line]:
        for clock in self._clocks.each:
            etcd = clock.context.store.etcd
            async for before, after in defragment(etcd):
                yield {"kind": "Defragmented", "before": _endpoint(before), "after": _endpoint(after)}
            for _ in await disarm(etcd):
                yield {"kind": "Disarmed"}
            await clock.upkeep.look()


def _endpoint(state: EndpointState) -> Line:
    return {"address": state.address, "sizeBytes": state.size, "usedBytes": state.used}
