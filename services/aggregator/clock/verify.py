"""Compares every marker of a resource with the clusters' own lists, and with etcd. Changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from _fastpath.marker import Marker, decode_marker, of_cluster
from services.aggregator.clock.membership import MemberState
from services.aggregator.clock.metadata import Expired, MetadataClient
from services.aggregator.clock.resource import ResourceClock
from services.aggregator.types import HOST
from services.common.errors import StatusError
from services.common.etcd import prefix_end

PATIENCE = 5.0
"""Seconds that the log may be behind a list before a difference is one."""
SLICE = 2000
PAGE = 5000
Key = tuple[str, str]


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


async def verify(clock: ResourceClock) -> AsyncIterator[Finding]:
    """Compare with every cluster at once, then with etcd; what differs comes before its cluster's `Compared`."""
    members = [state for _, state in sorted(clock.members.items()) if not state.leaving]
    tasks = [asyncio.create_task(_member(clock, state), name=f"verify/{state.cluster}") for state in members]
    try:
        for task in tasks:
            for finding in await task:
                yield finding
    finally:
        for task in tasks:
            task.cancel()
    for finding in await _stored(clock):
        yield finding


async def _member(clock: ResourceClock, state: MemberState) -> list[Finding]:
    cluster = state.cluster
    if state.state == "NoType":
        left = [one for one in of_cluster(clock.state.index, cluster) if not one.deleted]
        found: list[Finding] = [_difference(clock, one, "Gone", "the cluster does not serve this type") for one in left]
        return [*found, Compared(clock.label, cluster, 0)]
    position = state.position
    if position is None or state.state == "Unreachable":
        return [Compared(clock.label, cluster, 0, state.message or f"it is {state.state}")]
    hide = clock.context.fleet_id if clock.aggregated.include_host and cluster != HOST else ""
    api = MetadataClient(state.client, clock.aggregated.at(), cluster, hide)
    try:
        listing = await api.whole(position.incarnation)
    except (StatusError, Expired) as error:
        return [Compared(clock.label, cluster, 0, str(error))]
    items = {(one.namespace, one.name): one for one in listing.items}
    open_ = await _differing(clock, cluster, items, listing.version)
    differences = [_judge(clock, cluster, key, items.get(key)) for key in sorted(open_)]
    return [*differences, Compared(clock.label, cluster, len(items))]


async def _differing(
    clock: ResourceClock, cluster: str, items: dict[Key, Marker], version: int
) -> set[Key]:
    """Keys whose marker is not what the list at `version` shows, and does not become so in time."""
    live = {(one.namespace, one.name) for one in of_cluster(clock.state.index, cluster) if not one.deleted}
    open_: set[Key] = set()
    for number, key in enumerate(items.keys() | live):
        if not _fits(clock, cluster, key, items.get(key), version):
            open_.add(key)
        if number % SLICE == SLICE - 1:
            await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE
    while open_ and (left := deadline - loop.time()) > 0:
        await clock.pulse.wait(min(left, 0.25))
        open_ = {key for key in open_ if not _fits(clock, cluster, key, items.get(key), version)}
    return open_


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


async def _stored(clock: ResourceClock) -> list[Finding]:
    """Is what this replica serves what etcd holds?"""
    context, state = clock.context, clock.state
    here = {(one.cluster, one.namespace, one.name): (one.fleet, one.uid, one.version) for one in state.index}
    revision = state.revision
    prefix = context.store.keys.all("markers", clock.group, clock.resource)
    out: list[Finding] = []
    count = 0
    async for page in context.store.etcd.pages(prefix, prefix_end(prefix), page=PAGE, revision=revision):
        for kv in page.kvs:
            key = context.store.keys.parse(kv.key)
            if key is None:
                continue
            index, marker = decode_marker(key.cluster, key.namespace, key.name, kv.value)
            count += 1
            fleet = state.fleet(int(kv.mod_revision), index)
            have = here.pop((key.cluster, key.namespace, key.name), None)
            if have != (fleet, marker.uid, marker.version):
                what = f"etcd has {fleet} ({marker.version}), this replica {have and f'{have[0]} ({have[2]})'}"
                out.append(_difference(clock, marker, "Stored", what))
    out += [
        Difference(clock.label, cluster, namespace, name, "Stored", f"etcd has no marker, this replica {have[0]}")
        for (cluster, namespace, name), have in here.items()
    ]
    return [*out, Compared(clock.label, "(etcd)", count)]
