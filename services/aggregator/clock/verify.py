"""Compares every marker of a resource with the clusters' own lists, and with etcd. Changes nothing.

Memory does not grow with what is right: lists and etcd are read in pages, and of a page only eight bytes an object are
kept, until it is known that no marker is left over.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from _fastpath.marker import Marker, decode_marker
from services.aggregator.clock.membership import MemberState
from services.aggregator.clock.metadata import Expired, MetadataClient
from services.aggregator.clock.resource import ResourceClock
from services.aggregator.clock.state import State
from services.aggregator.clock.version import MAX_INDEX
from services.aggregator.types import HOST
from services.common.errors import StatusError
from services.common.etcd import op_range, prefix_end

PATIENCE = 5.0
"""Seconds that the log may be behind a list before a difference is one."""
SLICE = 2000
PAGE = 5000
OPEN = 1000
"""Objects of one cluster that may wait for the log at once; findings of it that may wait for the reader."""
AT_ONCE = 32
"""Clusters that are listed at once."""
KEYS = 100
"""Keys that one transaction asks for; etcd allows 128."""
FOREVER = 2**63 - 1
Key = tuple[str, str]
Place = tuple[str, str, str]
"""(cluster, namespace, name)"""
Items = Mapping[Place, Marker | None]


@dataclass(frozen=True, slots=True)
class Difference:
    """One object whose marker is wrong; `what`: Missing, Stale, Gone, Stored."""

    resource: str
    cluster: str
    namespace: str
    name: str
    what: str
    message: str


@dataclass(frozen=True, slots=True)
class Compared:
    """So many objects of a cluster were compared; or it could not be asked (`problem`)."""

    resource: str
    cluster: str
    objects: int
    problem: str = ""


Finding = Difference | Compared
Findings = asyncio.Queue[Finding]


@dataclass(slots=True)
class _Listed:
    """What a cluster has: hashes of (namespace, name), ordered, as of a member version."""

    version: int
    keys: array[int]
    lacks_type: bool = False

    def has(self, key: Key) -> bool:
        wanted = hash(key)
        at = bisect_left(self.keys, wanted)
        return at < len(self.keys) and self.keys[at] == wanted


async def verify(clock: ResourceClock) -> AsyncIterator[Finding]:
    """Compare with every cluster, then with etcd. What a list shows to differ comes before its cluster's `Compared`;
    markers of objects that a cluster does not have come behind all lists. EtcdError."""
    members = [state for _, state in sorted(clock.members.items()) if not state.leaving]
    gate = asyncio.Semaphore(AT_ONCE)
    queues: list[Findings] = [asyncio.Queue(OPEN) for _ in members]
    tasks = [
        asyncio.create_task(_member(clock, state, gate, queue), name=f"verify/{state.cluster}")
        for state, queue in zip(members, queues, strict=True)
    ]
    try:
        # In the order in which they pass the gate: whoever waits for the reader never keeps the one that is read out.
        for task, queue in zip(tasks, queues, strict=True):
            async for finding in _told(task, queue):
                yield finding
        listed = {state.cluster: task.result() for state, task in zip(members, tasks, strict=True)}
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    async for finding in _left_over(clock, {name: one for name, one in listed.items() if one is not None}):
        yield finding
    async for finding in _stored(clock):
        yield finding


async def _told(task: asyncio.Task[_Listed | None], queue: Findings) -> AsyncIterator[Finding]:
    """What the task puts into the queue, until it is done."""
    while not (task.done() and queue.empty()):
        getter = asyncio.ensure_future(queue.get())
        await asyncio.wait({getter, task}, return_when=asyncio.FIRST_COMPLETED)
        if getter.done():
            yield getter.result()
        else:
            getter.cancel()


async def _member(
    clock: ResourceClock, state: MemberState, gate: asyncio.Semaphore, out: Findings
) -> _Listed | None:
    """Tell what differs from the cluster's list; return what it has, None where it could not be asked."""
    cluster = state.cluster
    async with gate:
        if state.state == "NoType":
            await out.put(Compared(clock.label, cluster, 0))
            return _Listed(FOREVER, array("q"), lacks_type=True)
        position = state.position
        if position is None or state.state == "Unreachable":
            await out.put(Compared(clock.label, cluster, 0, state.message or f"it is {state.state}"))
            return None
        hide = clock.context.fleet_id if clock.aggregated.include_host and cluster != HOST else ""
        api = MetadataClient(state.client, clock.aggregated.at(), cluster, hide)
        keys, open_, version = array("q"), dict[Key, Marker](), 0
        deadline = 0.0
        try:
            async for page in api.pages(position.incarnation):
                if not version:
                    version, deadline = page.version, _deadline()
                keys.extend(hash((one.namespace, one.name)) for one in page.items)
                for one in page.items:
                    if not _fits(clock, cluster, (one.namespace, one.name), one, version):
                        open_[one.namespace, one.name] = one
                        if len(open_) >= OPEN:
                            await _confirm(clock, cluster, open_, version, deadline, out)
                await asyncio.sleep(0)
        except (StatusError, Expired) as error:
            await out.put(Compared(clock.label, cluster, len(keys), str(error)))
            return None
        await _confirm(clock, cluster, open_, version, deadline, out)
        await out.put(Compared(clock.label, cluster, len(keys)))
    return _Listed(version, array("q", sorted(keys)))


def _deadline() -> float:
    return asyncio.get_running_loop().time() + PATIENCE


async def _confirm(
    clock: ResourceClock, cluster: str, open_: dict[Key, Marker], version: int, deadline: float, out: Findings
) -> None:
    """Tell of those whose marker does not become right in time; none is open then."""
    items: Items = {(cluster, *key): one for key, one in open_.items()}
    for _, *key in sorted(await _lasting(clock, items, {cluster: version}, deadline)):
        await out.put(_judge(clock, cluster, (key[0], key[1]), open_[key[0], key[1]]))
    open_.clear()


async def _lasting(clock: ResourceClock, items: Items, versions: dict[str, int], deadline: float) -> set[Place]:
    """Those whose marker is still wrong at the deadline: the log has had its time."""
    loop = asyncio.get_running_loop()
    open_ = set(items)
    while open_:
        open_ = {one for one in open_ if not _fits(clock, one[0], one[1:], items[one], versions[one[0]])}
        if (left := deadline - loop.time()) <= 0:
            break
        await clock.pulse.wait(min(left, 0.25))
    return open_


async def _left_over(clock: ResourceClock, listed: dict[str, _Listed]) -> AsyncIterator[Difference]:
    """Live markers of objects that their clusters do not have."""
    versions = {name: one.version for name, one in listed.items()}
    open_: list[Place] = []
    deadline = _deadline()
    for number, one in enumerate(clock.iter_markers()):
        of = listed.get(one.cluster)
        if of is not None and one.version <= of.version and not of.has((one.namespace, one.name)):
            open_.append((one.cluster, one.namespace, one.name))
        if len(open_) >= OPEN:
            for found in await _gone(clock, open_, versions, listed, deadline):
                yield found
            open_ = []
        if number % SLICE == SLICE - 1:
            await asyncio.sleep(0)
    for found in await _gone(clock, open_, versions, listed, deadline):
        yield found


async def _gone(
    clock: ResourceClock, open_: list[Place], versions: dict[str, int], listed: dict[str, _Listed], deadline: float
) -> list[Difference]:
    out = []
    for cluster, namespace, name in sorted(await _lasting(clock, dict.fromkeys(open_), versions, deadline)):
        if listed[cluster].lacks_type:
            newest = clock.marker(cluster, namespace, name)
            if newest is not None:
                out.append(_difference(clock, newest, "Gone", "the cluster does not serve this type"))
        else:
            out.append(_judge(clock, cluster, (namespace, name), None))
    return out


def _fits(clock: ResourceClock, cluster: str, key: Key, item: Marker | None, version: int) -> bool:
    newest = clock.marker(cluster, *key)
    if item is None:
        return newest is None or newest.deleted or newest.version > version
    if newest is None:
        return False
    if newest.version != item.version:
        return newest.version > item.version
    return not newest.deleted and newest.same_object(item) and newest.labels == item.labels


def _judge(clock: ResourceClock, cluster: str, key: Key, item: Marker | None) -> Difference:
    newest = clock.marker(cluster, *key)
    if item is None:
        assert newest is not None
        return _difference(clock, newest, "Gone", f"the cluster has no such object; marker: {newest.version}")
    if newest is None or newest.deleted:
        return _difference(clock, item, "Missing", f"no marker; the cluster has {item.version}")
    what = f"marker: {newest.version}, the cluster has {item.version}"
    if newest.uid != item.uid:
        what = f"marker of uid {newest.uid}, the cluster has {item.uid}"
    elif newest.version == item.version:
        what = f"labels of version {item.version} differ"
    return _difference(clock, item, "Stale", what)


def _difference(clock: ResourceClock, one: Marker, kind: str, message: str) -> Difference:
    return Difference(clock.label, one.cluster, one.namespace, one.name, kind, message)


# Is what this replica serves what etcd holds?


async def _stored(clock: ResourceClock) -> AsyncIterator[Finding]:
    """Both as of one revision: what the log has had since is walked back, marker by marker."""
    context, state = clock.context, clock.state
    revision, expected = state.revision, state.index.size
    at = state.fleet(revision, MAX_INDEX)
    prefix = context.store.keys.all("markers", clock.group, clock.resource)
    count = held = 0
    async for page in context.store.etcd.pages(prefix, prefix_end(prefix), page=PAGE, revision=revision):
        for kv in page.kvs:
            key = context.store.keys.parse(kv.key)
            if key is None:
                continue
            index, marker = decode_marker(key.cluster, key.namespace, key.name, kv.value)
            count += 1
            fleet = state.fleet(int(kv.mod_revision), index)
            have = state.marker_at(key.cluster, key.namespace, key.name, at)
            # A tombstone that the window has passed since may have been purged since.
            held += have is not None or (marker.deleted and fleet <= state.floor)
            if have is None and marker.deleted and fleet <= state.floor:
                continue
            if have is None or (have.fleet, have.uid, have.version) != (fleet, marker.uid, marker.version):
                what = f"etcd has {fleet} ({marker.version}), this replica {have and f'{have.fleet} ({have.version})'}"
                yield _difference(clock, marker, "Stored", what)
    if held < expected:
        async for found in _not_stored(clock, state, revision):
            yield found
    problem = "the window has passed it by: it took too long" if state.floor > at else ""
    yield Compared(clock.label, "(etcd)", count, problem)


async def _not_stored(clock: ResourceClock, state: State, revision: int) -> AsyncIterator[Difference]:
    """Markers that etcd does not have: there are some, so each is asked for."""
    store, at = clock.context.store, state.fleet(revision, MAX_INDEX)
    markers = [
        one for newest in state.index
        if (one := state.marker_at(newest.cluster, newest.namespace, newest.name, at)) is not None
    ]  # fmt: skip
    for start in range(0, len(markers), KEYS):
        some = markers[start : start + KEYS]
        keys = [store.keys.marker(clock.group, clock.resource, one.namespace, one.name, one.cluster) for one in some]
        answer = await store.etcd.txn([], [op_range(key, keys_only=True, revision=revision) for key in keys])
        for one, found in zip(some, answer.responses, strict=True):
            if not found.response_range.kvs:
                yield _difference(clock, one, "Stored", f"etcd has no marker, this replica {one.fleet}")
