from collections.abc import Iterable
from typing import Literal

from _fastpath.listing import Item

EVENT: int
DIFF: int
GAP: int
CLASH: int
LEAVE: int
KINDS: tuple[str, ...]

class Marker:
    """One state of one object on one cluster; also the log's entry of its put.

    `version` is the member's, `fleet` ours, `since` the fleet version of the object's ADDED. `type` is what
    merged views make of the put, `before` the state that they showed before it under that key (None for ADDED).
    `prev` is the cluster's own state before, within the window. `labels` is shared: never change it.
    """

    cluster: str
    incarnation: str
    namespace: str
    name: str
    uid: str
    version: int
    fleet: int
    since: int
    labels: dict[str, str]
    deleted: bool
    deleting: bool
    kind: int
    prev: Marker | None
    type: Literal["HIDDEN", "ADDED", "MODIFIED", "DELETED"]
    marker: Marker
    before: Marker | None

    def __init__(
        self,
        cluster: str,
        incarnation: str,
        namespace: str,
        name: str,
        uid: str,
        version: int,
        labels: dict[str, str] | None = None,
        *,
        deleted: bool = False,
        deleting: bool = False,
        kind: int = 0,
    ) -> None: ...
    def same_object(self, other: Marker) -> bool: ...
    def same_state(self, other: Marker) -> bool: ...
    def rewritten(
        self, kind: int, *, deleted: bool | None = None, version: int | None = None, incarnation: str | None = None
    ) -> Marker: ...
    def keep_since(self, since: int) -> None: ...
    def stamp(self, fleet: int, shown_as: int, prev: Marker | None) -> None: ...
    def cut(self) -> None: ...
    def encode(self, index: int) -> bytes: ...

class NameTable:
    """name -> Marker, or list of Markers of that name; 8 bytes a slot."""

    def __len__(self) -> int: ...
    def get(self, name: str) -> Marker | list[Marker] | None: ...
    def put(self, slot: Marker | list[Marker]) -> None: ...
    def remove(self, name: str) -> None: ...
    def slots_now(self) -> list[Marker | list[Marker]]: ...
    def names(self) -> list[str]: ...

def puts(markers: list[Marker], prefix: bytes) -> bytes:
    """The part of etcd's TxnRequest that puts the markers, in order, under `prefix`."""

def shared_values() -> int: ...
def decode_marker(cluster: str, namespace: str, name: str, value: bytes) -> tuple[int, Marker]: ...
def visible(entries: list[Marker], start: int, end: int) -> list[Marker]: ...
def first_after(entries: list[Marker], start: int, fleet: int) -> int: ...
def numbers(
    spaces: dict[str, NameTable], items: list[Item], clusters: list[str], incarnations: list[str], at: int
) -> list[int]:
    """The fleet version of each item of members' lists, 0 for those that must be judged one by one.

    `spaces` are an index's tables by namespace; `clusters` and `incarnations` those of the items' sources. A number is given
    where one marker alone holds the key, and is that very state (cluster, incarnation, uid, member version, alive), and not
    newer than `at`.
    """

def of_cluster(markers: Iterable[Marker], cluster: str) -> list[Marker]: ...
