"""Requests and answers of a simulated API server, without sockets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import msgspec
import yaml

from deploy.local.sim import protobuf
from deploy.local.sim.core import UNKNOWN_MANAGER, User
from deploy.local.sim.errors import bad_request, unsupported_media_type
from deploy.local.sim.represent import Frames, media_type
from deploy.local.sim.watches import Watch

_BODIES = ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "application/cbor")


ADMIN = User("kubernetes-admin", ("system:masters", "system:authenticated"))


@dataclass(frozen=True)
class Request:
    """One request. `headers`: names in lower case. `query`: decoded, one value a name."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    user: User = ADMIN

    @property
    def accept(self) -> str:
        return self.headers.get("accept", "")

    @property
    def content_type(self) -> str:
        return media_type(self.headers.get("content-type", ""))

    @property
    def manager(self) -> str:
        """The field manager: as asked, else the first part of the User-Agent."""
        agent = self.headers.get("user-agent", "").partition("/")[0]
        return self.query.get("fieldManager") or agent or UNKNOWN_MANAGER

    @property
    def watches(self) -> bool:
        return self.query.get("watch") in ("true", "1", "True", "")

    def decoded(self) -> Any:
        """The body. Raises Refused (400, 415)."""
        kind = self.content_type
        if kind == protobuf.MEDIA_TYPE:
            return protobuf.decode(self.body)
        if kind and kind not in _BODIES[:2] and not kind.endswith(("+json", "+yaml")):
            raise unsupported_media_type(_BODIES)
        return decode_body(self.body, kind)


def decode_body(body: bytes, content_type: str) -> Any:
    """JSON, or YAML where the type says so. Raises Refused (400)."""
    try:
        if "yaml" in content_type:
            return yaml.safe_load(body)
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise bad_request(f"couldn't get version/kind; json parse error: {error}") from None


@dataclass
class Response:
    """A whole answer."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class WatchResponse:
    """An answer that goes on: `frames.frame(event)` for each of `watch.events`, until closed or `timeout` seconds."""

    watch: Watch
    frames: Frames
    timeout: float


@dataclass
class StreamResponse:
    """An answer that the HTTP server carries out: logs that are followed, exec, attach, port-forward."""

    kind: str
    namespace: str
    name: str
    container: str
    query: Mapping[str, str]


Answer = Response | WatchResponse | StreamResponse


@dataclass(frozen=True)
class Target:
    """What a path names."""

    group: str
    version: str
    plural: str
    namespace: str | None
    name: str
    sub: str


def parse_target(path: str) -> Target | None:
    """The resource of `/api/v1/…` or `/apis/<group>/<version>/…`; None for anything else."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = None
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    name = rest[1] if len(rest) > 1 else ""
    return Target(group, version, rest[0], namespace, name, "/".join(rest[2:]))
