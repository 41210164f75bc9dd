"""Names of the keys in etcd: `markers/<group>/<resource>/<namespace>/<name>/<cluster>` and their like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["base", "markers", "positions", "gaps", "claims", "leader"]

FIELDS = {"base": 0, "markers": 5, "positions": 3, "gaps": 3, "claims": 4, "leader": 2}
"""How many fields follow each kind; names of Kubernetes contain no slash."""


KINDS: tuple[Kind, ...] = ("markers", "positions", "gaps", "claims", "leader")
"""What a rebuild removes: all but the base."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A key taken apart; what its kind does not have is empty."""

    kind: str
    group: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""
    cluster: str = ""


class Layout:
    """Keys under one prefix (which ends with a slash)."""

    def __init__(self, prefix: str) -> None:
        self.prefix = (prefix if prefix.endswith("/") else prefix + "/").encode()
        self.base = self.prefix + b"base"

    def kind(self, kind: Kind) -> bytes:
        """Prefix of all keys of one kind."""
        return self.prefix + f"{kind}/".encode()

    def all(self, kind: Kind, group: str, resource: str) -> bytes:
        """Prefix of one resource's keys of one kind."""
        return self.prefix + f"{kind}/{group}/{resource}/".encode()

    def marker(self, group: str, resource: str, namespace: str, name: str, cluster: str) -> bytes:
        """One object on one cluster."""
        return self.prefix + f"markers/{group}/{resource}/{namespace}/{name}/{cluster}".encode()

    def position(self, group: str, resource: str, cluster: str) -> bytes:
        """One cluster's position."""
        return self.prefix + f"positions/{group}/{resource}/{cluster}".encode()

    def gap(self, group: str, resource: str, cluster: str) -> bytes:
        """Answers were given without this cluster."""
        return self.prefix + f"gaps/{group}/{resource}/{cluster}".encode()

    def claim(self, group: str, resource: str, namespace: str, name: str) -> bytes:
        """A create under way."""
        return self.prefix + f"claims/{group}/{resource}/{namespace}/{name}".encode()

    def leader(self, group: str, resource: str) -> bytes:
        """Who is the sequencer."""
        return self.prefix + f"leader/{group}/{resource}".encode()

    def parse(self, key: bytes) -> Parsed | None:
        """Take a key apart; None for one that is not of this layout."""
        if not key.startswith(self.prefix):
            return None
        kind, *fields = key[len(self.prefix) :].decode().split("/")
        if FIELDS.get(kind) != len(fields):
            return None
        if kind == "markers":
            return Parsed(kind, *fields)
        if kind in ("positions", "gaps"):
            return Parsed(kind, fields[0], fields[1], cluster=fields[2])
        if kind == "claims":
            return Parsed(kind, *fields)
        return Parsed(kind, *fields)
