"""VersionMarkers in the forms that clients ask for: whole, metadata only, Table."""

from __future__ import annotations

from typing import Any

import msgspec

from services.aggregator.reads.frames import INITIAL_END, event
from services.aggregator.reads.marker_objects import API_VERSION, KIND
from services.aggregator.reads.negotiate import Negotiated

Object = dict[str, Any]


def _column(name: str, description: str, *, priority: int = 0, format_: str = "") -> Object:
    return {"name": name, "type": "string", "format": format_, "description": description, "priority": priority}


COLUMNS = [
    _column("Name", "Name of the marker.", format_="name"),
    _column("Type", "Mapping (of one object) or Bookmark (of one cluster's position)."),
    _column("Cluster", "The member; empty for the host."),
    _column("Object", "Kind and name of the object."),
    _column("Version", "The fleet version: what clients see."),
    _column("Member Version", "The member's own version."),
    _column("Shown", "False when an older object of the same name is shown instead.", priority=1),
    _column("Incarnation", "Life of the cluster that the version belongs to.", priority=1),
]


def partial(obj: Object, form: Negotiated) -> Object:
    """Metadata only."""
    version = form.version or "v1"
    return {"kind": "PartialObjectMetadata", "apiVersion": f"meta.k8s.io/{version}", "metadata": obj["metadata"]}


def row(obj: Object, form: Negotiated, include: str) -> Object:
    """One row."""
    what = obj["object"]
    target = f"{what['kind'].lower()}/{what['name']}" if "name" in what else what["kind"].lower()
    cells = [
        obj["metadata"]["name"], obj["type"], obj["store"]["cluster"], target,
        obj["template"]["metadata"]["resourceVersion"], what["resourceVersion"],
        str(obj["status"].get("shown", "")).lower(), obj["store"]["incarnation"],
    ]  # fmt: skip
    kept = {"Object": obj, "None": None}.get(include, partial(obj, form)) if include else partial(obj, form)
    return {"cells": cells, "object": kept}


def item(obj: Object, form: Negotiated, include: str) -> Object:
    """An element of a list in this form."""
    if form.kind == "table":
        return row(obj, form, include)
    return partial(obj, form) if form.kind == "partial" else obj


def list_head(form: Negotiated, metadata: Object) -> tuple[Object, bytes]:
    """The list's own fields, and the name of its array."""
    if form.kind == "table":
        names = {"kind": "Table", "apiVersion": f"meta.k8s.io/{form.version}"}
        return {**names, "metadata": metadata, "columnDefinitions": COLUMNS}, b"rows"
    if form.kind == "partial":
        names = {"kind": "PartialObjectMetadataList", "apiVersion": f"meta.k8s.io/{form.version}"}
        return {**names, "metadata": metadata}, b"items"
    return {"kind": f"{KIND}List", "apiVersion": API_VERSION, "metadata": metadata}, b"items"


def shape(obj: Object, form: Negotiated, include: str) -> Object:
    """One object in this form."""
    if form.kind == "table":
        head, _ = list_head(form, {"resourceVersion": obj["metadata"]["resourceVersion"]})
        return {**head, "rows": [row(obj, form, include)]}
    return item(obj, form, include)


def bookmark(form: Negotiated, version: int, *, initial_end: bool = False) -> bytes:
    """A BOOKMARK frame."""
    metadata: Object = {"resourceVersion": str(version), "creationTimestamp": None}
    if initial_end:
        metadata["annotations"] = {INITIAL_END: "true"}
    body: Object = {"kind": KIND, "apiVersion": API_VERSION, "metadata": metadata}
    if form.kind == "table":
        head, _ = list_head(form, {"resourceVersion": str(version)})
        body = {**head, "rows": [{"cells": [None] * len(COLUMNS), "object": partial({"metadata": metadata}, form)}]}
    elif form.kind == "partial":
        body = partial({"metadata": metadata}, form)
    return event("BOOKMARK", msgspec.json.encode(body))
