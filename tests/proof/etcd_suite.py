"""What the clock needs of etcd, as cases: each is played on the etcd in memory and on a real one, and must end alike.

A case takes a client and returns plain data; revisions are told relative to where it began.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

from services.common.etcd import (
    DELETE,
    Etcd,
    EtcdCompacted,
    EtcdError,
    LeaseGone,
    compare,
    op_delete,
    op_put,
    op_range,
)  # fmt: skip

Case = Callable[[Etcd], Awaitable[Any]]


async def _base(etcd: Etcd) -> int:
    return (await etcd.range(b"nothing")).revision


async def put_changes_delete(etcd: Etcd) -> Any:
    """Revisions, create and mod revisions, versions; a deletion begins a key anew."""
    base = await _base(etcd)
    out: list[Any] = [await etcd.put(b"a", b"1") - base, await etcd.put(b"a", b"2") - base]
    for again in (False, True):
        if again:
            out.append(await etcd.delete(b"a"))
            out.append(await etcd.delete(b"a"))
            await etcd.put(b"a", b"3")
        kv = await etcd.get(b"a")
        out.append((kv.value, kv.create_revision - base, kv.mod_revision - base, kv.version))
    return out


async def transactions(etcd: Etcd) -> Any:
    """One revision for all; guards by every target; what reads see in the middle; no write, no revision."""
    base = await _base(etcd)
    made = await etcd.txn([compare(b"a", "create", "=", 0)], [op_put(b"a", b"1"), op_put(b"b", b"1")], [op_range(b"a")])
    again = await etcd.txn([compare(b"a", "create", "=", 0)], [op_put(b"a", b"2")], [op_range(b"a")])
    kv = again.responses[0].response_range.kvs[0]
    out: list[Any] = [made.succeeded, made.revision - base, again.succeeded, again.revision - base, kv.value]
    for target, sign, value in (
        ("version", "=", 1), ("mod", ">", base), ("value", "=", b"1"), ("create", "<", base + 2), ("mod", "!=", 0),
        ("value", "=", b"2"), ("lease", "=", 0),
    ):  # fmt: skip
        out.append((await etcd.txn([compare(b"b", target, sign, value)])).succeeded)  # type: ignore[arg-type]
    out.append((await etcd.txn([compare(b"missing", "value", "=", b"")])).succeeded)
    mixed = await etcd.txn([], [op_put(b"c", b"1"), op_range(b"c"), op_delete(b"a"), op_range(b"a", b"d", keys_only=True)])
    out += [
        [one.value for one in mixed.responses[1].response_range.kvs],
        [(one.key, one.value) for one in mixed.responses[3].response_range.kvs], mixed.revision - base,
    ]  # fmt: skip
    newer = await etcd.txn([], [op_range(b"a", b"z", keys_only=True, min_mod=mixed.revision)])
    out.append([one.key for one in newer.responses[0].response_range.kvs])
    return out


async def limits(etcd: Etcd) -> Any:
    """No key twice, 128 operations at most; nothing of a refused transaction happens."""
    base = await _base(etcd)
    out: list[Any] = []
    for ops in (
        [op_put(b"a", b"1"), op_put(b"a", b"2")], [op_delete(b"a", b"c"), op_put(b"b", b"1")],
        [op_put(b"k%03d" % at, b"") for at in range(129)],
    ):  # fmt: skip
        try:
            await etcd.txn([], ops)
        except EtcdError as error:
            out.append((type(error).__name__, str(error)))
    await etcd.txn([compare(b"x", "create", "=", 0)] * 100, [op_put(b"k%03d" % at, b"") for at in range(128)])
    return [*out, (await etcd.range(b"k", prefix=True, count_only=True)).count, await _base(etcd) - base]


async def history(etcd: Etcd) -> Any:
    """Reads of old revisions, in pages; compaction; revisions of the future."""
    first = await etcd.put(b"k/1", b"old")
    await etcd.put(b"k/2", b"old")
    then = await etcd.put(b"k/3", b"old")
    await etcd.delete(b"k/2")
    now = await etcd.put(b"k/1", b"new")
    pages = [[(kv.key, kv.value) for kv in page.kvs] async for page in etcd.pages(b"k/", b"k0", page=2, revision=then)]
    latest = await etcd.range(b"k/", prefix=True, limit=1)
    out: list[Any] = [pages, [kv.value for kv in latest.kvs], latest.more, latest.count]
    await etcd.compact(then)
    for revision in (first, then - 1, then, now, now + 5):
        try:
            out.append([kv.value for kv in (await etcd.range(b"k/", prefix=True, revision=revision)).kvs])
        except EtcdError as error:
            out.append((type(error).__name__, str(error)))
    try:
        await etcd.compact(then)
    except EtcdCompacted as error:
        out.append(str(error))
    return out


async def watches(etcd: Etcd) -> Any:
    """From an old revision and from now: all of a revision together, in order, the range's only; 410 behind a compaction."""
    base = await _base(etcd)
    await etcd.txn([], [op_put(b"w/b", b"1"), op_put(b"w/a", b"1"), op_put(b"other", b"1")])
    middle = await etcd.put(b"w/a", b"2")
    seen: list[Any] = []
    async with aclosing(etcd.watch(b"w/", prefix=True, start_revision=base + 1)) as batches:
        async for batch in batches:
            if not seen:
                await etcd.delete(b"w/a")
                await etcd.txn([], [op_delete(b"w/", b"w/b\0"), op_put(b"w/c", b"3")])
            seen += sorted(
                (one.kv.mod_revision - base, one.kv.key, one.type == DELETE, one.kv.value) for one in batch.events
            )
            if any(one[1] == b"w/c" for one in seen):
                break
    await etcd.compact(middle)
    out: list[Any] = [seen]
    for start in (middle - 1, middle):
        try:
            async with aclosing(etcd.watch(b"w/", prefix=True, start_revision=start)) as batches:
                async for batch in batches:
                    if batch.events:
                        out.append(batch.events[0].kv.mod_revision - base)
                        break
        except EtcdCompacted as error:
            out.append(error.compact_revision - base)
    return out


async def leases(etcd: Etcd) -> Any:
    """Keys go with their lease, when it is revoked and when it runs out; one that is gone is said."""
    first, second = await etcd.lease_grant(30), await etcd.lease_grant(1)
    await etcd.put(b"l/1", b"", first)
    await etcd.txn([], [op_put(b"l/2", b"", second), op_put(b"l/3", b"", first)])
    await etcd.put(b"l/3", b"kept")
    out: list[Any] = [await etcd.lease_keepalive(first) > 20]
    await etcd.lease_revoke(first)
    out.append([kv.key for kv in (await etcd.range(b"l/", prefix=True)).kvs])
    for _ in range(200):
        if await etcd.get(b"l/2") is None:
            break
        await asyncio.sleep(0.1)
    out.append([kv.key for kv in (await etcd.range(b"l/", prefix=True)).kvs])
    for work in (etcd.lease_keepalive(second), etcd.lease_revoke(second), etcd.put(b"x", b"", second)):
        try:
            await work
        except LeaseGone:
            out.append("gone")
    return out


CASES: tuple[Case, ...] = (put_changes_delete, transactions, limits, history, watches, leases)
