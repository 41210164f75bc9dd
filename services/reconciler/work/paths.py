"""Paths into objects: `spec.volumes[*].configMap.name`, `metadata.labels['app.kubernetes.io/name']`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

EACH = "[*]"
_STEP = re.compile(r"\.?([A-Za-z0-9_\-/]+)|\[\*\]|\['([^']+)'\]")


@dataclass(frozen=True, slots=True)
class Path:
    """A parsed path; `EACH` among the steps is every element of a list, or value of a map."""

    text: str
    steps: tuple[str, ...]

    def values(self, obj: Any) -> list[str]:
        """Texts of the scalars that the path leads to; numbers and booleans as in JSON."""
        return [_text(value) for value in _walk(obj, self.steps) if isinstance(value, str | int | float)]


def parse(text: str) -> Path:
    """Parse; ValueError says where it goes wrong."""
    steps: list[str] = []
    at = 0
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None or (found.group(1) and bool(steps) != found.group().startswith(".")):
            raise ValueError(f"{text!r}: not understood from {text[at:]!r} on; allowed: a.b, a[*], a['k.e/y']")
        steps.append(found.group(1) or found.group(2) or EACH)
        at = found.end()
    if not steps:
        raise ValueError("it is empty")
    return Path(text, tuple(steps))


def _walk(value: Any, steps: tuple[str, ...]) -> Iterator[Any]:
    for place, step in enumerate(steps):
        if step == EACH:
            inner: Iterable[Any] = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
            for element in inner:
                yield from _walk(element, steps[place + 1 :])
            return
        if not isinstance(value, dict) or step not in value:
            return
        value = value[step]
    yield value


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
