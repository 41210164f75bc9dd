"""Lists as kube-apiserver 1.34 answers them: most recent, NotOlderThan, Exact, pages, selectors.

Source: the API concepts page on resourceVersion semantics; k8s.io/apiserver pkg/storage (cacher, continue tokens).
"""

from __future__ import annotations

import base64
import binascii
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import merge
from typing import Any

import msgspec

from deploy.local.sim import selectors
from deploy.local.sim.errors import Cause, Refused, bad_request, expired, invalid, too_large_version
from deploy.local.sim.store import Collection, State, Store
from deploy.local.sim.types import ResourceType, path_value

_EXPIRED = "The resourceVersion for the provided list is too old."
_INCONSISTENT = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)
_PRESENT = object()
_TOKEN_VERSION = "meta.k8s.io/v1"


@dataclass(frozen=True)
class Filter:
    """What a list or watch takes: below `prefix`, with these labels and fields. `name`: that object only."""

    type: ResourceType
    prefix: str = ""
    labels: selectors.LabelSelector = ()
    fields: selectors.FieldSelector = ()
    name: str | None = None

    @property
    def all(self) -> bool:
        """No selector: everything below the prefix."""
        return not (self.labels or self.fields or self.name is not None)

    def takes(self, state: State) -> bool:
        if self.prefix and not state.key.startswith(self.prefix):
            return False
        if self.name is not None and state.name != self.name:
            return False
        if self.labels and not selectors.matches(self.labels, state.labels):
            return False
        return not self.fields or self._fields_match(state)

    def _fields_match(self, state: State) -> bool:
        content: dict[str, Any] | None = None
        for term in self.fields:
            if term.field == "metadata.name":
                value = state.name
            elif term.field == "metadata.namespace":
                value = state.namespace
            else:
                content = state.object() if content is None else content
                value = path_value(content, self.type.fields[term.field])
                if not value and term.field == "spec.hostNetwork":
                    value = "false"
                elif not value and term.field.startswith("status.") and term.value.isdigit():
                    value = "0"
            if (value == term.value) == term.negated:
                return False
        return True


def make_filter(
    type_: ResourceType, namespace: str | None, name: str | None, query: Mapping[str, str]
) -> Filter:
    """Raises Refused (400) for selectors that the API server refuses."""
    fields = selectors.parse_fields(query.get("fieldSelector", ""), lambda field: _check_field(type_, field))
    labels = selectors.parse_labels(query.get("labelSelector", ""))
    return Filter(type_, f"{namespace}/" if namespace else "", labels, fields, name)


def _check_field(type_: ResourceType, field: str) -> None:
    if field == "metadata.name" or (field == "metadata.namespace" and _knows_namespace(type_)):
        return
    if field in type_.fields:
        return
    if (type_.custom and type_.fields) or type_.plural in _OWN_CONVERSION:
        raise bad_request(f"field label not supported: {field}")
    raise bad_request(f'"{field}" is not a known field selector: only "metadata.name", "metadata.namespace"')


_OWN_CONVERSION = frozenset({
    "pods", "nodes", "events", "namespaces", "secrets", "services", "replicationcontrollers", "replicasets", "jobs",
    "certificatesigningrequests",
})  # fmt: skip


def _knows_namespace(type_: ResourceType) -> bool:
    return type_.plural not in ("namespaces", "nodes", "certificatesigningrequests")


@dataclass(frozen=True)
class Page:
    """A list's answer. `remaining` is None when the API server would not say."""

    version: int
    states: list[State]
    token: str = ""
    remaining: int | None = None


def parse_version(text: str, what: str = "resourceVersion") -> int:
    """The number; 0 for none. Raises Refused for anything else."""
    if not text:
        return 0
    if not text.isascii() or not text.isdigit() or int(text) >= 1 << 64:
        problem = "value out of range" if text.isascii() and text.isdigit() else "invalid syntax"
        body = f'Invalid value: "{text}": strconv.ParseUint: parsing "{text}": {problem}'
        raise bad_request(f"{what}: {body}")
    return int(text)


def check_list_options(query: Mapping[str, str]) -> None:
    """The rules on combinations of parameters. Raises Refused (422)."""
    match, causes = query.get("resourceVersionMatch", ""), []
    field = "resourceVersionMatch"
    if match:
        if not query.get("resourceVersion"):
            causes.append(_ban(field, "resourceVersionMatch is forbidden unless resourceVersion is provided"))
        if query.get("continue"):
            causes.append(_ban(field, "resourceVersionMatch is forbidden when continue is provided"))
        if match not in ("Exact", "NotOlderThan"):
            causes.append(_unsupported(field, match, ("Exact", "NotOlderThan", "")))
        if match == "Exact" and query.get("resourceVersion") == "0":
            text = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
            causes.append(_ban(field, text))
    if "sendInitialEvents" in query:
        causes.append(_ban("sendInitialEvents", "sendInitialEvents is forbidden for list"))
    if causes:
        raise invalid("meta.k8s.io", "ListOptions", "", causes)


def check_watch_options(query: Mapping[str, str]) -> None:
    """The same for watches."""
    match, causes = query.get("resourceVersionMatch", ""), []
    field = "resourceVersionMatch"
    if "sendInitialEvents" in query and match != "NotOlderThan":
        text = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        causes.append(_ban(field, text))
    if match:
        if "sendInitialEvents" not in query:
            text = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
            causes.append(_ban(field, text))
        if match != "NotOlderThan":
            causes.append(_unsupported(field, match, ("NotOlderThan",)))
        if query.get("continue"):
            causes.append(_ban(field, "resourceVersionMatch is forbidden when continue is provided"))
    if causes:
        raise invalid("meta.k8s.io", "ListOptions", "", causes)


def _ban(field: str, text: str) -> Cause:
    return Cause("FieldValueForbidden", field, f"Forbidden: {text}")


def _unsupported(field: str, value: str, allowed: tuple[str, ...]) -> Cause:
    said = ", ".join(f'"{one}"' for one in allowed)
    return Cause("FieldValueNotSupported", field, f'Unsupported value: "{value}": supported values: {said}')


def list_page(store: Store, collection: Collection, wanted: Filter, query: Mapping[str, str]) -> Page:
    """The list that a GET with these parameters gets. Raises Refused: 400, 410, 422, 504."""
    check_list_options(query)
    limit = _limit(query.get("limit", ""))
    version_text = query.get("resourceVersion", "")
    try:
        version = parse_version(version_text)
    except Refused as refused:
        raise bad_request(f"invalid resource version: {refused.message}") from None
    if token := query.get("continue"):
        start, at = decode_token(token)
        if version:
            raise bad_request("specifying resource version is not allowed when using continue")
        start = wanted.prefix + start
    else:
        start = ""
        exact = query.get("resourceVersionMatch") == "Exact" or (
            limit and version and not query.get("resourceVersionMatch")
        )
        at = version if exact else -1
        if version_text == "0":
            limit = 0
    if max(version, at) > store.revision:
        raise too_large_version(max(version, at), store.revision)
    if 0 < at < store.compacted:
        if start:
            token = encode_token(start.removeprefix(wanted.prefix), -1)
            raise expired(_INCONSISTENT, **{"continue": token})
        raise expired(_EXPIRED)
    return _page(store, collection, wanted, start, at, limit)


def _page(store: Store, collection: Collection, wanted: Filter, start: str, at: int, limit: int) -> Page:
    version = store.revision if at < 0 else at
    then = collection.undo(at) if 0 < at < store.revision else {}
    states: list[State] = []
    last = ""
    keys = _keys(collection, wanted.prefix, start, then)
    for key in keys:
        state = then[key] if key in then else collection.live[key]
        if state is None or not wanted.takes(state):
            continue
        states.append(state)
        if limit and len(states) >= limit:
            last = key
            break
    more = last and any(then.get(key, _PRESENT) is not None for key in keys)
    if not more:
        return Page(version, states)
    remaining = None
    if wanted.all:
        remaining = (
            sum(
                1
                for key in _keys(collection, wanted.prefix, last + "\0", then)
                if then.get(key, _PRESENT) is not None
            )
            if then
            else collection.count(wanted.prefix, last + "\0")
        )
    token = encode_token((last + "\0").removeprefix(wanted.prefix), version)
    return Page(version, states, token, remaining)


def _keys(collection: Collection, prefix: str, start: str, then: Mapping[str, State | None]) -> Iterator[str]:
    live = collection.each(prefix, start)
    if not then:
        return live
    gone = sorted(
        key for key in then if key not in collection.live and key.startswith(prefix) and key >= start
    )
    return merge(live, gone) if gone else live


def _limit(text: str) -> int:
    try:
        return max(0, int(text or 0))
    except ValueError:
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None


def encode_token(start: str, version: int) -> str:
    """The API server's own form: base64 of {"v", "rv", "start"}."""
    body = msgspec.json.encode({"v": _TOKEN_VERSION, "rv": version, "start": start})
    return base64.urlsafe_b64encode(body).rstrip(b"=").decode()


def decode_token(token: str) -> tuple[str, int]:
    """(start key below the request's prefix, version or -1). Raises Refused (400)."""
    strange = re.search(r"[^-\w]", token, re.ASCII)
    if strange is not None:
        raise _bad_token(f": illegal base64 data at input byte {strange.start()}")
    try:
        body = msgspec.json.decode(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    except (binascii.Error, ValueError) as error:
        raise bad_request(f"invalid continue token: continue key is not valid: {error}") from None
    if not isinstance(body, dict) or body.get("v") != _TOKEN_VERSION:
        said = body.get("v", "") if isinstance(body, dict) else ""
        raise _bad_token(f": server does not recognize this encoded version {said}")
    version, start = body.get("rv", 0), body.get("start", "")
    if not isinstance(version, int) or not isinstance(start, str):
        raise _bad_token("")
    if version == 0:
        raise _bad_token(": incorrect encoded start resourceVersion (version meta.k8s.io/v1)")
    if not start:
        raise _bad_token(": encoded start key empty (version meta.k8s.io/v1)")
    path = start if start.startswith("/") else "/" + start
    if posixpath.normpath(path) != path:
        raise _bad_token(f": {start}")
    return path[1:], version


def _bad_token(why: str) -> Refused:
    return bad_request(f"invalid continue token: continue key is not valid{why}")
