"""Figures of the clock for people: per etcd, and per resource."""

from __future__ import annotations

from typing import Any

from services.aggregator.clock.clock import Clock
from services.aggregator.clock.resource import ResourceClock
from services.common.etcd import EtcdError, prefix_end

PAGE = 5000


async def etcd_stats(clock: Clock) -> dict[str, Any]:
    """One etcd: its endpoints, alarm, base, and which resources lie on it."""
    await clock.upkeep.look()
    store = clock.context.store
    return {
        "base": store.base,
        "prefix": store.keys.prefix.decode(),
        "resources": sorted(clock.resources),
        "alarm": clock.upkeep.ready() or "",
        "endpoints": [
            {
                "address": one.address, "version": one.version, "sizeBytes": one.size, "usedBytes": one.used,
                "leader": one.leader, "alarms": list(one.alarms), "problem": one.problem,
            }
            for one in clock.upkeep.endpoints
        ],
    }  # fmt: skip


async def resource_stats(clock: ResourceClock) -> dict[str, Any]:
    """One resource. `keys` and `bytes` are what its markers take in etcd, deletions of the window included."""
    keys, size, problem = await _size(clock)
    counts, state = clock.counts(), clock.state
    return {
        "resource": clock.label,
        "objects": counts.markers,
        "hidden": counts.clashes,
        "logEntries": counts.log_entries,
        "keys": keys,
        "bytes": size,
        "head": state.head,
        "floor": state.floor,
        "revision": state.revision,
        "windowRevisions": counts.window_revisions,
        "problem": problem,
        "members": [
            {
                "cluster": one.cluster, "state": one.state, "position": one.position.read if one.position else 0,
                "gap": one.cluster in state.gaps, "message": one.message,
            }
            for _, one in sorted(clock.members.items())
        ],
    }  # fmt: skip


async def _size(clock: ResourceClock) -> tuple[int, int, str]:
    store = clock.context.store
    prefix = store.keys.all("markers", clock.group, clock.resource)
    keys = size = 0
    try:
        async for page in store.etcd.pages(prefix, prefix_end(prefix), page=PAGE):
            keys += len(page.kvs)
            size += sum(len(kv.key) + len(kv.value) for kv in page.kvs)
    except EtcdError as error:
        return keys, size, str(error)
    return keys, size, ""
