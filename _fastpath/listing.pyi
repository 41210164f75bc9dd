from collections.abc import Callable, Sequence
from typing import Any

class Item:
    """One object of a member's list: `raw` holds it (a Table's row holds more).

    `meta` says where its metadata stands in `raw`, which the object ends in at `end`; `key` is what lists are ordered by;
    `source` the number of its list in a Merger. SpliceError for a version that is no integer.
    """

    raw: bytes
    meta: Any
    namespace: str
    name: str
    key: str
    version: int
    end: int
    source: int

    def __init__(self, raw: bytes, meta: Any, end: int) -> None: ...

def version_of(text: str) -> int:
    """A member's version, 0 where there is none; SpliceError for what Kubernetes never sends."""

def read_items(cut: list[bytes], scan: Callable[[bytes], Any]) -> list[Item]:
    """The elements of a list as items; `scan` finds an object's metadata."""

def read_rows(cut: list[bytes], scan: Callable[[bytes, int], Any]) -> list[Item]:
    """The elements of a Table's `rows` as items."""

class Merger:
    """Merges ordered lists of items by key, equal keys by the source's number.

    `lacks` are the sources of which more must be fed, or whose end must be told, before anything can be given.
    """

    lacks: set[int]
    waiting: bool

    def __init__(self, sources: int) -> None: ...
    def feed(self, source: int, items: Sequence[Item]) -> None:
        """Append a source's next items."""

    def end(self, source: int) -> None:
        """Nothing more comes of a source."""

    def take(self, most: int) -> list[Item]:
        """The next items, at most `most`; fewer where a source lacks, [] at the end too."""

    def left(self, source: int) -> list[Item]:
        """What is left of what a source was fed."""
