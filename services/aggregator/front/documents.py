"""Serves discovery and OpenAPI: the host's documents, with what only the front or the members serve added."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import re
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web
from multidict import CIMultiDict

from services.aggregator.front import discovery, openapi, own_types
from services.aggregator.front.discovery import Added
from services.aggregator.front.extras import Extras
from services.aggregator.front.server import FrontRequest
from services.aggregator.types import Aggregated, Call
from services.common.cache import LoadingCache
from services.common.errors import MemberUnreachable, StatusError
from services.common.fleet import FleetWatcher
from services.common.kube.client import KubeClient, Response

if TYPE_CHECKING:
    from services.aggregator.aggregations import Aggregations

JSON = "application/json"
PROTOBUF = "proto"
GZIP_FROM = 128 * 1024
"""Bytes from which answers are compressed for clients that take it, as Kubernetes does."""
OWN_HASH = hashlib.sha256(msgspec.json.encode(own_types.schema(""))).hexdigest().upper()[:16]
_MERGED_SECONDS = 600.0
LAST_LIMIT = 64
LAST_BYTES = 64 * 1024 * 1024
"""What may be kept for the host's absence: clients choose the Accept header, and so how many forms there are."""
_PLAIN = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]+")


class Documents:
    """Asks the host on every request (it answers from memory, by ETag) and merges; big merges are kept."""

    def __init__(self, host: KubeClient, fleet: FleetWatcher, aggregations: Aggregations) -> None:
        self._host = host
        self._extras = Extras(host, fleet, aggregations)
        self._merged: LoadingCache[tuple[str, ...], bytes] = LoadingCache(limit=16)
        self._last: dict[tuple[str, str], Response] = {}

    def knows(self, verb: str, path: str) -> bool:
        """Whether `path` (decoded) is a document that may differ from the host's.

        It is asked for with Reclock's own rights, so it must mean to the host what it says here: `v1%2Fsecrets`, which
        is left of `v1%252Fsecrets`, would be the list of all secrets there. What is not plain goes to the host as it came.
        """
        if verb not in ("get", "head"):
            return False
        parts = path.strip("/").split("/")
        if not all(map(_PLAIN.fullmatch, parts)):
            return False
        if parts[0] == "openapi":
            return len(parts) > 1 and parts[1] in ("v2", "v3")
        return (parts[0] == "apis" and len(parts) <= 3) or (parts[0] == "api" and len(parts) <= 2)

    async def serves(self, one: Aggregated, group: str, version: str) -> bool:
        """Whether an aggregated type is served in `version` of `group` by the host or a member."""
        return await self._extras.serves(one, group, version)

    async def serve(self, call: Call) -> web.Response:
        """Answer with the merged document; the host's errors as they are."""
        request = call.request
        assert isinstance(request, FrontRequest)
        parts = call.info.path.strip("/").split("/")
        if parts[0] == "openapi":
            serve = self._openapi_v2 if parts[1] == "v2" else self._openapi_v3
            body, media = await serve(request, parts[2:])
        else:
            body, media = await self._discovery(request, parts)
        return await self._answer(request, body, media)

    async def _answer(self, request: FrontRequest, body: bytes, media: str) -> web.Response:
        """200 with an ETag, or 304 for a client that has this very document."""
        tag = f'"{hashlib.sha256(body).hexdigest().upper()}"'
        headers: CIMultiDict[str] = CIMultiDict({"ETag": tag, "Vary": "Accept", "Content-Type": media})
        if tag in request.headers.get("If-None-Match", ""):
            return web.Response(status=304, headers=headers)
        if len(body) > GZIP_FROM and "gzip" in request.headers.get("Accept-Encoding", ""):

            async def compress() -> tuple[bytes, float]:
                return await asyncio.to_thread(gzip.compress, body, 4), _MERGED_SECONDS

            headers["Content-Encoding"] = "gzip"
            body = await self._merged.get(("gzip", tag), compress)
        return web.Response(body=body, headers=headers)

    async def _discovery(self, request: FrontRequest, parts: list[str]) -> tuple[bytes, str]:
        path = "/" + "/".join(parts)
        added = await self._extras.added()
        core = parts[0] == "api"
        if len(parts) == 1:
            answer = await self._ask(path, _json_only(request))
            media = answer.headers.get("Content-Type", JSON)
            mine = [one for one in added if bool(one.group) != core]
            if discovery.API_GROUP_DISCOVERY in media:
                return _encode(discovery.merge_aggregated(answer.json(), mine)), media
            return (answer.body, media) if core else (_encode(discovery.merge_groups(answer.json(), mine)), media)
        group = "" if core else parts[1]
        mine = [one for one in added if one.group == group]
        version = parts[-1] if core or len(parts) == 3 else ""
        if version:
            mine = [one for one in mine if one.version == version]
        document = await self._host_document(path, missing_ok=bool(mine))
        if not version:
            merged = discovery.merge_group(document, group, mine)
        else:
            group_version = version if core else f"{group}/{version}"
            merged = discovery.merge_resources(document, group_version, mine)
        return _encode(merged), JSON

    async def _ask(self, path: str, accept: str) -> Response:
        """The host's document, or its last one while the host is away: kubectl asks for them before anything else."""
        key = (path, accept)
        try:
            answer = await self._host.request("GET", path, headers={"Accept": accept}, timeout=60)
        except MemberUnreachable:
            last = self._last.get(key)
            if last is None:
                raise
            return last
        self._last.pop(key, None)
        self._last[key] = answer
        while len(self._last) > LAST_LIMIT or (
            len(self._last) > 1 and sum(len(one.body) for one in self._last.values()) > LAST_BYTES
        ):
            del self._last[next(iter(self._last))]
        return answer

    async def _host_document(self, path: str, *, missing_ok: bool) -> dict[str, Any] | None:
        try:
            answer = await self._ask(path, JSON)
        except StatusError as error:
            if error.code == 404 and missing_ok:
                return None
            raise
        document = answer.json()
        return document if isinstance(document, dict) else None

    async def _openapi_v2(self, request: FrontRequest, _: list[str]) -> tuple[bytes, str]:
        accept = request.headers.get("Accept", JSON)
        answer = await self._ask("/openapi/v2", accept)
        media = answer.headers.get("Content-Type", JSON)
        foreign = [one for one in await self._extras.added() if one.member]
        members = {one.member: openapi.prefixes(two for two in foreign if two.member == one.member) for one in foreign}
        documents = [
            (document, under)
            for member, under in members.items()
            if (document := await self._extras.fetch(member, "/openapi/v2", media)) is not None
        ]
        key = ("v2", media, _tag(answer), *(_tag(document) for document, _ in documents), repr(members))

        async def merge() -> tuple[bytes, float]:
            if PROTOBUF in media:
                return openapi.merge_v2_protobuf(answer.body, [(d.body, under) for d, under in documents]), _MERGED_SECONDS
            return _encode(openapi.merge_v2(answer.json(), [(d.json(), under) for d, under in documents])), _MERGED_SECONDS

        return await self._merged.get(key, merge), media

    async def _openapi_v3(self, request: FrontRequest, rest: list[str]) -> tuple[bytes, str]:
        added = await self._extras.added()
        foreign = [one for one in added if one.member]
        if not rest:
            index = await self._ask("/openapi/v3", JSON)
            members: list[tuple[dict[str, Any], list[Added]]] = []
            for member in {one.member for one in foreign}:
                document = await self._extras.fetch(member, "/openapi/v3", JSON)
                if document is not None:
                    members.append((document.json(), [one for one in foreign if one.member == member]))
            return _encode(openapi.merge_v3_index(index.json(), members, OWN_HASH)), JSON
        group, version = ("", rest[-1]) if rest[0] == "api" else ("/".join(rest[1:-1]), rest[-1])
        path = "/openapi/v3/" + "/".join(rest)
        here = [one for one in foreign if (one.group, one.version) == (group, version)]
        own = (group, version) == (own_types.GROUP, own_types.VERSION)
        accept = request.headers.get("Accept", JSON)
        answer: Response | None
        try:
            answer = await self._ask(path, accept)
        except StatusError as error:
            if error.code != 404 or not (here or own):
                raise
            answer = None
        media = answer.headers.get("Content-Type", JSON) if answer else accept
        others = [d for m in {one.member for one in here} if (d := await self._extras.fetch(m, path, media)) is not None]
        if PROTOBUF in media:
            # Maps of concatenated documents merge; our own read-only type is in the JSON form only.
            return b"".join(d.body for d in [answer, *others] if d is not None), media
        base = answer.json() if answer else {"openapi": "3.0.0", "info": {"title": "Kubernetes"}}
        if not others and not own and answer is not None:
            return answer.body, media
        return _encode(openapi.merge_v3(base, [d.json() for d in others], own=own)), JSON


def _encode(document: object) -> bytes:
    return msgspec.json.encode(document)


def _tag(answer: Response) -> str:
    return answer.headers.get("ETag") or hashlib.sha256(answer.body).hexdigest()


def _json_only(request: FrontRequest) -> str:
    """The JSON alternatives of an Accept header: discovery documents are merged in that form."""
    clauses = [part.strip() for part in request.headers.get("Accept", "").split(",")]
    return ",".join(part for part in clauses if part.startswith(JSON)) or JSON
