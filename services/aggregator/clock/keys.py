"""Names of the keys in etcd: `markers/<group>/<resource>/<namespace>/<name>/<cluster>` and their like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from services.common.etcd import prefix_end

Kind = Literal["base", "claims", "gaps", "leader", "left", "lists", "markers", "positions"]

FIELDS = {"base": 0, "claims": 4, "gaps": 3, "leader": 2, "left": 2, "lists": 3, "markers": 5, "positions": 3}
"""How many fields follow each kind; names of Kubernetes contain no slash. In key order: a sequencer watches `base`
to `lists`, a follower `base` to `positions`, each in one range: only within one watch revisions come in order."""


DOUBT = b"watch "
"""Before the version in a `lists` key: the cluster's watch may be dead, which is no wish for a list."""

KINDS: tuple[Kind, ...] = ("markers", "positions", "gaps", "claims", "left", "lists")
"""What a rebuild removes: all but the base, and but the leader keys, which go with their leases: a sequencer that has not
heard of the rebuild answers from its log as long as it is certain of its key, so nobody may number anything until then."""


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

    def left(self, group: str, resource: str) -> bytes:
        """Put whenever a position is deleted: its revision tells what the missing key cannot."""
        return self.prefix + f"left/{group}/{resource}".encode()

    def asked(self, group: str, resource: str, cluster: str) -> bytes:
        """A replica asks the sequencer to have one cluster listed anew."""
        return self.prefix + f"lists/{group}/{resource}/{cluster}".encode()

    def followed(self, *, markers: bool) -> tuple[bytes, bytes]:
        """The range to watch; without `markers` what a sequencer must hear of others."""
        return self.base, prefix_end(self.kind("positions" if markers else "lists"))

    def parse(self, key: bytes) -> Parsed | None:
        """Take a key apart; None for one that is not of this layout."""
        if not key.startswith(self.prefix):
            return None
        kind, *fields = key[len(self.prefix) :].decode().split("/")
        if FIELDS.get(kind) != len(fields):
            return None
        if kind == "markers":
            return Parsed(kind, *fields)
        if kind in ("positions", "gaps", "lists"):
            return Parsed(kind, fields[0], fields[1], cluster=fields[2])
        if kind == "claims":
            return Parsed(kind, *fields)
        return Parsed(kind, *fields)
