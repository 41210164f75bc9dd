"""Query parameters of reads, decoded and validated with Kubernetes' reasons and words."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from services.aggregator.reads.fields import check_fields
from services.aggregator.reads.selectors import FieldSelector, FieldTerm, parse_fields
from services.aggregator.types import Aggregated, RequestInfo
from services.common.errors import StatusError, bad_request, invalid
from services.common.kube.labels import LabelSelector, parse_labels

EXACT = "Exact"
NOT_OLDER = "NotOlderThan"
MIN_WATCH_TIMEOUT = 1800.0  # seconds; a watch without timeoutSeconds ends after one to two times this
INCLUDES = ("", "None", "Metadata", "Object")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What one list or watch asks for."""

    version: str = ""  # resourceVersion as sent; decimal or empty
    match: str = ""
    limit: int = 0
    continued: str = ""
    labels: LabelSelector = field(default_factory=LabelSelector)
    fields: FieldSelector = field(default_factory=FieldSelector)
    timeout: float = 0.0  # of a watch, seconds
    bookmarks: bool = False
    initial_events: bool = False  # start with the state as ADDED
    mark_initial_end: bool = False  # and tell where it ends
    include: str = ""  # includeObject of Tables: "" is Metadata

    @property
    def number(self) -> int:
        """The version as a number; 0 for unset and "0"."""
        return int(self.version or 0)

    @property
    def selects(self) -> bool:
        """Is anything left out by a selector?"""
        return bool(self.labels) or bool(self.fields)


def decode_list(query: Mapping[str, str], info: RequestInfo, aggregated: Aggregated) -> ReadOptions:
    """Options of a list; StatusError 400 or 422 (ListOptions is invalid)."""
    labels, fields = selectors(query, info, aggregated)
    limit = integer(query, "limit")
    integer(query, "timeoutSeconds")
    match, version, continued = (query.get(k, "") for k in ("resourceVersionMatch", "resourceVersion", "continue"))
    causes: list[tuple[str, str, str]] = []
    if match:
        if not version:
            causes.append(forbids("resourceVersionMatch",
                                  "resourceVersionMatch is forbidden unless resourceVersion is provided"))
        if continued:
            causes.append(forbids("resourceVersionMatch",
                                  "resourceVersionMatch is forbidden when continue is provided"))
        if match not in (EXACT, NOT_OLDER):
            causes.append(unsupported("resourceVersionMatch", match, (EXACT, NOT_OLDER, "")))
        if match == EXACT and version == "0":
            causes.append(forbids("resourceVersionMatch",
                                  'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'))
    if "sendInitialEvents" in query:
        causes.append(forbids("sendInitialEvents", "sendInitialEvents is forbidden for list"))
    refuse(causes)
    check_version(version)
    if continued and version not in ("", "0"):
        raise bad_request("specifying resource version is not allowed when using continue")
    return ReadOptions(version, match, max(limit, 0), continued, labels, fields, include=include(query))


def decode_watch(query: Mapping[str, str], info: RequestInfo, aggregated: Aggregated) -> ReadOptions:
    """Options of a watch; StatusError 400 or 422."""
    labels, fields = selectors(query, info, aggregated)
    integer(query, "limit")
    seconds = integer(query, "timeoutSeconds")
    match, version, continued = (query.get(k, "") for k in ("resourceVersionMatch", "resourceVersion", "continue"))
    send = truth(query["sendInitialEvents"]) if "sendInitialEvents" in query else None
    legacy = send is None and not match and version in ("", "0")
    causes: list[tuple[str, str, str]] = []
    if send is not None and match != NOT_OLDER:
        causes.append(forbids("resourceVersionMatch",
                              f"sendInitialEvents requires setting resourceVersionMatch to {NOT_OLDER}"))
    if match:
        if send is None:
            causes.append(forbids(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"))
        if match != NOT_OLDER:
            causes.append(unsupported("resourceVersionMatch", match, (NOT_OLDER,)))
    if continued and (match or legacy):  # Kubernetes takes a watch without version for one of NotOlderThan
        causes.append(forbids("resourceVersionMatch",
                              "resourceVersionMatch is forbidden when continue is provided"))
    refuse(causes)
    check_version(version)
    bookmarks = "allowWatchBookmarks" in query and truth(query["allowWatchBookmarks"])
    return ReadOptions(
        version, match, 0, "", labels, fields,
        timeout=float(seconds) if seconds > 0 else MIN_WATCH_TIMEOUT * (1 + random.random()),
        bookmarks=bookmarks,
        initial_events=legacy or bool(send),
        mark_initial_end=bool(send) and bookmarks,
        include=include(query),
    )  # fmt: skip


def decode_version(query: Mapping[str, str]) -> int:
    """`resourceVersion` of a get: 0 for unset and "0", and -1 never."""
    check_version(query.get("resourceVersion", ""))
    return int(query.get("resourceVersion") or 0)


def selectors(
    query: Mapping[str, str], info: RequestInfo, aggregated: Aggregated
) -> tuple[LabelSelector, FieldSelector]:
    """Both selectors; a name in the path (a watch of one object) counts as a field term."""
    labels = parse_labels(query.get("labelSelector", ""))
    fields = parse_fields(query.get("fieldSelector", ""))
    fields = check_fields(fields, aggregated.group, aggregated.resource, aggregated.namespaced)
    if info.name:
        if fields and fields.exact("metadata.name") != info.name:
            raise bad_request("fieldSelector metadata.name doesn't match requested name")
        if not fields:
            fields = FieldSelector((FieldTerm("metadata.name", info.name),))
    return labels, fields


def include(query: Mapping[str, str]) -> str:
    """`includeObject`, 400 for an unknown one."""
    value = query.get("includeObject", "")
    if value not in INCLUDES:
        raise bad_request(
            f'Unable to convert to Table as requested: includeObject: Invalid value: "{value}": '
            "must be 'Metadata', 'Object', 'None', or empty"
        )
    return value


def truth(text: str) -> bool:
    """Kubernetes' reading of a boolean parameter that is present."""
    return not (text == "0" or text.lower() == "false")


def integer(query: Mapping[str, str], key: str) -> int:
    """An int64 parameter, 0 when absent or empty."""
    text = query.get(key, "")
    if not text:
        return 0
    if not re.fullmatch(r"[+-]?\d+", text, re.ASCII):
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    value = int(text)
    if not -(2**63) <= value < 2**63:
        raise bad_request(f'strconv.ParseInt: parsing "{text}": value out of range')
    return value


def check_version(text: str) -> None:
    """400 unless `text` is empty or a decimal number of 64 bits."""
    if not text:
        return
    problem = "invalid syntax"
    if re.fullmatch(r"\d+", text, re.ASCII):
        if int(text) < 2**64:
            return
        problem = "value out of range"
    raise bad_request(
        f'invalid resource version: resourceVersion: Invalid value: "{text}": '
        f'strconv.ParseUint: parsing "{text}": {problem}'
    )


def forbids(path: str, message: str) -> tuple[str, str, str]:
    """(field, reason, message) of a forbidden parameter."""
    return path, "FieldValueForbidden", f"Forbidden: {message}"


def unsupported(path: str, value: str, allowed: tuple[str, ...]) -> tuple[str, str, str]:
    """(field, reason, message) of a value that is none of the allowed."""
    names = ", ".join(f'"{name}"' for name in allowed)
    return path, "FieldValueNotSupported", f'Unsupported value: "{value}": supported values: {names}'


def refuse(causes: list[tuple[str, str, str]]) -> None:
    """Raise 422 `ListOptions.meta.k8s.io "" is invalid` when there are causes."""
    if not causes:
        return
    texts = [f"{path}: {message}" for path, _, message in causes]
    text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    details: dict[str, Any] = {
        "group": "meta.k8s.io",
        "kind": "ListOptions",
        "causes": [{"reason": reason, "message": message, "field": path} for path, reason, message in causes],
    }
    raise invalid(f'ListOptions.meta.k8s.io "" is invalid: {text}', details=details)


def too_old(asked: int, floor: int) -> StatusError:
    """410 of a watch, in Kubernetes' words."""
    return StatusError(410, "Expired", f"too old resource version: {asked} ({floor})")
