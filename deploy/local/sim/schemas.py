"""Structural schemas of custom resources: pruning, defaults, validation.

Source: KEP-692 (structural schemas), KEP-1152 (defaulting); messages as kube-openapi's validation words them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from deploy.local.sim.errors import Cause
from deploy.local.sim.objects import encode
from deploy.local.sim.types import Object, ResourceType

_PRESERVE = "x-kubernetes-preserve-unknown-fields"
_ROOT = ("apiVersion", "kind", "metadata")


def prune(type_: ResourceType, obj: Object) -> None:
    """Drops what the schema does not know."""
    if type_.schema is not None:
        _prune(obj, type_.schema, root=True)


def _prune(value: Any, schema: Mapping[str, Any], *, root: bool = False) -> None:
    if isinstance(value, dict):
        known = schema.get("properties") or {}
        extra = schema.get("additionalProperties")
        for name in list(value):
            if root and name in _ROOT:
                continue
            if name in known:
                _prune(value[name], known[name])
            elif isinstance(extra, Mapping):
                _prune(value[name], extra)
            elif extra is not True and not schema.get(_PRESERVE):
                if schema.get("x-kubernetes-embedded-resource") and name in _ROOT:
                    continue
                del value[name]
    elif isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        for item in value:
            _prune(item, schema["items"])


def fill(type_: ResourceType, obj: Object) -> None:
    """Writes the schema's defaults."""
    if type_.schema is not None:
        _fill(obj, type_.schema)


def _fill(value: Any, schema: Mapping[str, Any]) -> None:
    if isinstance(value, dict):
        for name, inner in (schema.get("properties") or {}).items():
            if value.get(name) is None:
                if "default" in inner and (name not in value or not inner.get("nullable")):
                    value[name] = deepcopy(inner["default"])
                elif name in value and not inner.get("nullable") and inner.get("type") != "null":
                    del value[name]
            if value.get(name) is not None:
                _fill(value[name], inner)
        extra = schema.get("additionalProperties")
        if isinstance(extra, Mapping):
            for name, one in value.items():
                if name not in (schema.get("properties") or {}):
                    _fill(one, extra)
    elif isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        for item in value:
            _fill(item, schema["items"])


def violations(type_: ResourceType, obj: Object) -> Iterator[Cause]:
    """What the schema refuses."""
    if type_.schema is None:
        return
    rest = {name: value for name, value in obj.items() if name not in _ROOT}
    schema = {key: value for key, value in type_.schema.items() if key != "required"}
    yield from _violations(rest, schema, "")
    for name in type_.schema.get("required") or ():
        if name not in obj:
            yield Cause("FieldValueRequired", name, "Required value")


_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}


def _violations(value: Any, schema: Mapping[str, Any], path: str) -> Iterator[Cause]:
    if value is None and schema.get("nullable"):
        return
    wanted = schema.get("type")
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, int | str):
            yield _type_error(path, value, "integer,string")
        return
    if wanted and not _is_of(value, wanted):
        yield _type_error(path, value, wanted)
        return
    if "enum" in schema and value not in schema["enum"]:
        said = ", ".join(encode(one).decode() for one in schema["enum"])
        text = f"Unsupported value: {encode(value).decode()}: supported values: {said}"
        yield Cause("FieldValueNotSupported", path, text)
    if isinstance(value, str):
        yield from _string(value, schema, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _number(value, schema, path)
    elif isinstance(value, list):
        yield from _list(value, schema, path)
    elif isinstance(value, dict):
        yield from _object(value, schema, path)


def _is_of(value: Any, wanted: str) -> bool:
    if isinstance(value, bool):
        return wanted == "boolean"
    if wanted == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(wanted, (object,)))


def _name_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    return next((name for name, types in _TYPES.items() if isinstance(value, types)), "object")


def _type_error(path: str, value: Any, wanted: str) -> Cause:
    kind = _name_of(value)
    text = f'Invalid value: "{kind}": {path} in body must be of type {wanted}: "{kind}"'
    return Cause("FieldValueTypeInvalid", path, text)


def _string(value: str, schema: Mapping[str, Any], path: str) -> Iterator[Cause]:
    if len(value) > schema.get("maxLength", len(value)):
        yield Cause("FieldValueTooLong", path, f"Too long: may not be more than {schema['maxLength']} bytes")
    if len(value) < schema.get("minLength", 0):
        text = f"{path} in body should be at least {schema['minLength']} chars long"
        yield Cause("FieldValueInvalid", path, f'Invalid value: "{value}": {text}')
    if "pattern" in schema and not re.search(schema["pattern"], value):
        text = f"{path} in body should match '{schema['pattern']}'"
        yield Cause("FieldValueInvalid", path, f'Invalid value: "{value}": {text}')


def _number(value: float, schema: Mapping[str, Any], path: str) -> Iterator[Cause]:
    if value < schema.get("minimum", value):
        text = f"{path} in body should be greater than or equal to {schema['minimum']}"
        yield Cause("FieldValueInvalid", path, f"Invalid value: {value}: {text}")
    if value > schema.get("maximum", value):
        text = f"{path} in body should be less than or equal to {schema['maximum']}"
        yield Cause("FieldValueInvalid", path, f"Invalid value: {value}: {text}")


def _list(value: list[Any], schema: Mapping[str, Any], path: str) -> Iterator[Cause]:
    if len(value) > schema.get("maxItems", len(value)):
        text = f"Too many: {len(value)}: must have at most {schema['maxItems']} items"
        yield Cause("FieldValueTooMany", path, text)
    if len(value) < schema.get("minItems", 0):
        text = f"{path} in body should have at least {schema['minItems']} items"
        yield Cause("FieldValueInvalid", path, f"Invalid value: {len(value)}: {text}")
    for number, item in enumerate(value):
        yield from _violations(item, schema.get("items") or {}, f"{path}[{number}]")


def _object(value: dict[str, Any], schema: Mapping[str, Any], path: str) -> Iterator[Cause]:
    known = schema.get("properties") or {}
    extra = schema.get("additionalProperties")
    for name in schema.get("required") or ():
        if name not in value:
            yield Cause("FieldValueRequired", f"{path}.{name}" if path else name, "Required value")
    for name, inner in value.items():
        at = f"{path}.{name}" if path else name
        if name in known:
            yield from _violations(inner, known[name], at)
        elif isinstance(extra, Mapping):
            yield from _violations(inner, extra, at)
