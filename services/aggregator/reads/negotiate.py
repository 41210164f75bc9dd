"""What form a client wants its answer in: the `Accept` header, read as kube-apiserver reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from services.common.errors import StatusError, not_acceptable

Kind = Literal["json", "table", "partial", "protobuf"]

JSON_TYPE = "application/json"
PROTOBUF_TYPE = "application/vnd.kubernetes.protobuf"
META_GROUP = "meta.k8s.io"
META_VERSIONS = ("v1", "v1beta1")
PRETTY_AGENTS = ("curl", "Wget", "Mozilla/5.0")
CONVERSIONS: dict[str, Kind] = {
    "Table": "table",
    "PartialObjectMetadata": "partial",
    "PartialObjectMetadataList": "partial",
}


@dataclass(frozen=True, slots=True)
class Negotiated:
    """The chosen form. `version` is meta.k8s.io's for "table" and "partial", else ""."""

    kind: Kind = "json"
    version: str = ""
    pretty: bool = False
    as_list: bool = False  # "partial": asked as PartialObjectMetadataList

    @property
    def content_type(self) -> str:
        """For the answer's header."""
        return PROTOBUF_TYPE if self.kind == "protobuf" else JSON_TYPE

    def accept(self, *, many: bool) -> str:
        """The `Accept` header that asks a member for the same; `many` for lists."""
        if self.kind == "table":
            return f"{JSON_TYPE};as=Table;v={self.version};g={META_GROUP}"
        if self.kind == "partial":
            name = "PartialObjectMetadataList" if many else "PartialObjectMetadata"
            return f"{JSON_TYPE};as={name};v={self.version};g={META_GROUP}"
        return self.content_type


@dataclass(frozen=True, slots=True)
class Clause:
    """One alternative of an `Accept` header."""

    type: str
    subtype: str
    params: Mapping[str, str]
    quality: float

    def covers(self, media_type: str) -> bool:
        """Does this clause accept `application/json` and the like?"""
        kind, _, subtype = media_type.partition("/")
        return (self.type in (kind, "*")) and (self.subtype in (subtype, "*"))


@lru_cache(maxsize=1024)
def parse_accept(header: str) -> tuple[Clause, ...]:
    """The clauses, the preferred first; unreadable ones are left out (as goautoneg does)."""
    clauses = []
    for part in header.split(","):
        media, *raw = (piece.strip() for piece in part.split(";"))
        kind, slash, subtype = media.partition("/")
        if not slash:
            if media != "*":
                continue
            kind = subtype = "*"
        params, quality = {}, 1.0
        for piece in raw:
            key, _, value = piece.partition("=")
            if key.strip() == "q":
                quality = quality_of(value)
            elif key:
                params[key.strip()] = value.strip().strip('"')
        clauses.append(Clause(kind.strip(), subtype.strip(), params, quality))
    # goautoneg: quality first, then the more exact type; equal ones keep their order.
    clauses.sort(key=lambda c: (-c.quality, c.type == "*", c.subtype == "*"))
    return tuple(clauses)


def quality_of(text: str) -> float:
    """A `q` value; 1.0 when it is no number."""
    try:
        return float(text)
    except ValueError:
        return 1.0


def negotiate(
    header: str, *, query: Mapping[str, str] | None = None, user_agent: str = "", protobuf: bool = False
) -> Negotiated:
    """Choose the form for `header`; StatusError 406 when none is possible.

    Protobuf alone is refused unless the caller can give it (`protobuf`): clients name JSON beside it.
    """
    if not header:
        return Negotiated(pretty=wants_pretty(query or {}, user_agent, ""))
    for clause in parse_accept(header):
        if clause.quality <= 0:
            continue
        chosen = choose(clause, protobuf)
        if chosen is not None:
            kind, version, as_list = chosen
            pretty = wants_pretty(query or {}, user_agent, clause.params.get("pretty", ""))
            return Negotiated(kind, version, pretty and kind != "protobuf", as_list)
    raise refused(protobuf)


def choose(clause: Clause, protobuf: bool) -> tuple[Kind, str, bool] | None:
    """What one clause gives: kind, meta version, asked as a list; None when it cannot be had."""
    if clause.params.get("stream", "watch") not in ("", "watch") or clause.params.get("sv"):
        return None
    target = clause.params.get("as", "")
    if clause.covers(JSON_TYPE):
        if not (target or clause.params.get("g") or clause.params.get("v")):
            return "json", "", False
        kind = CONVERSIONS.get(target)
        version = clause.params.get("v", "")
        if kind is None or clause.params.get("g") != META_GROUP or version not in META_VERSIONS:
            return None
        return kind, version, target.endswith("List")
    if protobuf and not target and clause.covers(PROTOBUF_TYPE):
        return "protobuf", "", False
    return None


def refused(protobuf: bool) -> StatusError:
    """406 in Kubernetes' words."""
    types = [JSON_TYPE, *([PROTOBUF_TYPE] if protobuf else [])]
    return not_acceptable(f"only the following media types are accepted: {', '.join(types)}")


def wants_pretty(query: Mapping[str, str], user_agent: str, param: str) -> bool:
    """Indented for people: asked by parameter or query, or a tool that people look at."""
    if param == "1":
        return True
    if query.get("pretty"):
        return query["pretty"] in ("1", "t", "T", "TRUE", "true", "True")
    return user_agent.startswith(PRETTY_AGENTS)
