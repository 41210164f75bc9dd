"""Objects, lists and watch events as bytes, in the form that the client asked for: itself, Table or metadata only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from deploy.local.sim import tables
from deploy.local.sim.errors import Refused, no_such_media_type, not_acceptable
from deploy.local.sim.objects import encode, full, loaded, metadata, metadata_bytes
from deploy.local.sim.reads import Page
from deploy.local.sim.store import State
from deploy.local.sim.timers import Now
from deploy.local.sim.types import ResourceType
from deploy.local.sim.watches import Event, bookmark_annotations

JSON, YAML, TABLE, PARTIAL = "json", "yaml", "table", "partial"
_META_GROUP = "meta.k8s.io"


@dataclass(frozen=True)
class Form:
    """`kind`: JSON, YAML, TABLE or PARTIAL. `include`: what a Table's rows hold: Metadata, Object or None."""

    kind: str = JSON
    version: str = "v1"
    include: str = "Metadata"

    @property
    def content_type(self) -> str:
        return "application/yaml" if self.kind == YAML else "application/json"


def negotiate(accept: str, include: str = "") -> Form:
    """The first acceptable form of an Accept header. Raises Refused (406)."""
    include = include or "Metadata"
    if not accept:
        return Form(include=include)
    for clause in accept.split(","):
        media, *parameters = (part.strip() for part in clause.split(";"))
        options = dict(part.partition("=")[::2] for part in parameters)
        if "as" not in options:
            if media in ("*/*", "application/*", "application/json"):
                return Form(include=include)
            if media == "application/yaml":
                return Form(YAML)
            continue
        if media not in ("application/json", "*/*") or options.get("g") != _META_GROUP:
            continue
        version = options.get("v", "v1")
        if version not in ("v1", "v1beta1"):
            continue
        if options["as"] == "Table":
            return Form(TABLE, version, include)
        if options["as"] in ("PartialObjectMetadata", "PartialObjectMetadataList"):
            return Form(PARTIAL, version)
    raise not_acceptable() if "as=" in accept else no_such_media_type()


def render(type_: ResourceType, state: State, form: Form, now: float) -> bytes:
    """One object."""
    if form.kind == PARTIAL:
        return _partial(state, form.version)
    if form.kind == TABLE:
        return _table(type_, [state], form, {"resourceVersion": str(state.version)}, now, header=True)
    return full(type_, state)


def _partial(state: State, version: str) -> bytes:
    start = b'{"kind":"PartialObjectMetadata","apiVersion":"%s/%s","metadata":' % (
        _META_GROUP.encode(), version.encode(),
    )  # fmt: skip
    return start + metadata_bytes(state) + b"}"


def _item(type_: ResourceType, state: State) -> bytes:
    """An item of a list: built-in types leave kind and apiVersion to the list."""
    if type_.custom or type_.from_storage is not None:
        whole = full(type_, state)
        return whole if type_.custom else b"{" + whole[len(type_.prefix()) :]
    return state.raw


def render_list(type_: ResourceType, page: Page, form: Form, now: float) -> bytes:
    """A page of a list."""
    meta: dict[str, Any] = {"resourceVersion": str(page.version)}
    if page.token:
        meta["continue"] = page.token
    if page.remaining is not None:
        meta["remainingItemCount"] = page.remaining
    if form.kind == TABLE:
        return _table(type_, page.states, form, meta, now, header=True)
    if form.kind == PARTIAL:
        kind, version = "PartialObjectMetadataList", f"{_META_GROUP}/{form.version}"
        items: Iterable[bytes] = (_partial(state, form.version) for state in page.states)
    else:
        kind, version = type_.list_kind, type_.group_version
        items = (_item(type_, state) for state in page.states)
    if type_.custom and form.kind != PARTIAL:
        meta.setdefault("continue", "")
        head, tail = (
            f'{{"apiVersion":"{version}","items":['.encode(),
            b'],"kind":"%s","metadata":' % kind.encode(),
        )
        return head + b",".join(items) + tail + encode(meta) + b"}\n"
    start = f'{{"kind":"{kind}","apiVersion":"{version}","metadata":'.encode() + encode(meta)
    return start + b',"items":[' + b",".join(items) + b"]}\n"


def _table(
    type_: ResourceType,
    states: Sequence[State],
    form: Form,
    meta: dict[str, Any],
    now: float,
    *,
    header: bool,
) -> bytes:
    rows = []
    for state in states:
        obj = loaded(type_, state)
        cells, conditions = tables.cells(type_, obj, now)
        row: dict[str, Any] = {"cells": cells, "object": None}
        if conditions:
            row["conditions"] = conditions
        if form.include == "Object":
            row["object"] = obj
        elif form.include == "Metadata":
            kind = {"kind": "PartialObjectMetadata", "apiVersion": f"{_META_GROUP}/{form.version}"}
            row["object"] = {**kind, "metadata": metadata(state)}
        rows.append(row)
    return encode(
        {
            "kind": "Table",
            "apiVersion": f"{_META_GROUP}/{form.version}",
            "metadata": meta,
            "columnDefinitions": tables.columns(type_) if header else None,
            "rows": rows,
        }
    )


class Frames:
    """Watch events of one watch as lines of bytes. A Table watch carries its columns in the first event only."""

    def __init__(self, type_: ResourceType, form: Form, now: Now) -> None:
        self._type = type_
        self._now = now
        self._form = form
        self._first = True

    def frame(self, event: Event) -> bytes:
        """One line."""
        if event.state is not None:
            body = self._object(event.state)
        elif event.error is not None:
            body = encode(event.error.status())
        else:
            body = self._bookmark(event)
        return b'{"type":"%s","object":%s}\n' % (event.kind.encode(), body)

    def _object(self, state: State) -> bytes:
        if self._form.kind != TABLE:
            return render(self._type, state, self._form, 0)
        header, self._first = self._first, False
        meta = {"resourceVersion": str(state.version)}
        return _table(self._type, [state], self._form, meta, self._now(), header=header)

    def _bookmark(self, event: Event) -> bytes:
        meta: dict[str, Any] = {"resourceVersion": str(event.version)}
        annotations = bookmark_annotations(event)
        if annotations:
            meta["annotations"] = annotations
        type_, form = self._type, self._form
        if form.kind == TABLE:
            row: dict[str, Any] = {"cells": tables.empty_cells(type_)}
            kind = {"kind": "PartialObjectMetadata", "apiVersion": f"{_META_GROUP}/{form.version}"}
            row["object"] = {**kind, "metadata": meta}
            header, self._first = self._first, False
            return encode(
                {
                    "kind": "Table",
                    "apiVersion": f"{_META_GROUP}/{form.version}",
                    "metadata": {"resourceVersion": str(event.version)},
                    "columnDefinitions": tables.columns(type_) if header else None,
                    "rows": [row],
                }
            )
        if form.kind == PARTIAL:
            return encode(
                {
                    "kind": "PartialObjectMetadata",
                    "apiVersion": f"{_META_GROUP}/{form.version}",
                    "metadata": meta,
                }
            )
        body: dict[str, Any] = {"kind": type_.kind, "apiVersion": type_.group_version, "metadata": meta}
        if not type_.custom:
            body.update(_EMPTY.get(type_.collection, {}))
        return encode(body)


#: What a bookmark of the type holds beside its metadata: the type's zero value.
_EMPTY: dict[str, dict[str, Any]] = {
    "pods": {"spec": {"containers": None}, "status": {}},
    "nodes": {
        "spec": {},
        "status": {
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}},
            "nodeInfo": dict.fromkeys((
                "machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion",
                "kubeletVersion", "kubeProxyVersion", "operatingSystem", "architecture",
            ), ""),
        },
    },
    "namespaces": {"spec": {}, "status": {}},
}  # fmt: skip


def error_bytes(error: Refused) -> bytes:
    return encode(error.status()) + b"\n"


_PATTERN = re.compile(r"^[^;]+")


def media_type(header: str) -> str:
    """A Content-Type without its parameters."""
    found = _PATTERN.match(header)
    return found.group().strip().lower() if found else ""
