"""What form a client wants its answer in: the `Accept` header, read as kube-apiserver reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from services.common.errors import StatusError, not_acceptable

Kind = Literal["object", "table", "partial"]

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
    """The chosen form. `version` is meta.k8s.io's for "table" and "partial", else "". A Table is never protobuf."""

    kind: Kind = "object"
    version: str = ""
    pretty: bool = False
    as_list: bool = False  # "partial": asked as PartialObjectMetadataList
    protobuf: bool = False

    @property
    def content_type(self) -> str:
        """For the answer's header."""
        return PROTOBUF_TYPE if self.protobuf else JSON_TYPE

    @property
    def stream_type(self) -> str:
        """For a watch's header."""
        return f"{PROTOBUF_TYPE};stream=watch" if self.protobuf else JSON_TYPE

    def accept(self, *, many: bool) -> str:
        """The `Accept` header that asks a member for the same; `many` for lists."""
        if self.kind == "table":
            return f"{JSON_TYPE};as=Table;v={self.version};g={META_GROUP}"
        if self.kind == "partial":
            name = "PartialObjectMetadataList" if many else "PartialObjectMetadata"
            return f"{self.content_type};as={name};v={self.version};g={META_GROUP}"
        return self.content_type


KEPT = 1024
"""Longest header that is remembered, taken apart. Anybody may send others, of 64 KiB and 16,000 clauses each."""


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


def parse_accept(header: str) -> tuple[Clause, ...]:
    """The clauses, the preferred first; unreadable ones are left out (as goautoneg does)."""
    return _kept(header) if len(header) <= KEPT else _clauses(header)


def _clauses(header: str) -> tuple[Clause, ...]:
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


_kept = lru_cache(maxsize=1024)(_clauses)


def quality_of(text: str) -> float:
    """A `q` value; 1.0 when it is no number."""
    try:
        return float(text)
    except ValueError:
        return 1.0


def negotiate(
    header: str, *, query: Mapping[str, str] | None = None, user_agent: str = "", protobuf: bool = False,
    partial_protobuf: bool = False,
) -> Negotiated:  # fmt: skip
    """Choose the form for `header`; StatusError 406 when none is possible.

    `protobuf`: the type has it; `partial_protobuf`: its metadata has (custom resources are JSON, their metadata is not).
    """
    if not header:
        return Negotiated(pretty=wants_pretty(query or {}, user_agent, ""))
    for clause in parse_accept(header):
        if clause.quality <= 0:
            continue
        chosen = choose(clause, protobuf, partial_protobuf)
        if chosen is not None:
            pretty = wants_pretty(query or {}, user_agent, clause.params.get("pretty", ""))
            return replace(chosen, pretty=pretty and not chosen.protobuf)
    raise refused()


def choose(clause: Clause, protobuf: bool, partial_protobuf: bool) -> Negotiated | None:
    """What one clause gives; None when it cannot be had."""
    if clause.params.get("stream", "watch") not in ("", "watch") or clause.params.get("sv"):
        return None
    target = clause.params.get("as", "")
    as_json = clause.covers(JSON_TYPE)
    if not as_json and not clause.covers(PROTOBUF_TYPE):
        return None
    if not (target or clause.params.get("g") or clause.params.get("v")):
        return Negotiated(protobuf=not as_json) if as_json or protobuf else None
    kind = CONVERSIONS.get(target)
    version = clause.params.get("v", "")
    if kind is None or clause.params.get("g") != META_GROUP or version not in META_VERSIONS:
        return None
    if not as_json and (kind == "table" or not partial_protobuf):
        return None
    return Negotiated(kind, version, as_list=target.endswith("List"), protobuf=not as_json)


def refused() -> StatusError:
    """406 in Kubernetes' words."""
    return not_acceptable(f"only the following media types are accepted: {JSON_TYPE}, {PROTOBUF_TYPE}")


def prefers_protobuf(header: str) -> bool:
    """Is a Status to be written in protobuf? As Kubernetes does: every type has one, so the first that fits counts."""
    for clause in parse_accept(header):
        table = clause.params.get("as") == "Table" and not clause.covers(JSON_TYPE)
        if clause.quality > 0 and not table and (clause.covers(JSON_TYPE) or clause.covers(PROTOBUF_TYPE)):
            return not clause.covers(JSON_TYPE)
    return False


def wants_pretty(query: Mapping[str, str], user_agent: str, param: str) -> bool:
    """Indented for people: asked by parameter or query, or a tool that people look at."""
    if param == "1":
        return True
    if query.get("pretty"):
        return query["pretty"] in ("1", "t", "T", "TRUE", "true", "True")
    return user_agent.startswith(PRETTY_AGENTS)
