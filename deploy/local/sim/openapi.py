"""OpenAPI documents: version 3 for what kubectl asks of it (validation support, explain), an empty version 2.

Schemas of built-in types come from the models of the Kubernetes client library, read when first asked for and shared by
all clusters; those of custom types from their definitions. Patches are offered without the strategic type, so that
kubectl computes them from its own types, which know every merge key.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import re
from functools import cache
from typing import Any

from deploy.local.sim.catalog import Catalog
from deploy.local.sim.discovery import groups
from deploy.local.sim.objects import encode
from deploy.local.sim.types import Object, ResourceType

_REFERENCE = "#/components/schemas/"
_PLAIN = {
    "str": {"type": "string"},
    "int": {"type": "integer", "format": "int32"},
    "float": {"type": "number", "format": "double"},
    "bool": {"type": "boolean"},
    "datetime": {"type": "string", "format": "date-time"},
    "bytes": {"type": "string", "format": "byte"},
    "bytearray": {"type": "string", "format": "byte"},
    "object": {"type": "object"},
}
_OPTIONS = ("dryRun", "fieldManager", "fieldValidation", "force", "pretty")
_META = "V1ObjectMeta"


def index(catalog: Catalog) -> Object:
    """/openapi/v3."""
    keys = ["api/v1"] + [
        f"apis/{group}/{version}" for group, found in groups(catalog).items() for version in found
    ]
    paths = {}
    for key in keys:
        document = hashlib.sha256(f"{key}/{catalog.generation}".encode()).hexdigest()[:40].upper()
        paths[key] = {"serverRelativeURL": f"/openapi/v3/{key}?hash={document}"}
    return {"paths": paths}


def empty_v2() -> Object:
    """/openapi/v2."""
    return {
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": "sim"},
        "paths": {},
        "definitions": {},
    }


def document(catalog: Catalog, key: str) -> bytes | None:
    """The document of `api/v1` or `apis/<group>/<version>`; None when nothing is served there."""
    root, *rest = key.split("/")
    group, version = ("", rest[0]) if root == "api" else (rest[0], rest[1]) if len(rest) == 2 else ("", "")
    types = [t for t in catalog.types() if (t.group, t.version) == (group, version)]
    if not types:
        return None
    if not any(type_.custom for type_ in types):
        return _builtin(group, version, tuple(types))
    return _document(types)


@cache
def _builtin(group: str, version: str, types: tuple[ResourceType, ...]) -> bytes:
    return _document(types)


def _document(types: Any) -> bytes:
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for type_ in types:
        name = _add_schema(type_, schemas)
        paths.update(_paths(type_, name))
    return encode(
        {
            "openapi": "3.0.0",
            "info": {"title": "Kubernetes", "version": "sim"},
            "paths": paths,
            "components": {"schemas": schemas},
        }
    )


def _kind(type_: ResourceType) -> dict[str, str]:
    return {"group": type_.group, "version": type_.version, "kind": type_.kind}


def _add_schema(type_: ResourceType, schemas: dict[str, Any]) -> str:
    if type_.custom:
        name = f"{'.'.join(reversed(type_.group.split('.')))}.{type_.version}.{type_.kind}"
        properties = dict((type_.schema or {}).get("properties") or {})
        _add_model(_META, schemas)
        properties["metadata"] = {"allOf": [{"$ref": _REFERENCE + _META}], "default": {}}
        for field in ("apiVersion", "kind"):
            properties[field] = {"type": "string"}
        schemas[name] = {**(type_.schema or {"type": "object"}), "properties": properties}
    else:
        name = _model_name(type_)
        _add_model(name, schemas)
    schemas[name] = {
        **schemas.get(name, {"type": "object"}),
        "x-kubernetes-group-version-kind": [_kind(type_)],
    }
    return name


def _paths(type_: ResourceType, schema: str) -> dict[str, Any]:
    root = f"/apis/{type_.group}/{type_.version}" if type_.group else f"/api/{type_.version}"
    middle = "/namespaces/{namespace}" if type_.namespaced else ""
    kind = {"x-kubernetes-group-version-kind": _kind(type_)}
    media = {"application/json": {"schema": {"$ref": _REFERENCE + schema}}}
    answers = {"200": {"description": "OK", "content": media}}
    options = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in _OPTIONS]
    patches = {f"application/{name}": {"schema": {"type": "object"}} for name in
               ("json-patch+json", "merge-patch+json", "apply-patch+yaml")}  # fmt: skip
    body = {"content": {"*/*": {"schema": {"$ref": _REFERENCE + schema}}}, "required": True}
    whole = {"get": {"responses": answers, "x-kubernetes-action": "list", **kind},
             "post": {"responses": answers, "parameters": options, "requestBody": body,
                      "x-kubernetes-action": "post", **kind}}  # fmt: skip
    one = {"get": {"responses": answers, "x-kubernetes-action": "get", **kind},
           "put": {"responses": answers, "parameters": options, "requestBody": body, "x-kubernetes-action": "put",
                   **kind},
           "patch": {"responses": answers, "parameters": options, "requestBody": {"content": patches},
                     "x-kubernetes-action": "patch", **kind}}  # fmt: skip
    collection = f"{root}{middle}/{type_.plural}"
    found = {collection: whole}
    if "patch" in type_.verbs:
        found[f"{collection}/{{name}}"] = one
    return found


@cache
def _models() -> Any:
    return importlib.import_module("kubernetes_asyncio.client.models")


def _model_name(type_: ResourceType) -> str:
    version = type_.version.capitalize()
    group = type_.group.partition(".")[0].capitalize() or "Core"
    for name in (f"{version}{type_.kind}", f"{group}{version}{type_.kind}"):
        if hasattr(_models(), name):
            return name
    return f"{version}{type_.kind}"


def _add_model(name: str, schemas: dict[str, Any]) -> None:
    """The model's schema and those of everything in it."""
    model = getattr(_models(), name, None)
    if name in schemas or model is None:
        return
    properties: dict[str, Any] = {}
    schemas[name] = {"type": "object", "properties": properties}
    for attribute, json_name in model.attribute_map.items():
        schema = _schema(model.openapi_types[attribute], schemas)
        described = _description(model, attribute)
        if "$ref" in schema:
            schema = {"allOf": [schema], "default": {}}
        properties[json_name] = {**schema, "description": described} if described else schema


def _schema(said: str, schemas: dict[str, Any]) -> dict[str, Any]:
    if said in _PLAIN:
        return dict(_PLAIN[said])
    listed = re.fullmatch(r"list\[(.+)\]", said)
    if listed is not None:
        return {"type": "array", "items": _schema(listed[1], schemas)}
    mapped = re.fullmatch(r"dict[\[(]str, (.+)[\])]", said)
    if mapped is not None:
        return {"type": "object", "additionalProperties": _schema(mapped[1], schemas)}
    _add_model(said, schemas)
    return {"$ref": _REFERENCE + said} if said in schemas else {"type": "object"}


def _description(model: Any, attribute: str) -> str:
    """The field's description, out of the property's docstring."""
    text = inspect.getdoc(getattr(model, attribute, None)) or ""
    parts = text.split("\n\n")
    return " ".join(parts[1].split()).removesuffix("# noqa: E501").strip() if len(parts) > 1 else ""
