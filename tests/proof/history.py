"""What clients and members record: plain data, in each recorder's own order, for `tests.proof.checker`.

`stamp` stands for an object's content: whoever writes gives each state its own. A client learns from the front
(cluster, uid, stamp, fleet version); the member's recorder knows (uid, stamp, member version): so the two meet.
Times are seconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Seen:
    """One state of one object as a client was shown it."""

    namespace: str
    name: str
    uid: str
    cluster: str
    fleet: int
    stamp: str

    @property
    def key(self) -> Key:
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class Listed:
    """A list's answer. `consistent`: it was asked for the most recent state (not version 0 or NotOlderThan)."""

    started: float
    ended: float
    version: int
    items: tuple[Seen, ...]
    replica: str = ""
    consistent: bool = True
    follows: bool = True
    """The client's store is this from here on; False for a look aside."""
    partial: bool = False
    """It came with a Warning that a member is left out: what is not there may exist all the same."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A watch began behind `version`."""

    at: float
    version: int
    replica: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """ADDED, MODIFIED or DELETED on the open watch."""

    at: float
    type: str
    seen: Seen


@dataclass(frozen=True, slots=True)
class Bookmark:
    """The watch has sent everything up to `version`."""

    at: float
    version: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The watch ended: 0 in order or by a broken connection, else the Status' code."""

    at: float
    code: int
    message: str = ""


@dataclass(frozen=True, slots=True)
class Got:
    """A get's answer; `seen` None for 404."""

    started: float
    ended: float
    key: Key
    seen: Seen | None
    replica: str = ""
    consistent: bool = True


@dataclass(frozen=True, slots=True)
class Wrote:
    """A write's answer. `seen`: what it shows (None: the object is gone). `code` 0: no answer, outcome unknown."""

    started: float
    ended: float
    verb: str
    key: Key
    code: int
    seen: Seen | None = None
    uid: str = ""
    replica: str = ""


Record = Listed | Opened | Event | Bookmark | Ended | Got | Wrote


@dataclass(slots=True)
class History:
    """One client. Clients with the same `scope` (namespace, selector) must be told the same."""

    client: str
    scope: str
    records: list[Record] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MemberState:
    """One state of one object as its member's recorder saw it."""

    version: int
    namespace: str
    name: str
    uid: str
    stamp: str
    deleted: bool = False


@dataclass(slots=True)
class MemberRecord:
    """What a member did, in its own order. `disturbed`: its history was cut (restarted, compacted), so that the
    clock may have listed it: states in between may be missing, and come in the list's order."""

    cluster: str
    states: list[MemberState] = field(default_factory=list)
    disturbed: bool = False
    returns: bool = False
    """Its objects may be shown anew under new numbers: it was set back, left and joined, or shares names."""
    lives: int = 1
    """More than one when it was set back or replaced: its versions ran backwards."""


@dataclass(frozen=True, slots=True)
class Counter:
    """An object that clients increment by optimistic locking, from `begin` on. `won`: values of answered updates
    by client; `unknown`: updates without an answer."""

    key: Key
    begin: int
    final: int
    won: Mapping[str, tuple[int, ...]]
    unknown: int


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure that must not be above its limit: bytes kept for a client, seconds that one waited for others."""

    what: str
    value: float
    limit: float


@dataclass(slots=True)
class Run:
    """All that is to be checked together. `final`: scope -> key -> (uid, stamp) as the members have it at the end."""

    histories: list[History] = field(default_factory=list)
    members: list[MemberRecord] = field(default_factory=list)
    final: dict[str, dict[Key, tuple[str, str]]] = field(default_factory=dict)
    counters: list[Counter] = field(default_factory=list)
    gaps: bool = False
    """Answers were given without a member, so that live objects may have been numbered anew."""
    window: float = float("inf")
    """Seconds that a version can be resumed from."""
    measures: list[Measure] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Breach:
    """What is wrong, and the records that show it."""

    invariant: str
    client: str
    text: str
    excerpt: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = "".join(f"\n    {line}" for line in self.excerpt)
        return f"{self.invariant}: {self.client}: {self.text}{lines}"
