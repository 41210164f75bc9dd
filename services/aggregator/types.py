"""What the parts of the aggregator say to each other: requests, users, and aggregated resources."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from aiohttp import web

from services.common.kube.resource import Resource
from services.common.kube.reviews import User

Verb = Literal[
    "get", "list", "watch", "create", "update", "patch", "delete", "deletecollection",
    "head", "options", "post", "put",
]  # the last four: non-resource requests

HOST = ""  # cluster name of the host


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """A Kubernetes request path, taken apart as kube-apiserver's RequestInfo does."""

    verb: Verb
    path: str
    is_resource: bool
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    cluster: str | None = None  # set for /clusters/<name>/…: the member addressed directly


@dataclass(slots=True)
class Call:
    """One request on its way through the front."""

    request: web.Request
    info: RequestInfo
    user: User
    warnings: list[str] = field(default_factory=list)  # texts for `Warning: 299` headers
    audit: dict[str, object] = field(default_factory=dict)  # what handlers add to the audit line: cluster, versions
    audit_id: str = ""  # under which everybody logs this request
    rest: asyncio.Future[Any] | None = None  # what goes on when the client has left: it counts as in flight to its end

    @property
    def query(self) -> dict[str, str]:
        """First value of every query parameter (Kubernetes takes the first)."""
        seen: dict[str, str] = {}
        for key, value in self.request.rel_url.query.items():
            seen.setdefault(key, value)
        return seen


@dataclass(frozen=True, slots=True)
class Aggregated:
    """One aggregated resource, from an `APIAggregation`; equal specs are equal."""

    name: str  # of the APIAggregation
    group: str
    version: str  # version that feeds and schedules use; others served by members pass too
    resource: str
    kind: str
    namespaced: bool
    cluster_selector: str = ""  # label selector on clusters; "" selects all
    include_host: bool = False
    unreachable: Literal["Keep", "Fail"] = "Keep"
    authorization: Literal["Host", "Member"] = "Host"
    create: Literal["Schedule", "Host", "Reject"] = "Schedule"

    @property
    def key(self) -> str:
        """`pods`, `widgets.example.com`: how the resource is named in etcd and metrics."""
        return f"{self.resource}.{self.group}" if self.group else self.resource

    def at(self, version: str = "") -> Resource:
        """The resource as addressed on a member, in `version` or the aggregation's own."""
        return Resource(self.group, version or self.version, self.resource, self.kind, self.namespaced)


class Handler(Protocol):
    """What the front calls for one kind of request."""

    async def __call__(self, call: Call, aggregated: Aggregated) -> web.StreamResponse: ...
