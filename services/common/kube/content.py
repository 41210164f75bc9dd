"""Digests of desired objects, and whether what a cluster holds still says what we wrote.

A copy is written again only when the digest of the desired object differs from the one it carries, or when
somebody changed it. Defaults and webhooks of the cluster change an object as it is written: so what counts as
"changed" is a difference to the state right after our own write, not to the desired object.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

_encoder = msgspec.json.Encoder(order="deterministic")


def digest(obj: Mapping[str, Any]) -> str:
    """Digest of a desired object, 32 hex digits; equal content gives equal digests."""
    return hashlib.sha256(_encoder.encode(obj)).hexdigest()[:32]


def fingerprint(obj: Mapping[str, Any]) -> bytes:
    """Digest of all that a user can set on a stored object: not status, versions and bookkeeping."""
    meta = obj["metadata"]
    content = {key: value for key, value in obj.items() if key not in ("metadata", "status")}
    content["labels"] = meta.get("labels")
    content["annotations"] = meta.get("annotations")
    return hashlib.sha256(_encoder.encode(content)).digest()


def contains(actual: Any, desired: Any) -> bool:
    """Whether `actual` says everything that `desired` says; it may say more (defaults).

    Lists are compared item by item: members append neither containers nor ports, but they do fill items.
    Absent, null and empty count as equal.
    """
    if isinstance(desired, Mapping):
        if not isinstance(actual, Mapping):
            return not desired and actual is None
        return all(contains(actual.get(key), value) for key, value in desired.items())
    if isinstance(desired, Sequence) and not isinstance(desired, str):
        if not isinstance(actual, Sequence) or isinstance(actual, str):
            return not desired and actual is None
        return len(actual) == len(desired) and all(map(contains, actual, desired))
    return bool(actual == desired) or (not actual and not desired and type(desired) is not bool)
