"""JSON patch, JSON merge patch and strategic merge patch.

Sources: RFC 6902, RFC 7386, the API conventions on strategic merge patches.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import jsonpatch

from deploy.local.sim import listkeys
from deploy.local.sim.errors import bad_request, unprocessable, unsupported_media_type
from deploy.local.sim.types import Object, ResourceType

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


def accepted(type_: ResourceType) -> tuple[str, ...]:
    """The media types of patches that the type takes."""
    middle = () if type_.custom else (STRATEGIC_PATCH,)
    return (JSON_PATCH, MERGE_PATCH, *middle, APPLY_PATCH, "application/apply-patch+cbor")[: 3 + len(middle)]


def patch(type_: ResourceType, obj: Object, content_type: str, body: Any) -> Object:
    """The patched object; `obj` is left as it is. Raises Refused: 400, 415, 422."""
    if content_type == JSON_PATCH:
        return _json_patch(obj, body)
    if content_type == MERGE_PATCH:
        if not isinstance(body, dict):
            raise bad_request("error decoding patch: json: cannot unmarshal into a map")
        merged: Object = merge_patch(obj, body)
        return merged
    if content_type == STRATEGIC_PATCH and not type_.custom:
        result: Object = strategic(obj, body, ())
        return result
    raise unsupported_media_type(accepted(type_))


def _json_patch(obj: Object, body: Any) -> Object:
    try:
        changed: Object = jsonpatch.apply_patch(obj, body)
    except jsonpatch.InvalidJsonPatch:
        text = "json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"
        raise bad_request(f"error decoding patch: {text}") from None
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException, AssertionError):
        raise unprocessable() from None
    except (TypeError, KeyError, AttributeError) as error:
        raise bad_request(f"error decoding patch: {error}") from None
    return changed


def merge_patch(target: Any, change: Any) -> Any:
    """RFC 7386; neither argument is changed."""
    if not isinstance(change, dict):
        return deepcopy(change)
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in change.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge_patch(result.get(name), value)
    return result


def strategic(target: Any, change: Any, path: tuple[str, ...]) -> Any:
    """Strategic merge: maps merge, lists of the types that have a merge key merge by it, other lists are replaced."""
    if not isinstance(change, dict):
        return deepcopy(change)
    directive = change.get("$patch")
    if directive == "replace":
        return {name: deepcopy(value) for name, value in change.items() if name != "$patch"}
    if directive == "delete":
        return {}
    result = dict(target) if isinstance(target, dict) else {}
    if "$retainKeys" in change:
        result = {name: value for name, value in result.items() if name in change["$retainKeys"]}
    for name, value in change.items():
        if name.startswith("$deleteFromPrimitiveList/"):
            field = name.partition("/")[2]
            result[field] = [one for one in result.get(field) or () if one not in value]
        elif name.startswith("$"):
            continue
        elif value is None:
            result.pop(name, None)
        elif isinstance(value, list):
            result[name] = _strategic_list(result.get(name), value, (*path, name))
        else:
            result[name] = strategic(result.get(name), value, (*path, name))
    for name, order in change.items():
        if name.startswith("$setElementOrder/"):
            _reorder(result, name.partition("/")[2], order, path)
    return result


def _strategic_list(target: Any, change: list[Any], path: tuple[str, ...]) -> list[Any]:
    existing = list(target or ())
    if path[-1] in listkeys.PRIMITIVE_MERGES:
        return _interleave(list(dict.fromkeys(change)), existing, lambda one: one)
    key = listkeys.merge_key(path, [*existing, *change])
    if key is None:
        return deepcopy(change)
    if any(isinstance(one, dict) and one.get("$patch") == "replace" for one in change):
        return [deepcopy(one) for one in change if one.get("$patch") != "replace"]
    patched = []
    for one in change:
        if not isinstance(one, dict) or key not in one:
            raise bad_request(f"map: {one} does not contain declared merge key: {key}")
        old = next((item for item in existing if item.get(key) == one[key]), None)
        if one.get("$patch") == "delete":
            existing = [item for item in existing if item.get(key) != one[key]]
        else:
            patched.append(strategic({} if old is None else old, one, path))
    return _interleave(patched, existing, lambda item: item[key])


def _interleave(patched: list[Any], existing: list[Any], name: Callable[[Any], Any]) -> list[Any]:
    """The patched items in the patch's order, among the others in theirs; what is new comes before them."""
    places = {name(item): number for number, item in enumerate(existing)}
    names = {name(item) for item in patched}
    others = [item for item in existing if name(item) not in names]
    result = []
    for item in patched:
        place = places.get(name(item), -1)
        while others and places[name(others[0])] < place:
            result.append(others.pop(0))
        result.append(item)
    return [*result, *others]


def _reorder(result: dict[str, Any], field: str, order: list[Any], path: tuple[str, ...]) -> None:
    items = result.get(field)
    if not isinstance(items, list) or not order:
        return
    key = listkeys.merge_key((*path, field), items)
    wanted = [one.get(key) if isinstance(one, dict) and key else one for one in order]

    def place(item: Any) -> int:
        value = item.get(key) if isinstance(item, dict) and key else item
        return wanted.index(value) if value in wanted else len(wanted)

    result[field] = sorted(items, key=place)
