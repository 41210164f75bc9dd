"""The part of kubectl's JSONPath that printer columns use: fields, indexes, [?(@.a=="b")] filters."""

from __future__ import annotations

import re
from typing import Any

_STEP = re.compile(
    r"""\.([A-Za-z_][-\w]*(?:\\\.[-\w./]+)*)"""  # .field, with escaped dots
    r"""|\['([^']+)'\]"""
    r"""|\[(-?\d+|\*)\]"""
    r"""|\[\?\(@\.([\w.]+)\s*==\s*["']([^"']*)["']\)\]"""
)


def first(obj: Any, path: str) -> Any:
    """The first value at the path; None when there is none, or when the path says something else."""
    found = [obj]
    at = 0
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None:
            return None
        at = step.end()
        found = [value for one in found for value in _follow(one, step)]
    return found[0] if found else None


def _follow(value: Any, step: re.Match[str]) -> list[Any]:
    field, quoted, index, key, wanted = step.groups()
    name = field.replace("\\", "") if field else quoted
    if name is not None:
        return [value[name]] if isinstance(value, dict) and value.get(name) is not None else []
    if not isinstance(value, list):
        return []
    if index == "*":
        return value
    if index is not None:
        number = int(index)
        return [value[number]] if -len(value) <= number < len(value) else []
    return [item for item in value if str(first(item, f".{key}")) == wanted]
