"""Types of the splicer; the contracts are in the docstrings of splice.pyx and its parts."""
from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

CLUSTER_ANNOTATION: str
HOST_OWNERS_ANNOTATION: str
MEMBER_OWNERS_ANNOTATION: str
LEVELS: tuple[str, ...]

class SpliceError(ValueError): ...

class Owner(NamedTuple):
    uid: str
    api_version: str
    kind: str
    name: str

@final
class Meta:
    """Where one object's metadata stands in a buffer; texts are made when asked for, "" when absent."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int:
        """Offset behind the object's closing brace; -1 when it was not looked for."""
    @property
    def name(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def uid(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def deleting(self) -> bool: ...
    @property
    def owners(self) -> tuple[Owner, ...]: ...
    def labels(self) -> dict[str, str]:
        """Shared by objects that have the same: never change it."""
    def annotations(self) -> dict[str, str]: ...
    def annotation(self, key: str) -> str | None: ...

@final
class ListScanner:
    """Cuts the objects out of a list while it arrives in chunks."""

    head: bytes | None
    """All before the array's '[' (or its null); None until it was reached."""
    list_version: str
    continue_token: str
    remaining: int | None
    count: int
    def __init__(self, field: bytes = b"items", max_item: int = ..., max_envelope: int = ...) -> None: ...
    def feed(self, chunk: bytes | bytearray | memoryview) -> list[bytes]: ...
    def finish(self) -> bytes: ...

@final
class FrameSplitter:
    """Cuts a watch's newline-delimited frames."""

    def __init__(self, max_frame: int = ...) -> None: ...
    @property
    def pending(self) -> int: ...
    def feed(self, chunk: bytes) -> list[bytes]: ...

def best_level() -> str: ...
def set_level(level: str) -> None: ...
def scan(buf: bytes | bytearray | memoryview, start: int = 0, whole: bool = False) -> Meta: ...
def scan_frame(frame: bytes) -> tuple[str, Meta]: ...
def splice(
    buf: bytes | bytearray | memoryview,
    meta: Meta,
    version: bytes,
    cluster: bytes | None,
    owners: Mapping[str, str | None] | None = None,
    end: int = -1,
    object_uids: Mapping[str, str] | None = None,
) -> bytes: ...
def unsplice(
    buf: bytes,
    version: bytes | None,
    owners: Mapping[str, str | None] | None = None,
    object_uids: Mapping[str, str] | None = None,
) -> bytes: ...
def list_items(
    buf: bytes | bytearray | memoryview, field: bytes = b"items"
) -> tuple[bytes, list[tuple[int, int]], bytes]: ...
def table_row_object(row: bytes) -> tuple[int, int]: ...
def insert_cell(row: bytes, index: int, cell_json: bytes) -> bytes: ...
def shown_row(row: bytes, start: int, end: int, obj: bytes, index: int, cell_json: bytes) -> bytes:
    """`insert_cell` of row[:start] + obj + row[end:], in one copy where the cells stand before the object."""

def permute_cells(row: bytes, order: Sequence[int]) -> bytes: ...
