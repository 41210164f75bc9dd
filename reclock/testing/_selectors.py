"""Label and field selectors, as API servers read them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_SET = re.compile(r"\s*([^\s!=,()]+)\s+(in|notin)\s*\(([^)]*)\)\s*")


def chosen(obj: Mapping[str, Any], labels: str, fields: str) -> bool:
    """Whether both selectors choose the object. ValueError for what is no selector."""
    return all(_label(obj["metadata"].get("labels") or {}, term) for term in _terms(labels)) and all(
        _field(obj, term) for term in _terms(fields)
    )


def _terms(selector: str) -> list[str]:
    return [term for term in re.split(r",(?![^(]*\))", selector) if term.strip()]


def _label(labels: Mapping[str, str], term: str) -> bool:
    if match := _SET.fullmatch(term):
        key, word, values = match.groups()
        among = labels.get(key) in [value.strip() for value in values.split(",")]
        return among if word == "in" else not among
    key, sign, value = _split(term)
    if not sign:
        return (key[1:].strip() not in labels) if key.startswith("!") else key in labels
    return (labels.get(key) == value) == (sign == "=")


def _field(obj: Any, term: str) -> bool:
    key, sign, value = _split(term)
    if not sign:
        raise ValueError(f"field selector {term!r}: has no = or !=")
    for part in key.split("."):
        obj = obj.get(part, "") if isinstance(obj, Mapping) else ""
    return (str(obj) == value) == (sign == "=")


def _split(term: str) -> tuple[str, str, str]:
    match = re.fullmatch(r"\s*([^=!]+?)\s*(==|=|!=)\s*(.*?)\s*", term)
    if match is None:
        return term.strip(), "", ""
    return match[1], match[2].replace("==", "="), match[3]
