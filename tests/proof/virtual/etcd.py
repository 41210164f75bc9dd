"""An etcd in memory, below the real client (`services.common.etcd.Etcd`): revisions, transactions, leases, watches,
compaction. `test_proof_etcd` runs one suite on it and on the real one.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc
from aetcd.rpc import kv_pb2, rpc_pb2

Code = grpc.StatusCode
MAX_OPS = 128
_NONE = kv_pb2.KeyValue()


def refused(code: grpc.StatusCode, text: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=text)


COMPACTED = (Code.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted")
FUTURE = (Code.OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision")
NO_LEASE = (Code.NOT_FOUND, "etcdserver: requested lease not found")
AWAY = (Code.UNAVAILABLE, "failed to connect to all addresses")


class Lease:
    """Keys that go when nobody renews it."""

    def __init__(self, number: int, ttl: int) -> None:
        self.number, self.ttl = number, ttl
        self.keys: set[bytes] = set()
        self.timer: asyncio.TimerHandle | None = None


class EtcdStore:
    """The data. Methods are one request each, synchronous; they raise AioRpcError as etcd's gRPC does."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.revision = 1
        self.compacted = 0
        self.up = True
        self.keys: list[bytes] = []
        self.past: dict[bytes, list[tuple[int, Any]]] = {}
        """Every key's states: (revision, KeyValue, or None where it was deleted)."""
        self.events: list[tuple[int, list[Any]]] = []
        self.leases: dict[int, Lease] = {}
        self.watchers: dict[Watching, None] = {}  # in the order in which they came
        self._gaps = 0
        self._leases = 0
        self._batch: list[Any] = []

    def gap_changes(self) -> int:
        """How often gap keys were put or deleted."""
        return self._gaps

    # Reading.

    def _now(self, key: bytes) -> Any | None:
        states = self.past.get(key)
        return states[-1][1] if states else None

    def _at(self, key: bytes, revision: int) -> Any | None:
        return next((kv for rev, kv in reversed(self.past.get(key, ())) if rev <= revision), None)

    def _between(self, key: bytes, end: bytes) -> list[bytes]:
        if not end:
            return [key] if key in self.past else []
        begin = bisect_left(self.keys, key)
        stop = len(self.keys) if end == b"\x00" else bisect_left(self.keys, end)
        return self.keys[begin:stop]

    def range(self, request: Any) -> Any:
        revision = request.revision
        if revision > self.revision:
            raise refused(*FUTURE)
        if revision and revision < self.compacted:
            raise refused(*COMPACTED)
        keys = self._between(request.key, request.range_end)
        found = [kv for key in keys if (kv := self._at(key, revision) if revision else self._now(key)) is not None]
        if request.min_mod_revision:
            found = [kv for kv in found if kv.mod_revision >= request.min_mod_revision]
        count, limit = len(found), request.limit
        more = bool(limit and count > limit)
        kvs = found[:limit] if limit else found
        if request.count_only:
            kvs = []
        elif request.keys_only:
            kvs = [_bare(kv) for kv in kvs]
        return rpc_pb2.RangeResponse(header=self.header(), kvs=kvs, more=more, count=count)

    def header(self) -> Any:
        return rpc_pb2.ResponseHeader(revision=self.revision, member_id=1)

    # Writing: within `_write` all changes have one revision.

    def _write(self, work: Callable[[], Any]) -> Any:
        self._batch = []
        answer = work()
        if self._batch:
            self.revision += 1
            self.events.append((self.revision, self._batch))
            for watcher in list(self.watchers):
                watcher.changed()
        return answer

    def _set(self, key: bytes, kv: Any | None) -> None:
        if b"/gaps/" in key:
            self._gaps += 1
        if key not in self.past:
            insort(self.keys, key)
            self.past[key] = []
        old = self._now(key)
        if old is not None and old.lease in self.leases:
            self.leases[old.lease].keys.discard(key)
        self.past[key].append((self.revision + 1, kv))
        if kv is None:
            gone = kv_pb2.KeyValue(key=key, mod_revision=self.revision + 1)
            self._batch.append(kv_pb2.Event(type=kv_pb2.Event.DELETE, kv=gone))
        else:
            if kv.lease:
                self.leases[kv.lease].keys.add(key)
            self._batch.append(kv_pb2.Event(type=kv_pb2.Event.PUT, kv=kv))

    def _put(self, request: Any) -> Any:
        if request.lease and request.lease not in self.leases:
            raise refused(*NO_LEASE)
        old = self._now(request.key)
        at = self.revision + 1
        self._set(request.key, kv_pb2.KeyValue(
            key=request.key, value=request.value, lease=request.lease, mod_revision=at,
            create_revision=old.create_revision if old is not None else at, version=(old.version if old is not None else 0) + 1,
        ))  # fmt: skip
        return rpc_pb2.PutResponse()

    def _delete(self, request: Any) -> Any:
        live = [key for key in self._between(request.key, request.range_end) if self._now(key) is not None]
        for key in live:
            self._set(key, None)
        return rpc_pb2.DeleteRangeResponse(deleted=len(live))

    def put(self, request: Any) -> Any:
        return self._answer(self._write(lambda: self._put(request)))

    def delete(self, request: Any) -> Any:
        return self._answer(self._write(lambda: self._delete(request)))

    def _answer(self, answer: Any) -> Any:
        answer.header.CopyFrom(self.header())
        return answer

    def txn(self, request: Any) -> Any:
        for branch in (request.success, request.failure):
            if max(len(branch), len(request.compare)) > MAX_OPS:
                raise refused(Code.INVALID_ARGUMENT, "etcdserver: too many operations in txn request")
            puts = [op.request_put.key for op in branch if op.WhichOneof("request") == "request_put"]
            gone = [op.request_delete_range for op in branch if op.WhichOneof("request") == "request_delete_range"]
            again = any(_covers(one, key) for one in gone for key in puts)
            if again or len(set(puts)) != len(puts):
                raise refused(Code.INVALID_ARGUMENT, "etcdserver: duplicate key given in txn request")
        held = all(self._holds(one) for one in request.compare)
        branch = request.success if held else request.failure
        for op in branch:
            if op.WhichOneof("request") == "request_put" and op.request_put.lease and op.request_put.lease not in self.leases:
                raise refused(*NO_LEASE)
        answers = self._write(lambda: [self._operate(op) for op in branch])
        return rpc_pb2.TxnResponse(header=self.header(), succeeded=held, responses=answers)

    def _operate(self, op: Any) -> Any:
        kind = op.WhichOneof("request")
        if kind == "request_put":
            return rpc_pb2.ResponseOp(response_put=self._put(op.request_put))
        if kind == "request_delete_range":
            return rpc_pb2.ResponseOp(response_delete_range=self._delete(op.request_delete_range))
        return rpc_pb2.ResponseOp(response_range=self.range(op.request_range))

    def _holds(self, compare: Any) -> bool:
        kv = self._now(compare.key)
        kv = _NONE if kv is None else kv
        left, right = {
            rpc_pb2.Compare.VERSION: lambda: (kv.version, compare.version),
            rpc_pb2.Compare.CREATE: lambda: (kv.create_revision, compare.create_revision),
            rpc_pb2.Compare.MOD: lambda: (kv.mod_revision, compare.mod_revision),
            rpc_pb2.Compare.VALUE: lambda: (kv.value, compare.value),
            rpc_pb2.Compare.LEASE: lambda: (kv.lease, compare.lease),
        }[compare.target]()
        if compare.target == rpc_pb2.Compare.VALUE and kv is _NONE:
            return False
        result = compare.result
        return bool(
            left == right if result == rpc_pb2.Compare.EQUAL
            else left != right if result == rpc_pb2.Compare.NOT_EQUAL
            else left < right if result == rpc_pb2.Compare.LESS
            else left > right
        )  # fmt: skip

    def compact(self, request: Any) -> Any:
        if request.revision <= self.compacted:
            raise refused(*COMPACTED)
        if request.revision > self.revision:
            raise refused(*FUTURE)
        self.compacted = request.revision
        self.events = [pair for pair in self.events if pair[0] >= self.compacted]
        for key in list(self.past):
            states = self.past[key]
            at = max((i for i, (rev, _) in enumerate(states) if rev <= self.compacted), default=0)
            del states[:at]
            if len(states) == 1 and states[0][1] is None and states[0][0] <= self.compacted:
                del self.past[key]
                self.keys.remove(key)
        return rpc_pb2.CompactionResponse(header=self.header())

    # Leases.

    def grant(self, request: Any) -> Any:
        self._leases += 1
        number = request.ID or 7_000_000 + self._leases
        lease = self.leases[number] = Lease(number, request.TTL)
        self._renew(lease)
        return rpc_pb2.LeaseGrantResponse(header=self.header(), ID=number, TTL=request.TTL)

    def _renew(self, lease: Lease) -> None:
        if lease.timer is not None:
            lease.timer.cancel()
        lease.timer = self._loop.call_later(lease.ttl, self._expire, lease)

    def _expire(self, lease: Lease) -> None:
        if not self.up:
            return  # nobody counts time; a start gives every lease its whole time again
        self._end(lease)

    def _end(self, lease: Lease) -> None:
        if lease.timer is not None:
            lease.timer.cancel()
        keys = sorted(lease.keys)
        del self.leases[lease.number]
        self._write(lambda: [self._set(key, None) for key in keys])

    def revoke(self, request: Any) -> Any:
        lease = self.leases.get(request.ID)
        if lease is None:
            raise refused(*NO_LEASE)
        self._end(lease)
        return rpc_pb2.LeaseRevokeResponse(header=self.header())

    def keepalive(self, request: Any) -> Any:
        lease = self.leases.get(request.ID)
        if lease is not None:
            self._renew(lease)
        return rpc_pb2.LeaseKeepAliveResponse(header=self.header(), ID=request.ID, TTL=lease.ttl if lease else 0)

    def status(self, request: Any) -> Any:
        return rpc_pb2.StatusResponse(header=self.header(), version="3.6.0", dbSize=1, leader=1)

    # The server as a whole.

    def stop(self) -> None:
        """It is away: calls are refused, streams break."""
        self.up = False
        for watcher in list(self.watchers):
            watcher.broken()

    def start(self) -> None:
        self.up = True
        for lease in list(self.leases.values()):
            self._renew(lease)


class Watching:
    """One watch at the server; `send` takes its answers."""

    def __init__(self, store: EtcdStore, request: Any, send: Callable[[Any], None], broken: Callable[[], None]) -> None:
        self.store, self.broken = store, broken
        self._key, self._end = request.key, request.range_end
        self._next = request.start_revision or store.revision + 1
        self._send = send
        send(rpc_pb2.WatchResponse(header=store.header(), created=True))
        if self._next < store.compacted:
            send(rpc_pb2.WatchResponse(
                header=store.header(), canceled=True, compact_revision=store.compacted,
                cancel_reason="etcdserver: mvcc: required revision has been compacted",
            ))  # fmt: skip
            return
        store.watchers[self] = None
        self.changed()

    def _wants(self, key: bytes) -> bool:
        return key == self._key if not self._end else key >= self._key and (self._end == b"\x00" or key < self._end)

    def changed(self) -> None:
        events = []
        at = len(self.store.events)
        while at and self.store.events[at - 1][0] >= self._next:
            at -= 1
        for _, batch in self.store.events[at:]:
            events += [event for event in batch if self._wants(event.kv.key)]
        self._next = max(self._next, self.store.revision + 1)
        if events:
            self._send(rpc_pb2.WatchResponse(header=self.store.header(), events=events))

    def progress(self) -> None:
        self._send(rpc_pb2.WatchResponse(header=self.store.header()))

    def close(self) -> None:
        self.store.watchers.pop(self, None)


def _covers(request: Any, key: bytes) -> bool:
    end = request.range_end
    return bool(key >= request.key and (end == b"\x00" or key < end) if end else key == request.key)


def _bare(kv: Any) -> Any:
    copy = kv_pb2.KeyValue()
    copy.CopyFrom(kv)
    copy.value = b""
    return copy


class Answers:
    """A stream's answers as its reader gets them: in order, each after the link's delay."""

    def __init__(self) -> None:
        self._queue: deque[Any] = deque()
        self._wake = asyncio.Event()

    def put(self, answer: Any) -> None:
        self._queue.append(answer)
        self._wake.set()

    async def get(self) -> Any:
        while not self._queue:
            self._wake.clear()
            await self._wake.wait()
        found = self._queue[0]
        if isinstance(found, BaseException):
            raise found
        return self._queue.popleft()
