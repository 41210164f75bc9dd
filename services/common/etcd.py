"""A thin asyncio client of etcd v3 on aetcd's stubs: key-value, transactions, leases, watches.

Calls go to the endpoint that answered last. Reads move on to the next endpoint by themselves; a write whose
answer was lost may have happened, so it is raised as EtcdUnavailable and is the caller's to settle.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
from aetcd import rpc as stubs
from aetcd.rpc import rpc_pb2

from services.common.config import TLS, ConfigError, is_loopback
from services.common.etcd_types import (
    DELETE,
    PUT,
    Compare,
    EtcdCompacted,
    EtcdError,
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
)  # fmt: skip

__all__ = [
    "DELETE", "PUT", "Compare", "Etcd", "EtcdCompacted", "EtcdError", "EtcdUnavailable", "Event", "KeyValue",
    "LeaseGone", "Op", "RangeResult", "TxnResult", "WatchBatch", "compare", "map_error", "op_delete", "op_put",
    "op_range", "prefix_end",
]  # fmt: skip

log = logging.getLogger(__name__)

TIMEOUT = 5.0
WATCH_PROGRESS = 20.0
"""Seconds of silence after which a watch asks for its progress; after three of them it counts as dead."""
OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Despite its name this is how long one attempt to connect may take.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 3_000),
    ("grpc.use_local_subchannel_pool", 1),
]

class _Endpoint:
    """One channel and its stubs."""

    def __init__(self, url: str, tls: TLS | None) -> None:
        address = url.removeprefix("https://").removeprefix("http://").rstrip("/")
        if tls:
            parts = []
            for name in (tls.ca, tls.key, tls.cert):
                try:
                    parts.append(Path(name).read_bytes())
                except OSError as error:
                    raise ConfigError(f"etcd.tls: {name}: {error.strerror}") from None
            self.channel = grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(*parts), OPTIONS)
        elif is_loopback(address):
            self.channel = grpc.aio.insecure_channel(address, OPTIONS)
        else:
            raise ConfigError(f"etcd.endpoints: {url} is not on this machine: set etcd.tls cert, key and ca")
        self.address = address
        self.kv = stubs.KVStub(self.channel)
        self.watch = stubs.WatchStub(self.channel)
        self.lease = stubs.LeaseStub(self.channel)
        self.maintenance = stubs.MaintenanceStub(self.channel)

    async def close(self) -> None:
        """Close the channel."""
        await self.channel.close()


class Etcd:
    """One etcd cluster. Methods raise EtcdUnavailable, EtcdCompacted, LeaseGone, EtcdError."""

    def __init__(self, endpoints: Sequence[_Endpoint], timeout: float) -> None:
        self._endpoints = list(endpoints)
        self._current = 0
        self.timeout = timeout

    @classmethod
    def connect(cls, endpoints: Sequence[str], tls: TLS | None = None, *, timeout: float = TIMEOUT) -> Etcd:
        """Make a client; connects by itself, does not wait for etcd. ConfigError for a wrong endpoint."""
        if not endpoints:
            raise ConfigError("etcd.endpoints: at least one is needed")
        return cls([_Endpoint(url, tls) for url in endpoints], timeout)

    async def close(self) -> None:
        """Close all channels."""
        for endpoint in self._endpoints:
            await endpoint.close()

    async def _call(
        self, stub: str, method: str, request: Any, *, retry: bool, timeout: float | None = None
    ) -> Any:
        """Call the current endpoint; reads go on to the others within one deadline."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (timeout or self.timeout)
        last: EtcdError = EtcdUnavailable(f"etcd: {method}: no endpoint answered")
        tries = len(self._endpoints) if retry else 1
        for number in range(tries):
            left = deadline - loop.time()
            if left <= 0:
                break
            endpoint = self._endpoints[self._current]
            share = left / (tries - number)
            try:
                return await getattr(getattr(endpoint, stub), method)(request, timeout=share)
            except grpc.aio.AioRpcError as error:
                last = map_error(error, method)
                last.__cause__ = error
            if not isinstance(last, EtcdUnavailable):
                break
            self._current = (self._current + 1) % len(self._endpoints)
        raise last

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
        answer = await self._call("kv", "Txn", request, retry=False, timeout=timeout)
        return TxnResult(answer.succeeded, answer.header.revision, answer.responses)

    async def compact(self, revision: int, physical: bool = False) -> None:
        """Forget revisions below `revision`; EtcdCompacted where that was done already."""
        request = rpc_pb2.CompactionRequest(revision=revision, physical=physical)
        await self._call("kv", "Compact", request, retry=False)

    async def status(self) -> Any:
        """Return the endpoint's StatusResponse (version, dbSize, leader, header.revision)."""
        return await self._call("maintenance", "Status", rpc_pb2.StatusRequest(), retry=True)

    async def lease_grant(self, ttl: int, lease_id: int = 0) -> int:
        """Make a lease of `ttl` seconds; return its id."""
        request = rpc_pb2.LeaseGrantRequest(TTL=ttl, ID=lease_id)
        return int((await self._call("lease", "LeaseGrant", request, retry=False)).ID)

    async def lease_revoke(self, lease_id: int) -> None:
        """End a lease and delete its keys; LeaseGone where it has ended."""
        await self._call("lease", "LeaseRevoke", rpc_pb2.LeaseRevokeRequest(ID=lease_id), retry=False)

    async def lease_keepalive(self, lease_id: int) -> int:
        """Renew a lease once; return its seconds to live. LeaseGone where it has ended."""
        endpoint = self._endpoints[self._current]
        call = endpoint.lease.LeaseKeepAlive(timeout=self.timeout)
        try:
            await call.write(rpc_pb2.LeaseKeepAliveRequest(ID=lease_id))
            answer = await call.read()
        except grpc.aio.AioRpcError as error:
            self._current = (self._current + 1) % len(self._endpoints)
            raise map_error(error, "LeaseKeepAlive") from error
        except asyncio.InvalidStateError as error:
            raise _ended("LeaseKeepAlive") from error
        finally:
            call.cancel()
        if answer is grpc.aio.EOF:
            raise EtcdUnavailable("etcd: LeaseKeepAlive: the stream ended")
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
        fragment: bool = True,
    ) -> AsyncGenerator[WatchBatch, None]:
        """Yield what changes from `start_revision` on (0: from now); close the generator to end it.

        Ends only by an error: EtcdCompacted, or EtcdUnavailable (watch again from the revision after the last
        batch's). Large batches come in fragments and are put together here.
        """
        create = rpc_pb2.WatchCreateRequest(
            key=key or b"\x00", range_end=prefix_end(key) if prefix else end,
            start_revision=start_revision, prev_kv=prev_kv, fragment=fragment,
        )  # fmt: skip
        call = self._endpoints[self._current].watch.Watch()
        try:
            await call.write(rpc_pb2.WatchRequest(create_request=create))
            pending: list[Any] = []
            while True:
                answer = await self._next(call)
                _check_watch(answer)
                pending.extend(answer.events)
                if not answer.fragment:
                    yield WatchBatch(answer.header.revision, pending)
                    pending = []
        except grpc.aio.AioRpcError as error:
            self._current = (self._current + 1) % len(self._endpoints)
            raise map_error(error, "Watch") from error
        except asyncio.InvalidStateError as error:
            raise _ended("Watch") from error
        finally:
            call.cancel()

    async def _next(self, call: Any) -> Any:
        """Read the next answer; silence is broken by asking for progress, and ends the watch at last."""
        read = asyncio.ensure_future(call.read())
        try:
            for _ in range(3):
                done, _pending = await asyncio.wait({read}, timeout=WATCH_PROGRESS)
                if done:
                    answer = read.result()
                    if answer is grpc.aio.EOF:
                        raise EtcdUnavailable("etcd: Watch: the stream ended")
                    return answer
                await call.write(rpc_pb2.WatchRequest(progress_request=rpc_pb2.WatchProgressRequest()))
            raise EtcdUnavailable("etcd: Watch: no sign of life")
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
