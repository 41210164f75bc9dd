"""A thin asyncio client of etcd v3 on aetcd's stubs: key-value, transactions, leases, watches.

Calls go to the endpoint that answered last. Reads move on to the next endpoint by themselves; a write whose
answer was lost may have happened, so it is raised as EtcdUnavailable and is the caller's to settle.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

import grpc
from aetcd.rpc import rpc_pb2

from services.common.config import ConfigError
from services.common.etcd_endpoint import STREAM_METADATA, Endpoint, EtcdLogin, EtcdTls, Session
from services.common.etcd_types import (
    DELETE,
    PUT,
    STALE_LOGIN,
    Compare,
    Encoded,
    EtcdCompacted,
    EtcdDenied,
    EtcdError,
    EtcdFull,
    EtcdUnavailable,
    Event,
    KeyValue,
    LeaseGone,
    Op,
    RangeResult,
    TxnResult,
    WatchBatch,
    compare,
    map_error,
    op_delete,
    op_put,
    op_range,
    prefix_end,
    txn_part,
    wants_login,
    was_not_sent,
)  # fmt: skip

__all__ = [
    "DELETE", "PUT", "Compare", "Etcd", "EtcdCompacted", "EtcdDenied", "EtcdError", "EtcdFull", "EtcdLogin",
    "EtcdTls", "EtcdUnavailable", "Event", "KeyValue", "LeaseGone", "Op", "RangeResult", "TxnResult", "WatchBatch",
    "compare", "map_error", "op_delete", "op_put", "op_range", "prefix_end", "txn_part",
]  # fmt: skip

log = logging.getLogger(__name__)

TIMEOUT = 5.0
WATCH_PROGRESS = 20.0
"""Seconds of silence after which a watch asks for its progress; after three of them it counts as dead."""
WATCH_DOUBT = 2.5
"""The same, once another call to that endpoint had no answer: only twice then."""


class Etcd:
    """One etcd cluster. Methods raise EtcdUnavailable, EtcdCompacted, EtcdFull, EtcdDenied, LeaseGone, EtcdError."""

    def __init__(self, endpoints: Sequence[Endpoint], timeout: float, login: EtcdLogin | None = None) -> None:
        self.endpoints = list(endpoints)
        self._current = 0
        self._session = Session(login)
        self.timeout = timeout

    @classmethod
    def connect(
        cls, endpoints: Sequence[str], tls: EtcdTls | None = None, login: EtcdLogin | None = None,
        *, timeout: float = TIMEOUT,
    ) -> Etcd:  # fmt: skip
        """Make a client; connects by itself, does not wait for etcd. ConfigError for a wrong endpoint."""
        if not endpoints:
            raise ConfigError("etcd.endpoints: at least one is needed")
        return cls([Endpoint(url, tls) for url in endpoints], timeout, login)

    async def close(self) -> None:
        """Close all channels."""
        for endpoint in self.endpoints:
            await endpoint.close()

    def _failed(self, endpoint: Endpoint) -> None:
        """It did not answer: go on with the next one, unless another call has done so already."""
        endpoint.failures += 1
        if self.endpoints[self._current] is endpoint:
            self._current = (self._current + 1) % len(self.endpoints)

    async def _call(
        self, stub: str, method: str, request: Any, *, retry: bool, timeout: float | None = None
    ) -> Any:
        """Call the current endpoint; reads, and writes that were not sent, go on to the others within one deadline."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (timeout or self.timeout)
        last: EtcdError = EtcdUnavailable(f"etcd: {method}: no endpoint answered")
        tries = len(self.endpoints)
        for number in range(tries):
            left = deadline - loop.time()
            if left <= 0:
                break
            endpoint = self.endpoints[self._current]
            try:
                return await self.call(
                    endpoint, stub, method, request, timeout=left / (tries - number) if retry else left
                )
            except EtcdUnavailable as error:
                last = error
                cause = error.__cause__
                sent = not (isinstance(cause, grpc.aio.AioRpcError) and was_not_sent(cause))
            self._failed(endpoint)
            if sent and not retry:
                break
        raise last

    async def call(
        self, endpoint: Endpoint, stub: str, method: str, request: Any, *, timeout: float,
        more: tuple[tuple[str, str], ...] = (),
    ) -> Any:  # fmt: skip
        """Call one endpoint, with `more` metadata; a login that has ended is made anew once."""
        again = True
        while True:
            said = await self._session.metadata(endpoint, timeout)
            try:
                return await getattr(getattr(endpoint, stub), method)(
                    request, timeout=timeout, metadata=said + more
                )
            except grpc.aio.AioRpcError as error:
                if not (again and wants_login(error) and self._session.renew(said)):
                    raise map_error(error, method) from error
            again = False

    async def range(
        self,
        key: bytes,
        end: bytes = b"",
        *,
        prefix: bool = False,
        limit: int = 0,
        revision: int = 0,
        keys_only: bool = False,
        count_only: bool = False,
        serializable: bool = False,
        timeout: float | None = None,
    ) -> RangeResult:
        """Read one key, [key, end), or with `prefix` all keys that start with `key`, in key order."""
        request = rpc_pb2.RangeRequest(
            key=key or b"\x00", range_end=prefix_end(key) if prefix else end, limit=limit, revision=revision,
            keys_only=keys_only, count_only=count_only, serializable=serializable,
        )  # fmt: skip
        answer = await self._call("kv", "Range", request, retry=True, timeout=timeout)
        return RangeResult(answer.kvs, answer.header.revision, answer.more, answer.count)

    async def pages(
        self, key: bytes, end: bytes, *, page: int = 5000, revision: int = 0, keys_only: bool = False
    ) -> AsyncIterator[RangeResult]:
        """Read [key, end) in pages at one revision, for ranges beyond what one answer should hold."""
        while True:
            result = await self.range(key, end, limit=page, revision=revision, keys_only=keys_only)
            revision = revision or result.revision
            yield RangeResult(result.kvs, revision, result.more, result.count)
            if not result.more or not result.kvs:
                return
            key = result.kvs[-1].key + b"\x00"

    async def get(self, key: bytes) -> Any | None:
        """Return the KeyValue, or None."""
        result = await self.range(key)
        return result.kvs[0] if result.kvs else None

    async def put(self, key: bytes, value: bytes, lease: int = 0) -> int:
        """Write; return the revision."""
        answer = await self._call(
            "kv", "Put", rpc_pb2.PutRequest(key=key, value=value, lease=lease), retry=False
        )
        return int(answer.header.revision)

    async def delete(self, key: bytes, end: bytes = b"", *, prefix: bool = False) -> int:
        """Delete one key or a range; return how many there were."""
        request = rpc_pb2.DeleteRangeRequest(key=key, range_end=prefix_end(key) if prefix else end)
        return int((await self._call("kv", "DeleteRange", request, retry=False)).deleted)

    async def txn(
        self,
        compares: Sequence[Any] = (),
        success: Sequence[Any] = (),
        failure: Sequence[Any] = (),
        *,
        timeout: float | None = None,
    ) -> TxnResult:
        """Run one transaction. After EtcdUnavailable it may or may not have happened."""
        request = rpc_pb2.TxnRequest(compare=compares, success=success, failure=failure)
        return await self._txn(request, timeout)

    async def txn_of(self, *parts: bytes, timeout: float | None = None) -> TxnResult:
        """As `txn`, of parts that are encoded already (`txn_part`)."""
        return await self._txn(Encoded(b"".join(parts)), timeout)

    async def _txn(self, request: Any, timeout: float | None) -> TxnResult:
        answer = await self._call("kv", "Txn", request, retry=False, timeout=timeout)
        return TxnResult(answer.succeeded, answer.header.revision, answer.responses)

    async def compact(self, revision: int, physical: bool = False) -> None:
        """Forget revisions below `revision`; EtcdCompacted where that was done already."""
        request = rpc_pb2.CompactionRequest(revision=revision, physical=physical)
        await self._call("kv", "Compact", request, retry=False)

    async def status(self) -> Any:
        """Return the endpoint's StatusResponse (version, dbSize, leader, header.revision)."""
        return await self._call("maintenance", "Status", rpc_pb2.StatusRequest(), retry=True)

    async def alarm(self, request: Any) -> Any:
        """Read or change alarms (an AlarmRequest); see services.common.etcd_admin."""
        return await self._call("maintenance", "Alarm", request, retry=True)

    async def lease_grant(self, ttl: int, lease_id: int = 0) -> int:
        """Make a lease of `ttl` seconds; return its id."""
        request = rpc_pb2.LeaseGrantRequest(TTL=ttl, ID=lease_id)
        return int((await self._call("lease", "LeaseGrant", request, retry=False)).ID)

    async def lease_revoke(self, lease_id: int) -> None:
        """End a lease and delete its keys; LeaseGone where it has ended."""
        await self._call("lease", "LeaseRevoke", rpc_pb2.LeaseRevokeRequest(ID=lease_id), retry=False)

    async def lease_keepalive(self, lease_id: int, timeout: float | None = None) -> int:
        """Renew a lease once; return its seconds to live. LeaseGone where it has ended."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (timeout or self.timeout)
        tries = len(self.endpoints)
        while True:
            endpoint = self.endpoints[self._current]
            try:
                return await self._keepalive(endpoint, lease_id, (deadline - loop.time()) / tries)
            except EtcdUnavailable:
                self._failed(endpoint)
                tries -= 1
                if tries <= 0 or loop.time() >= deadline:
                    raise

    async def _keepalive(self, endpoint: Endpoint, lease_id: int, timeout: float) -> int:
        request = rpc_pb2.LeaseKeepAliveRequest(ID=lease_id)
        answer = await self.call(endpoint, "lease", "LeaseKeepAlive", request, timeout=timeout, more=STREAM_METADATA)
        if answer.TTL <= 0:
            raise LeaseGone(f"etcd: lease {lease_id:x} has ended")
        return int(answer.TTL)

    async def watch(
        self,
        key: bytes,
        end: bytes = b"",
        *,
        prefix: bool = False,
        start_revision: int = 0,
        prev_kv: bool = False,
    ) -> AsyncGenerator[WatchBatch, None]:
        """Yield what changes from `start_revision` on (0: from now); close the generator to end it.

        Ends only by an error: EtcdCompacted, or EtcdUnavailable (watch again from the revision after the last
        batch's). A batch is of up to 1,000 revisions: etcd is not asked for fragments, since it weighs each of them anew
        for every event that it adds (126,000 markers of 1,000 revisions took it 50 s, whole 2 s).
        """
        create = rpc_pb2.WatchCreateRequest(
            key=key or b"\x00", range_end=prefix_end(key) if prefix else end,
            start_revision=start_revision, prev_kv=prev_kv,
        )  # fmt: skip
        endpoint = self.endpoints[self._current]
        said = await self._session.metadata(endpoint, self.timeout)
        call = endpoint.watch.Watch(metadata=(*said, *STREAM_METADATA))
        try:
            await call.write(rpc_pb2.WatchRequest(create_request=create))
            failures = endpoint.failures
            while True:
                answer = await _next(call, endpoint, failures)
                failures = endpoint.failures
                if answer.canceled and any(words in answer.cancel_reason for words in STALE_LOGIN):
                    self._session.renew(said)
                _check_watch(answer)
                yield WatchBatch(answer.header.revision, answer.events)
        except EtcdUnavailable:
            self._failed(endpoint)
            raise
        except grpc.aio.AioRpcError as error:
            if wants_login(error):
                self._session.renew(said)
            self._failed(endpoint)
            raise map_error(error, "Watch") from error
        except asyncio.InvalidStateError as error:
            raise _ended("Watch") from error
        finally:
            call.cancel()


async def _next(call: Any, endpoint: Endpoint, failures: int) -> Any:
    """Read a watch's next answer; silence is broken by asking for progress, and ends the watch at last.

    A quiet watch is asked sooner when another call to its endpoint had no answer (there were `failures` at the
    watch's last answer): the member may hang.
    """
    read = asyncio.ensure_future(call.read())
    asked, quiet = 0, 0.0
    try:
        while True:
            done, _pending = await asyncio.wait({read}, timeout=WATCH_DOUBT)
            if done:
                answer = read.result()
                if answer is grpc.aio.EOF:
                    raise EtcdUnavailable("etcd: Watch: the stream ended")
                return answer
            quiet += WATCH_DOUBT
            doubt = endpoint.failures != failures
            if not doubt and quiet < WATCH_PROGRESS * (asked + 1):
                continue
            if asked >= (1 if doubt else 2):
                raise EtcdUnavailable("etcd: Watch: no sign of life")
            asked += 1
            await call.write(rpc_pb2.WatchRequest(progress_request=rpc_pb2.WatchProgressRequest()))
    finally:
        if not read.done():
            read.cancel()


def _ended(what: str) -> EtcdUnavailable:
    """grpc's word for a stream that ended a moment before something was to be written to it."""
    return EtcdUnavailable(f"etcd: {what}: the stream ended")


def _check_watch(answer: Any) -> None:
    if answer.compact_revision:
        raise EtcdCompacted("etcd: Watch: the revision was compacted", int(answer.compact_revision))
    if answer.canceled:
        if "compacted" in answer.cancel_reason:
            raise EtcdCompacted(f"etcd: Watch: {answer.cancel_reason}")
        raise EtcdUnavailable(f"etcd: Watch: cancelled: {answer.cancel_reason or 'no reason given'}")
