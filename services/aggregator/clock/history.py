"""Reads a resource's state from etcd: as of the window's start, then every revision since.

The end of a replay is marked by the reader's own election: its leader key lies under the same prefix, so a
watch that has shown that put has shown everything before it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from _fastpath.marker import decode_marker
from services.aggregator.clock.keys import Parsed
from services.aggregator.clock.position import decode_position
from services.aggregator.clock.state import Change, State
from services.aggregator.clock.store import Store
from services.common.etcd import DELETE, EtcdCompacted, prefix_end

log = logging.getLogger(__name__)

PAGE = 5000


async def window_start(store: Store, now: int, revisions: int) -> int:
    """The revision whose state can be read and followed by a watch: the last compaction, or fewer back."""
    oldest = 0
    watch = store.etcd.watch(store.keys.base, start_revision=1)
    async with aclosing(watch) as batches:
        try:
            # etcd says that the watch is made before it says that it cannot be; the base's own put comes else.
            async for batch in batches:
                if batch.events:
                    break
        except EtcdCompacted as error:
            oldest = error.compact_revision
    # What lies before the base was numbered by another one, or removed with it.
    return max(oldest, now - revisions, store.base_revision)


async def load(store: Store, group: str, resource: str, until: int, revisions: int) -> State:
    """Read a resource's state and log as of revision `until`, which must be a put under the prefix."""
    while True:
        start = await window_start(store, until - 1, revisions)
        state = State(store.base, start)
        try:
            if start:
                await _read_state(store, group, resource, state, start)
            await replay(store, group, resource, state, until)
        except EtcdCompacted:
            log.info("etcd was compacted while it was read: reading again")
            continue
        return state


async def _read_state(store: Store, group: str, resource: str, state: State, revision: int) -> None:
    keys = store.keys
    for kind in ("markers", "positions", "gaps"):
        prefix = keys.all(kind, group, resource)
        pages = store.etcd.pages(prefix, prefix_end(prefix), page=PAGE, revision=revision)
        async for page in pages:
            for kv in page.kvs:
                key = keys.parse(kv.key)
                if key is not None:
                    _take(state, key, kv)
    state.tombs.sort(key=lambda one: one.fleet)
    state.pass_revision(revision)


def _take(state: State, key: Parsed, kv: Any) -> None:
    if key.kind == "markers":
        index, marker = decode_marker(key.cluster, key.namespace, key.name, kv.value)
        state.load_marker(kv.mod_revision, index, marker)
    elif key.kind == "positions":
        state.positions[key.cluster] = decode_position(kv.value)
        state.position_revisions[key.cluster] = kv.mod_revision
    else:
        state.see_gap(key.cluster, kv.mod_revision)


async def replay(store: Store, group: str, resource: str, state: State, until: int) -> None:
    """Apply what happened behind `state.revision`, up to `until`. EtcdCompacted: too long ago."""
    async for change in changes(store, group, resource, state.revision + 1, until):
        state.apply(change)
    state.pass_revision(until)


async def changes(store: Store, group: str, resource: str, start: int, until: int) -> AsyncIterator[Change]:
    """Yield one Change per revision in [start, until] that touches the resource."""
    watch = store.etcd.watch(store.keys.prefix, prefix=True, start_revision=start)
    async with aclosing(watch) as batches:
        current: Change | None = None
        async for batch in batches:
            for event in batch.events:
                revision = int(event.kv.mod_revision)
                if current is not None and revision != current.revision:
                    if current:
                        yield _ordered(current)
                    current = None
                if revision > until:
                    return
                if current is None:
                    current = Change(revision)
                key = store.keys.parse(event.kv.key)
                if key is not None and key.group == group and key.resource == resource:
                    take_event(current, key, event)
            last = batch.events[-1].kv.mod_revision if batch.events else 0
            if last >= until:
                # All events of one revision come in one batch.
                if current:
                    yield _ordered(current)
                return


def _ordered(change: Change) -> Change:
    change.markers.sort(key=lambda pair: pair[0])
    return change


def take_event(change: Change, key: Parsed, event: Any) -> None:
    """Add one event of a watch to its revision's change."""
    gone = event.type == DELETE
    if key.kind == "markers":
        if gone:
            change.purged.append((key.cluster, key.namespace, key.name))
        else:
            change.markers.append(decode_marker(key.cluster, key.namespace, key.name, event.kv.value))
    elif key.kind == "positions":
        change.positions[key.cluster] = None if gone else decode_position(event.kv.value)
    elif key.kind == "gaps":
        change.gaps[key.cluster] = not gone
