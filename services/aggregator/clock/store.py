"""The clock's keys in etcd: who may use them, and the transactions on them.

Everything here is one remote call (or a few); nothing is remembered but the base. Errors are those of
services.common.etcd, and the two below.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from _fastpath.marker import Marker, puts
from services.aggregator.clock.batch import Batch
from services.aggregator.clock.keys import DOUBT, KINDS, Layout
from services.aggregator.clock.state import State
from services.aggregator.clock.varint import Reader, Writer
from services.common.etcd import Etcd, EtcdError, compare, op_delete, op_put, op_range, prefix_end, txn_part

log = logging.getLogger(__name__)

BASE_LAYOUT = 1
COMMIT_TIMEOUT = 10.0
SEVERAL_TIMEOUT = 4.0
"""The same where etcd has other members to go on with: longer than they take to elect a leader."""
REBUILD_TIMEOUT = 60.0


class StartRefused(Exception):
    """What is stored under the prefix must not be touched by this program; the message says what to do."""


class StorageChanged(EtcdError):
    """The etcd is not the one that was read: emptied, rebuilt, or set back to an older state."""

    def __init__(self, message: str, *, rewound: bool = False) -> None:
        super().__init__(message)
        self.rewound = rewound


class Deposed(EtcdError):
    """Another sequencer took over, or our lease ended: nothing was written."""


class GapReopened(EtcdError):
    """The gap key was put again meanwhile: nothing was written."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a leader key."""

    identity: str
    create_revision: int
    mod_revision: int


class Store:
    """One prefix of one etcd, of one fleet. `open` first."""

    def __init__(self, etcd: Etcd, prefix: str, fleet_id: str) -> None:
        self.etcd = etcd
        self.keys = Layout(prefix)
        self.fleet_id = fleet_id
        self.patience = COMMIT_TIMEOUT if len(etcd.endpoints) == 1 else SEVERAL_TIMEOUT
        self.base = 0
        self.base_revision = 0
        """mod_revision of the base key: what lies before it is another store's history."""
        self._terms: dict[tuple[str, str], tuple[int, int, list[Any], bytes]] = {}

    async def open(self, *, rewound: bool = False) -> None:
        """Read the base, or make it. StartRefused for another fleet's data and for a newer layout.

        `rewound`: the store was set back, so that its revisions repeat; a new base puts them above all that
        were given before.
        """
        while True:
            stored = await self.etcd.get(self.keys.base)
            if stored is not None and not (rewound and self.base == self._check(stored.value)):
                self.base, self.base_revision = self._check(stored.value), stored.mod_revision
                return
            revision = stored.mod_revision if stored is not None else 0
            out = Writer(BASE_LAYOUT)
            # Two stores made within one millisecond after another must differ too.
            out.number(max(int(time.time() * 1000), self.base + 1))
            out.text(self.fleet_id)
            await self.etcd.txn(
                [compare(self.keys.base, "mod", "=", revision)], [op_put(self.keys.base, out.done())]
            )

    async def rebuild(self) -> int:
        """Put a new base and remove whatever was numbered by the old one, in one transaction; return its revision.

        All replicas find another base then, read all anew, and list every cluster. EtcdError, StorageChanged.
        """
        stored = await self.etcd.get(self.keys.base)
        if stored is None or self._check(stored.value) != self.base:
            raise StorageChanged("etcd: the base key is not the one that was read: the store was rebuilt")
        revision = (await self.etcd.range(self.keys.base, keys_only=True)).revision
        out = Writer(BASE_LAYOUT)
        # Above all that the old base numbered, whatever the time says.
        out.number(max(int(time.time() * 1000), self.base + revision + 1))
        out.text(self.fleet_id)
        gone = [self.keys.kind(kind) for kind in KINDS]
        answer = await self.etcd.txn(
            [compare(self.keys.base, "mod", "=", stored.mod_revision)],
            [op_put(self.keys.base, out.done()), *(op_delete(prefix, prefix_end(prefix)) for prefix in gone)],
            timeout=REBUILD_TIMEOUT,
        )
        if not answer.succeeded:
            raise StorageChanged("etcd: another rebuild came first")
        return answer.revision

    def _check(self, value: bytes) -> int:
        where = self.keys.prefix.decode()
        try:
            data = Reader(value, BASE_LAYOUT, "base")
        except ValueError as error:
            raise StartRefused(
                f"etcd prefix {where}: {error}. It was written by a newer Reclock: start that one, or set"
                " etcd.prefix to another prefix"
            ) from None
        base, fleet = data.number(), data.text()
        if fleet != self.fleet_id:
            raise StartRefused(
                f"etcd prefix {where} holds the markers of fleet {fleet}, this one is {self.fleet_id}: set"
                f" etcd.prefix to another prefix, or remove the old fleet's with `etcdctl del --prefix {where}`"
            )
        return base

    # The leader key.

    async def elect(self, group: str, resource: str, identity: str, lease: int) -> int | Holder:
        """Take the leader key; return its create_revision, or who holds it. StorageChanged, LeaseGone."""
        key = self.keys.leader(group, resource)
        answer = await self.etcd.txn(
            [compare(key, "create", "=", 0), compare(self.keys.base, "mod", "=", self.base_revision)],
            [op_put(key, identity.encode(), lease)],
            [op_range(key), op_range(self.keys.base)],
        )
        if answer.succeeded:
            return answer.revision
        held = answer.responses[0].response_range.kvs
        base = answer.responses[1].response_range.kvs
        if not base or base[0].mod_revision != self.base_revision:
            raise StorageChanged("etcd: the base key is not the one that was read: the store was rebuilt")
        if not held:
            raise Deposed("etcd: the leader key went while it was asked for")
        return Holder(held[0].value.decode(), held[0].create_revision, held[0].mod_revision)

    async def resign(self, group: str, resource: str, term: int) -> None:
        """Delete the leader key if it is ours still: nothing under way can succeed after that."""
        key = self.keys.leader(group, resource)
        await self.etcd.txn([compare(key, "create", "=", term)], [op_delete(key)])

    async def leaders(self) -> tuple[int, dict[tuple[str, str], int]]:
        """One linearizable read: (etcd's revision, create_revision of every leader key)."""
        answer = await self.etcd.range(self.keys.kind("leader"), prefix=True, keys_only=True)
        found = {}
        for kv in answer.kvs:
            key = self.keys.parse(kv.key)
            if key is not None:
                found[key.group, key.resource] = int(kv.create_revision)
        return answer.revision, found

    async def verify(self, seen: int) -> None:
        """Is this the store whose revisions up to `seen` were read? StorageChanged."""
        answer = await self.etcd.range(self.keys.base, keys_only=True)
        if not answer.kvs or answer.kvs[0].mod_revision != self.base_revision:
            raise StorageChanged("etcd: the base key is not the one that was read: the store was rebuilt")
        if answer.revision < seen:
            raise StorageChanged(f"etcd's revision went back from {seen} to {answer.revision}", rewound=True)

    async def committed(self, group: str, resource: str, after: int) -> tuple[int, int]:
        """One linearizable read: (etcd's revision, that of the resource's newest commit if it is above `after`, or 0).

        Every transaction with markers writes a position; one that deletes a position puts `left/…`. StorageChanged.
        """
        positions, left = self.keys.all("positions", group, resource), self.keys.left(group, resource)
        answer = await self.etcd.txn(
            [compare(self.keys.base, "mod", "=", self.base_revision)],
            [
                op_range(positions, prefix_end(positions), keys_only=True, min_mod=after + 1),
                op_range(left, keys_only=True, min_mod=after + 1),
            ],
        )
        if not answer.succeeded:
            raise StorageChanged("etcd: the base key is not the one that was read: the store was rebuilt")
        found = (kv.mod_revision for one in answer.responses for kv in one.response_range.kvs)
        return answer.revision, max(found, default=0)

    # What the sequencer writes.

    def _guards(self, group: str, resource: str, term: int) -> tuple[list[Any], bytes]:
        """The term is not over, and the base is the one that numbers are made with; the same encoded."""
        base = self.base_revision
        held = self._terms.get((group, resource))
        if held is None or held[:2] != (term, base):
            # The same for every commit of a term.
            guards = [
                compare(self.keys.leader(group, resource), "create", "=", term),
                compare(self.keys.base, "mod", "=", base),
            ]
            held = self._terms[group, resource] = term, base, guards, txn_part(guards)
        return held[2].copy(), held[3]

    async def commit(self, group: str, resource: str, term: int, state: State, batch: Batch) -> int:
        """Commit a batch; return its revision. Deposed or GapReopened: it did not happen."""
        if batch.gap is not None:
            return await self._close_gap(group, resource, term, *batch.gap)
        keys = self.keys
        guards: list[Any] = []
        ops: list[Any] = []
        for cluster, position in batch.positions.items():
            key = keys.position(group, resource, cluster)
            guards.append(compare(key, "mod", "=", state.position_revisions.get(cluster, 0)))
            ops.append(op_delete(key) if position is None else op_put(key, position.encode()))
        ops += [op_delete(keys.gap(group, resource, cluster)) for cluster in batch.gaps_left]
        if batch.left:
            ops.append(op_put(keys.left(group, resource), b""))
        answer = await self.etcd.txn_of(
            self._guards(group, resource, term)[1], puts(batch.markers, keys.all("markers", group, resource)),
            txn_part(guards, ops), timeout=self.patience,
        )  # fmt: skip
        if not answer.succeeded:
            raise Deposed("another sequencer leads, or wrote a position")
        return answer.revision

    async def _close_gap(self, group: str, resource: str, term: int, cluster: str, revision: int) -> int:
        leader, key = self.keys.leader(group, resource), self.keys.gap(group, resource, cluster)
        guards = [*self._guards(group, resource, term)[0], compare(key, "mod", "=", revision)]
        answer = await self.etcd.txn(guards, [op_delete(key)], [op_range(leader)], timeout=self.patience)
        if not answer.succeeded:
            held = answer.responses[0].response_range.kvs
            if held and held[0].create_revision == term:
                raise GapReopened(f"{cluster}: put again")
            raise Deposed("another sequencer leads")
        return answer.revision

    async def purge(
        self, group: str, resource: str, term: int, revisions: Sequence[tuple[Marker, int]]
    ) -> int:
        """Delete tombstones that are still what they were at these revisions; return the revision."""
        guards, _ = self._guards(group, resource, term)
        ops = []
        for one, revision in revisions:
            key = self.keys.marker(group, resource, one.namespace, one.name, one.cluster)
            guards.append(compare(key, "mod", "=", revision))
            ops.append(op_delete(key))
        answer = await self.etcd.txn(guards, ops, timeout=self.patience)
        if not answer.succeeded:
            raise Deposed("another sequencer leads, or wrote a marker")
        return answer.revision

    async def ask_list(self, group: str, resource: str, cluster: str, read: int) -> None:
        """Ask the sequencer to list a cluster anew, whose position stands at `read`."""
        await self.etcd.put(self.keys.asked(group, resource, cluster), str(read).encode())

    async def ask_watch(self, group: str, resource: str, cluster: str, read: int) -> None:
        """Ask the sequencer to doubt a cluster's watch: events above `read` are overdue. In the place of a list's wish,
        in words that replicas of before do not take for one."""
        await self.etcd.put(self.keys.asked(group, resource, cluster), DOUBT + str(read).encode())

    async def put_gap(self, group: str, resource: str, cluster: str) -> int:
        """Say that an answer leaves the cluster out; return the revision."""
        return await self.etcd.put(self.keys.gap(group, resource, cluster), b"\x01")
