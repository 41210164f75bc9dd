"""Takes request paths apart, as kube-apiserver's RequestInfo does.

`/clusters/<name>/…` is Reclock's own: the rest of the path is taken apart and `cluster` is set.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import cast
from urllib.parse import parse_qs, unquote

from services.aggregator.types import RequestInfo, Verb

NAMESPACE_SUBRESOURCES = frozenset({"status", "finalize"})
_VERBS = {"POST": "create", "GET": "get", "HEAD": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_CACHE_LIMIT = 4096
_LONGEST_KEPT = 512  # paths of objects are shorter; anybody may send others, of 64 KiB


_BAD_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")


class MalformedPath(ValueError):
    """The path starts like a resource request and names no resource (404), or cannot be decoded (400)."""

    def __init__(self, message: str, code: int = 404) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class _Place:
    """What a path says by itself, without method and query."""

    path: str
    is_resource: bool = False
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    cluster: str | None = None
    prefix_verb: str = ""  # "watch" or "proxy" before the resource: deprecated, still served


# Clients repeat paths (informers, get loops): a parsed path is kept, and all are dropped when there are too many.
_places: dict[str, _Place] = {}


def parse(method: str, raw_path: str, query_string: str) -> RequestInfo:
    """Return what a request asks for; `raw_path` and `query_string` as they stand in the request line.

    Raises MalformedPath.
    """
    place = _places.get(raw_path)
    if place is None:
        if _BAD_ESCAPE.search(raw_path):  # Go refuses it; read in another way here it would be judged by another name
            raise MalformedPath(f"invalid URL escape in {raw_path}", 400)
        place = _parse_path(unquote(raw_path) if "%" in raw_path else raw_path)
        if len(_places) >= _CACHE_LIMIT:
            _places.clear()
        if len(raw_path) <= _LONGEST_KEPT:
            _places[raw_path] = place
    if not place.is_resource:
        return RequestInfo(cast(Verb, method.lower()), place.path, False, cluster=place.cluster)
    verb = place.prefix_verb or _VERBS.get(method, "")
    name = place.name
    if not name:
        if verb == "get":
            verb, name = _collection(query_string)
        elif verb == "delete":
            verb = "deletecollection"
    return RequestInfo(
        cast(Verb, verb), place.path, True, place.group, place.version, place.resource, place.subresource,
        place.namespace, name, place.cluster,
    )  # fmt: skip


def is_watch_prefix(path: str) -> bool:
    """Whether `path` is of the deprecated form `/api/v1/watch/…`."""
    parts = path.split("/", 5)
    return (parts[1:2] == ["api"] and parts[3:4] == ["watch"]) or (parts[1:2] == ["apis"] and parts[4:5] == ["watch"])


def _parse_path(path: str) -> _Place:
    parts = path.strip("/").split("/")
    if parts[0] == "clusters" and len(parts) >= 2 and parts[1]:
        inner = "/" + "/".join(path.lstrip("/").split("/")[2:])
        return replace(_parse_path(inner), cluster=parts[1])
    if len(parts) < 3 or parts[0] not in ("api", "apis"):
        return _Place(path)
    group = ""
    at = 1
    if parts[0] == "apis":
        if len(parts) < 4:
            return _Place(path)
        group, at = parts[1], 2
    version = parts[at]
    rest = parts[at + 1 :]
    prefix_verb = ""
    if rest[0] in ("watch", "proxy"):
        if len(rest) < 2:
            raise MalformedPath(f"unable to determine kind and namespace from url, {path}")
        prefix_verb, rest = rest[0], rest[1:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 1:
        namespace = rest[1]
        if len(rest) > 2 and rest[2] not in NAMESPACE_SUBRESOURCES:
            rest = rest[2:]
    return _Place(
        path, True, group, version,
        resource=rest[0],
        subresource=rest[2] if len(rest) > 2 and prefix_verb != "proxy" else "",
        namespace=namespace,
        name=rest[1] if len(rest) > 1 else "",
        prefix_verb=prefix_verb,
    )  # fmt: skip


def _collection(query_string: str) -> tuple[str, str]:
    """The verb of a GET without a name, and the name that its field selector requires."""
    if not query_string or ("watch" not in query_string and "fieldSelector" not in query_string):
        return "list", ""
    query = parse_qs(query_string, keep_blank_values=True)
    watch = query.get("watch", ["false"])[0].lower() not in ("false", "0")
    return "watch" if watch else "list", _selected_name(query.get("fieldSelector", [""])[0])


def _selected_name(selector: str) -> str:
    for term in selector.split(","):
        key, equals, value = term.partition("=")
        if equals and key.strip() == "metadata.name":
            value = value.removeprefix("=").strip()
            return value if value not in (".", "..") and "/" not in value and "%" not in value else ""
    return ""
