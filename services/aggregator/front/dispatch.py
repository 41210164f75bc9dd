"""Sends each authenticated request where it belongs."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Protocol

from aiohttp import web

from services.aggregator.front.authz import Authorizer, attributes_of
from services.aggregator.front.documents import Documents
from services.aggregator.front.health import Health, is_public
from services.aggregator.front.identity import host_headers
from services.aggregator.front.limits import check_body, read_body
from services.aggregator.front.members import Members
from services.aggregator.front.notices import is_service, may_create, notice, notice_of_service
from services.aggregator.front.relay import encoded_target
from services.aggregator.front.request_info import is_watch_prefix
from services.aggregator.front.server import MAX_BODY, FrontRequest
from services.aggregator.front.tunnel import TUNNELS, path_with_query, tunnel
from services.aggregator.types import Aggregated, Call
from services.common.errors import StatusError, method_not_allowed, not_found, unavailable
from services.common.kube.client import KubeClient

if TYPE_CHECKING:
    from services.aggregator.aggregations import Aggregations
    from services.aggregator.pages import Pages
    from services.aggregator.reads import Reads
    from services.aggregator.reads.versionmarkers import VersionMarkers
    from services.aggregator.writes import Writes

READS = frozenset({"get", "list", "watch"})
WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
COLLECTIONS = frozenset({"create", "deletecollection"})
RECLOCK = "reclock.dev"
SOURCES = "/reclock/sources"
TOP = "/reclock/top"
_PLAIN = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._:~@=+,;!$&'()*-]*")
"""Parts of a path that stand for themselves in a URL; empty where there is none."""
_NOT_ALLOWED = "the server does not allow this method on the requested resource"
_NOT_FOUND = "the server could not find the requested resource"


class MarkerReads(Protocol):
    """What the front calls for `versionmarkers`."""

    async def get(self, call: Call) -> web.StreamResponse: ...
    async def list(self, call: Call) -> web.StreamResponse: ...
    async def watch(self, call: Call) -> web.StreamResponse: ...


class Dispatch:
    """Routes calls; every handler behind it may raise StatusError."""

    def __init__(
        self,
        *,
        host: KubeClient,
        authorizer: Authorizer,
        members: Members,
        documents: Documents,
        health: Health,
        aggregations: Aggregations,
        reads: Reads,
        writes: Writes,
        version_markers: VersionMarkers,
        pages: Pages | None,
    ) -> None:
        self._host = host
        self._authorizer = authorizer
        self._members = members
        self._documents = documents
        self._health = health
        self._aggregations = aggregations
        self._reads = reads
        self._writes = writes
        self._markers = version_markers
        self._pages = pages
        self._running: set[asyncio.Task[web.StreamResponse | StatusError]] = set()

    def is_stream(self, call: Call) -> bool:
        """Whether the call lasts: it is limited apart from others."""
        info = call.info
        return info.verb == "watch" or (info.is_resource and info.subresource in TUNNELS)

    async def serve(self, call: Call) -> web.StreamResponse:
        """Answer a call."""
        info = call.info
        if info.cluster is not None:
            return await self._members.direct(call)
        if not info.is_resource:
            return await self._non_resource(call)
        aggregated = self._aggregations.lookup(info.group, info.resource)
        if aggregated is not None:
            await self._authorizer.require(call.user, attributes_of(info))
            return await self._aggregated(call, aggregated)
        if info.group == RECLOCK and info.resource == "versionmarkers":
            await self._authorizer.require(call.user, attributes_of(info))
            return await self._version_markers(call)
        page = (info.resource, info.subresource) if info.group == RECLOCK else ("", "")
        if page == ("workloads", "explain") and self._pages is not None:
            await self._authorizer.require(call.user, attributes_of(info))
            return await self._pages.explain(call)
        if page == ("clusters", "forget") and self._pages is not None:
            await self._authorizer.require(call.user, attributes_of(info))
            return await self._pages.forget(call)
        if (holder := self._members.node_cluster(info)) is not None:
            return await self._members.node_lease(call, holder)
        if reason := self._aggregations.unsettled(info.group, info.resource):
            raise unavailable(reason, retry_after=1)
        return await self.to_host(call)

    async def to_host(self, call: Call) -> web.StreamResponse:
        """The host's answer, byte for byte; its own authorisation judges the user, whom we impersonate."""
        request = _front(call)
        media_type = request.headers.get("Content-Type", "")
        text = notice(call.info, media_type)
        if is_service(call.info) and may_create(call.info, media_type):
            text = notice_of_service(await _known_body(request))
        if text := text or self._members.notice(call.info):
            call.warnings.append(text)
        return await tunnel(call, self._host, path_with_query(*encoded_target(request)), host_headers(call.user))

    async def drain(self, limit: float) -> None:
        """Wait for writes in hand."""
        if self._running:
            await asyncio.wait(self._running, timeout=limit)

    async def _non_resource(self, call: Call) -> web.StreamResponse:
        path, request = call.info.path, _front(call)
        if is_public(path):
            return await self._health.serve(request, path)
        if path == "/metrics":
            await self._authorizer.require(call.user, attributes_of(call.info))
            return self._health.metrics()
        if path == SOURCES and self._pages is not None:
            await self._authorizer.require(call.user, attributes_of(call.info))
            return await self._pages.sources(call)
        if path == TOP and self._pages is not None:
            await self._authorizer.require(call.user, attributes_of(call.info))
            return await self._pages.top(call)
        operations = self._pages.operations if self._pages is not None else None
        if operations is not None and operations.knows(path):
            await self._authorizer.require(call.user, attributes_of(call.info))
            return await operations.serve(call)
        if self._documents.knows(call.info.verb, path):
            await self._authorizer.require(call.user, attributes_of(call.info))
            return await self._documents.serve(call)
        return await self.to_host(call)

    async def _aggregated(self, call: Call, aggregated: Aggregated) -> web.StreamResponse:
        info = call.info
        if info.namespace and not aggregated.namespaced:
            raise StatusError(404, "NotFound", _NOT_FOUND)
        _require_plain(call)
        if info.verb != "create" or aggregated.create != "Host":
            self._members.require_fleet()
        if not await self._documents.serves(aggregated, info.group, info.version):
            raise StatusError(404, "NotFound", _NOT_FOUND)
        if aggregated.namespaced and not info.namespace and info.verb not in ("list", "watch"):
            if info.verb in COLLECTIONS:
                raise method_not_allowed(_NOT_ALLOWED)
            raise StatusError(404, "NotFound", _NOT_FOUND)
        if info.verb == "create" and info.name and not info.subresource:
            raise method_not_allowed(_NOT_ALLOWED)
        if info.subresource in TUNNELS:
            return await self._members.object_tunnel(call, aggregated)
        if info.subresource:
            if info.verb in READS:
                return await self._writes.subresource(call, aggregated)
            await check_body(_front(call), info.verb)
            return await self._shielded(self._writes.subresource, call, aggregated)
        if info.verb in READS:
            return await self._read(call, aggregated)
        if info.verb not in WRITES:
            raise method_not_allowed(_NOT_ALLOWED)
        await check_body(_front(call), info.verb)
        return await self._shielded(getattr(self._writes, info.verb), call, aggregated)

    async def _read(self, call: Call, aggregated: Aggregated) -> web.StreamResponse:
        verb = call.info.verb
        if verb == "watch":
            if is_watch_prefix(call.info.path):
                _as_query(call)
            return await self._reads.watch(call, aggregated)
        if verb == "list" and (text := self._aggregations.warning(aggregated)):
            call.warnings.append(text)
        return await (self._reads.get if verb == "get" else self._reads.list)(call, aggregated)

    async def _version_markers(self, call: Call) -> web.StreamResponse:
        info = call.info
        if info.verb not in READS or info.subresource:
            raise method_not_allowed(_NOT_ALLOWED)
        handler = {"get": self._markers.get, "list": self._markers.list, "watch": self._markers.watch}[info.verb]
        return await handler(call)

    async def _shielded(self, handler: Writer, call: Call, aggregated: Aggregated) -> web.StreamResponse:
        """Run a write to its end, also when its client leaves: half a create would keep its claim."""

        async def run() -> web.StreamResponse | StatusError:
            try:
                return await handler(call, aggregated)
            except StatusError as error:
                return error

        task = asyncio.get_running_loop().create_task(run(), name=f"front/{call.info.verb} {call.info.path}")
        call.rest = task
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        outcome = await asyncio.shield(task)
        if isinstance(outcome, StatusError):
            raise outcome
        return outcome


class Writer(Protocol):
    async def __call__(self, call: Call, aggregated: Aggregated) -> web.StreamResponse: ...


async def _known_body(request: FrontRequest) -> bytes | None:
    """The body, if its length is known: it is kept then, and passed on as well. A stream could be read once only."""
    length = request.content_length
    return await read_body(request) if length is not None and length <= MAX_BODY else None


def _front(call: Call) -> FrontRequest:
    assert isinstance(call.request, FrontRequest)
    return call.request


def _require_plain(call: Call) -> None:
    """404 for a path that would mean another one on a member.

    The members' paths are put together from its parts. "%3F" in a namespace would make a query of all that follows:
    deleting the pods of `web?` would delete the namespace `web`, with Reclock's rights. No object has such a name.
    """
    info = call.info
    if not all(_PLAIN.fullmatch(part) for part in (info.version, info.namespace, info.subresource)):
        raise StatusError(404, "NotFound", _NOT_FOUND)
    # The name of a list comes from its field selector and stands in no path.
    if info.verb not in ("list", "watch") and not _PLAIN.fullmatch(info.name):
        raise not_found(info.resource, info.name, info.group)


def _as_query(call: Call) -> None:
    """Rewrite a deprecated `/api/v1/watch/…` request to `?watch=true`, the only form that reads know."""
    url = call.request.rel_url
    parts = call.info.path.split("/")  # decoded: "watch" may have come encoded
    parts.remove("watch")
    query = {"watch": "true"}
    if call.info.name and "metadata.name" not in url.query.get("fieldSelector", ""):
        query["fieldSelector"] = f"metadata.name={call.info.name}"
        parts.pop()
    rewritten = call.request.clone(rel_url=url.with_path("/".join(parts)).with_query(url.query).update_query(query))
    assert isinstance(rewritten, FrontRequest)
    rewritten.call = call
    call.request = rewritten
