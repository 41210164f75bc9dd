"""What the etcd client takes and gives: results, operations of transactions, errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import grpc
from aetcd.rpc import kv_pb2, rpc_pb2

Op = rpc_pb2.RequestOp
Compare = rpc_pb2.Compare
KeyValue = kv_pb2.KeyValue
Event = kv_pb2.Event
PUT: int = kv_pb2.Event.PUT
DELETE: int = kv_pb2.Event.DELETE
_TARGETS: dict[str, tuple[Any, str]] = {
    "version": (Compare.VERSION, "version"), "create": (Compare.CREATE, "create_revision"),
    "mod": (Compare.MOD, "mod_revision"), "value": (Compare.VALUE, "value"), "lease": (Compare.LEASE, "lease"),
}  # fmt: skip
_RESULTS = {"=": Compare.EQUAL, "!=": Compare.NOT_EQUAL, "<": Compare.LESS, ">": Compare.GREATER}


class EtcdError(Exception):
    """etcd refused: the message is its own."""


class EtcdUnavailable(EtcdError):
    """No endpoint answered in time. A write may have happened."""


class EtcdCompacted(EtcdError):
    """The revision is older than what is kept; `compact_revision` is the oldest that can be watched from."""

    def __init__(self, message: str, compact_revision: int = 0) -> None:
        super().__init__(message)
        self.compact_revision = compact_revision


class LeaseGone(EtcdError):
    """The lease has expired or was revoked."""


class EtcdFull(EtcdError):
    """The database has reached its quota: etcd refuses whatever would make it grow."""


class EtcdDenied(EtcdError):
    """etcd does not know us, or does not let us: nothing was done."""


STALE_LOGIN = ("invalid auth token", "revision of auth store is old", "revision in header is old")
"""What etcd says of a token that a new login replaces (it has ended, or users and roles were changed)."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A request as its bytes. Parts of one message joined are that message: lists go on, single fields are replaced."""

    data: bytes

    def SerializeToString(self) -> bytes:
        """See protobuf."""
        return self.data


def txn_part(compares: Sequence[Any] = (), success: Sequence[Any] = ()) -> bytes:
    """Part of a transaction, for `Etcd.txn_of`."""
    encoded: bytes = rpc_pb2.TxnRequest(compare=compares, success=success).SerializeToString()
    return encoded


@dataclass(frozen=True, slots=True)
class RangeResult:
    """Answer of `range`; `revision` is the store's when it was read."""

    kvs: Sequence[Any]
    revision: int
    more: bool
    count: int


@dataclass(frozen=True, slots=True)
class TxnResult:
    """Answer of `txn`: `revision` is that of the write (or the store's, where nothing was written)."""

    succeeded: bool
    revision: int
    responses: Sequence[Any]


@dataclass(slots=True)
class WatchBatch:
    """What one revision, or several, changed; all events of a revision are in one batch.

    Empty `events` is progress: everything up to `revision` has been sent. The first batch is one (the watch
    is then established).
    """

    revision: int
    events: list[Any] = field(default_factory=list)


def map_error(error: grpc.aio.AioRpcError, what: str) -> EtcdError:
    """The one table from gRPC's errors to ours."""
    text = error.details() or error.code().name
    code = error.code()
    if code is grpc.StatusCode.OUT_OF_RANGE and "compacted" in text:
        return EtcdCompacted(f"etcd: {what}: {text}")
    if code is grpc.StatusCode.NOT_FOUND and "lease" in text:
        return LeaseGone(f"etcd: {what}: {text}")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "space exceeded" in text:
        return EtcdFull(f"etcd: {what}: {text}")
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED) or _refuses_login(text):
        return EtcdDenied(f"etcd: {what}: {text}")
    if code in (
        grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.ABORTED,
    ):  # fmt: skip
        return EtcdUnavailable(f"etcd: {what}: {text}")
    return EtcdError(f"etcd: {what}: {text}")


def _refuses_login(text: str) -> bool:
    """etcd calls wrong users and passwords INVALID_ARGUMENT."""
    return "authentication failed" in text or "user name is empty" in text or _is_stale(text)


def _is_stale(text: str) -> bool:
    return any(words in text for words in STALE_LOGIN)


def was_not_sent(error: grpc.aio.AioRpcError) -> bool:
    """No connection was made: a write may go to another endpoint, it cannot have happened here."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and "failed to connect" in (error.details() or "")


def wants_login(error: grpc.aio.AioRpcError) -> bool:
    """Would a new login help? Nothing was done then."""
    return error.code() is grpc.StatusCode.UNAUTHENTICATED or _is_stale(error.details() or "")


def prefix_end(key: bytes) -> bytes:
    """Return the first key after all keys that start with `key` (`\\0`, which is "all", for an empty one)."""
    trimmed = key.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else b"\x00"


def op_put(key: bytes, value: bytes, lease: int = 0) -> Any:
    """A put for `txn`."""
    return Op(request_put=rpc_pb2.PutRequest(key=key, value=value, lease=lease))


def op_delete(key: bytes, end: bytes = b"") -> Any:
    """A delete of one key, or of [key, end), for `txn`."""
    return Op(request_delete_range=rpc_pb2.DeleteRangeRequest(key=key, range_end=end))


def op_range(
    key: bytes, end: bytes = b"", limit: int = 0, keys_only: bool = False, min_mod: int = 0, revision: int = 0
) -> Any:
    """A read for `txn`; `min_mod` leaves out what was put before that revision, `revision` reads as of then."""
    request = rpc_pb2.RangeRequest(
        key=key, range_end=end, limit=limit, keys_only=keys_only, min_mod_revision=min_mod, revision=revision
    )
    return Op(request_range=request)


def compare(
    key: bytes, target: Literal["version", "create", "mod", "value", "lease"], sign: str, value: int | bytes
) -> Any:
    """A condition for `txn`: `compare(key, "mod", "=", 7)`; version 0 is "does not exist"."""
    number, attribute = _TARGETS[target]
    fields: dict[str, Any] = {attribute: value}
    return Compare(key=key, result=_RESULTS[sign], target=number, **fields)
