"""Takes out of answers what differs between two runs on the same server: versions, uids, times, random names, tokens."""

from __future__ import annotations

import json
import re
from typing import Any

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_RANDOM = re.compile(r"(kube-api-access-|gen-)[a-z0-9]{5}\b")
_AGE = re.compile(r"^\d+[smh]$")
_VERSIONS_SAID = re.compile(r"(resource version: |in record \()\d+|current: \d+|\(\d+\)")
_MULTI = ("List", "Table")


def normalise(steps: list[dict[str, Any]], namespace: str) -> list[dict[str, Any]]:
    """Objects' versions by rank, uids by order of appearance, lists' versions and tokens as marks."""
    text = json.dumps(steps).replace(namespace, "NS")
    for number, uid in enumerate(dict.fromkeys(_UID.findall(text)), 1):
        text = text.replace(uid, f"uid-{number}")
    text = _RANDOM.sub(r"\1RANDOM", text)
    found = json.loads(text)
    versions: set[int] = set()
    for step in found:
        for body in _bodies(step):
            _collect(body, versions)
    ranks = {str(version): f"v{rank}" for rank, version in enumerate(sorted(versions), 1)}
    for step in found:
        if "body" in step:
            step["body"] = _clean(step["body"], ranks, top=True)
        for event in step.get("events", ()):
            event["object"] = _clean(event["object"], ranks, top=event["type"] == "BOOKMARK")
    return [json.loads(_TIME.sub("TIME", json.dumps(step))) for step in found]


def _bodies(step: dict[str, Any]) -> list[Any]:
    if "body" in step:
        return [step["body"]]
    return [event["object"] for event in step["events"] if event["type"] != "BOOKMARK"]


def _is_many(body: Any) -> bool:
    return isinstance(body, dict) and str(body.get("kind", "")).endswith(_MULTI)


def _collect(body: Any, versions: set[int]) -> None:
    """Versions of objects, not of lists."""
    if isinstance(body, list):
        for one in body:
            _collect(one, versions)
    elif isinstance(body, dict):
        version = (body.get("metadata") or {}).get("resourceVersion") if not _is_many(body) else None
        if isinstance(version, str) and version.isdigit() and isinstance(body.get("metadata"), dict):
            versions.add(int(version))
        for value in body.values():
            _collect(value, versions)


def _clean(body: Any, ranks: dict[str, str], *, top: bool = False) -> Any:
    if isinstance(body, list):
        return [_clean(one, ranks) for one in body]
    if isinstance(body, str):
        body = body.partition("\n@@ ")[0]  # a diff of Go structs
        said = _VERSIONS_SAID.sub(lambda match: re.sub(r"\d+", "N", match.group()), body)
        return "AGE" if _AGE.match(body) else said
    if not isinstance(body, dict):
        return body
    found = {name: _clean(value, ranks) for name, value in body.items()}
    if found.get("kind") == "Table":
        for column in found.get("columnDefinitions") or ():
            column.pop("description", None)  # the API's own documentation
    if isinstance(found.get("data"), dict) and "ca.crt" in found["data"]:
        found["data"] = {"ca.crt": "CERTIFICATE"}
    meta = found.get("metadata")
    if isinstance(meta, dict):
        if "resourceVersion" in meta:
            version = meta["resourceVersion"]
            meta["resourceVersion"] = "LIST" if top and _is_many(body) else ranks.get(version, "SOME")
        if meta.get("continue"):
            meta["continue"] = "TOKEN"
        for field in meta.get("managedFields") or ():
            field.pop("time", None)
        if "managedFields" in meta:  # their order goes by the second in which they were written
            meta["managedFields"].sort(key=lambda f: (f["operation"], f["manager"], f.get("subresource", "")))
    return found
