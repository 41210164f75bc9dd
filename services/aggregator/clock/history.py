"""Reads a resource's state from etcd as of the window's start, and takes the events of a watch apart."""

from __future__ import annotations

import logging
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


async def load(store: Store, group: str, resource: str, revisions: int) -> State:
    """A resource's state as of the window's start; what happened since is for a watch from there to tell."""
    while True:
        now, _ = await store.leaders()
        start = await window_start(store, now, revisions)
        state = State(store.base, start)
        try:
            if start:
                await _read_state(store, group, resource, state, start)
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


def ordered(change: Change) -> Change:
    """A watch brings a revision's events in the order of their keys; the log wants that of the transaction."""
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
