"""Keys of the fair queue: `<namespace>/<kind>/<name>`; the cluster stands beside them.

The namespace comes first because the queue shares a cluster's turns out by what stands before the first slash.
"""

from __future__ import annotations

from typing import NamedTuple


class Key(NamedTuple):
    """One object to reconcile; `namespace` is "" for cluster-scoped kinds. A kind may hold slashes."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.kind}/{self.name}"


def parse(text: str) -> Key:
    """The inverse of `str(key)`; ValueError for anything else."""
    namespace, _, rest = text.partition("/")
    kind, _, name = rest.rpartition("/")
    if not kind or not name:
        raise ValueError(f"{text!r} is no key: <namespace>/<kind>/<name>")
    return Key(kind, namespace, name)
