"""Builds one transaction from the queues: which puts, which positions, which guards. Pure.

Rules (see docs/clock.md): at most 128 operations; no key twice; every cluster whose marker is written has its
position written and guarded; what the log has already is dropped; when a shown object goes, the next one under
its key is put right behind it, in the same transaction.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from _fastpath.marker import CLASH, DIFF, GAP, LEAVE, Marker
from services.aggregator.clock.position import Position
from services.aggregator.clock.state import Change, State
from services.aggregator.clock.work import Bookmark, DiffRun, GapRun, LeaveRun, Work

MAX_OPS = 128
"""etcd's limit of operations in one transaction."""
TURN = 16
"""How much one cluster may put before the next one has its turn."""
UNBORN = 1 << 62

Key = tuple[str, str]
Queues = dict[str, deque[Work]]


class Taken(Enum):
    """What became of the work at a queue's head."""

    YES = auto()
    BLOCKED = auto()
    """Its key is in this batch already: this cluster goes on in the next one."""
    FULL = auto()


@dataclass(slots=True)
class Batch:
    """One transaction to be."""

    markers: list[Marker] = field(default_factory=list)
    positions: dict[str, Position | None] = field(default_factory=dict)
    """None: the cluster has left; its position and its gap key are deleted."""
    gap: tuple[str, int] | None = None
    """(cluster, mod_revision) of a gap key to close; then nothing else is in the batch."""
    gaps_left: list[str] = field(default_factory=list)
    left: bool = False
    """Is a position deleted? Then `left/…` is put too."""
    runs: bool = False
    """Did a run (not only events and bookmarks) move on?"""
    taken: int = 0
    """How much was taken from the queues, what was dropped included."""

    def __bool__(self) -> bool:
        # A cluster of which only a gap is left, put by an answer that came while it was leaving, goes too.
        return bool(self.markers or self.positions or self.gap or self.gaps_left)

    @property
    def clusters(self) -> set[str]:
        """Whose position or gap it changes."""
        return {self.gap[0]} if self.gap else {*self.positions, *self.gaps_left}

    def change(self, revision: int) -> Change:
        """What it did, once it is committed at `revision`."""
        gaps = dict.fromkeys(self.gaps_left, False)
        if self.gap:
            gaps[self.gap[0]] = False
        return Change(revision, list(enumerate(self.markers)), self.positions, gaps)


class Builder:
    """Builds one batch over a committed state; `order` is rotated so that no cluster is always last."""

    def __init__(self, state: State, limit: int = MAX_OPS) -> None:
        self.state = state
        self.limit = limit
        self.batch = Batch()
        self.pending: dict[Key, dict[str, Marker]] = {}
        self.dropped = 0

    def build(self, queues: Queues, order: deque[str]) -> Batch:
        """Take from the queues what fits into one transaction."""
        if self._close_gap(queues):
            return self.batch
        active = deque(name for name in order if queues.get(name))
        order.rotate(-1)
        while active:
            cluster = active.popleft()
            queue = queues[cluster]
            for _ in range(TURN):
                taken = self._take(cluster, queue)
                if taken is Taken.FULL:
                    return self.batch
                if taken is Taken.BLOCKED or not queue:
                    break
            else:
                active.append(cluster)
        return self.batch

    def _close_gap(self, queues: Queues) -> bool:
        """A gap's end is a transaction of its own: it may fail for a good reason (the gap was put again)."""
        for cluster, queue in queues.items():
            head = queue[0] if queue else None
            if isinstance(head, GapRun) and head.names is not None and not head.names:
                queue.popleft()
                self.batch.taken += 1
                self.batch.runs = True
                self.batch.gap = (cluster, head.revision)
                return True
        return False

    def _take(self, cluster: str, queue: deque[Work]) -> Taken:
        head = queue[0]
        if isinstance(head, Marker):
            taken = self._event(head)
        elif isinstance(head, Bookmark):
            taken = self._bookmark(cluster, head)
        else:
            return self._run(cluster, head, queue)
        if taken is Taken.YES:
            queue.popleft()
            self.batch.taken += 1
        return taken

    def _run(self, cluster: str, run: DiffRun | GapRun | LeaveRun, queue: deque[Work]) -> Taken:
        if isinstance(run, DiffRun):
            taken = self._diff(cluster, run, queue)
        elif isinstance(run, GapRun):
            taken = self._gap(cluster, run)
        else:
            taken = self._leave(cluster, run, queue)
        self.batch.runs = self.batch.runs or taken is Taken.YES
        return taken

    # What the batch would make of the state.

    def _position(self, cluster: str) -> Position | None:
        if cluster in self.batch.positions:
            return self.batch.positions[cluster]
        return self.state.positions.get(cluster)

    def _newest(self, cluster: str, namespace: str, name: str) -> Marker | None:
        pending = self.pending.get((namespace, name))
        if pending is not None and cluster in pending:
            return pending[cluster]
        return self.state.index.get(cluster, namespace, name)

    def _live(self, namespace: str, name: str) -> list[Marker]:
        """Live markers under a key, the shown one first."""
        newest = {one.cluster: one for one in self.state.index.markers(namespace, name)}
        newest |= self.pending.get((namespace, name), {})
        live = [one for one in newest.values() if not one.deleted]
        # Those of this batch have no number yet, but will be younger than all; dicts keep their order.
        return sorted(live, key=lambda one: one.since or UNBORN)

    def _fits(self, puts: int, *clusters: str) -> bool:
        fresh = sum(name not in self.batch.positions for name in set(clusters))
        batch = self.batch
        size = len(batch.markers) + len(batch.positions) + len(batch.gaps_left) + batch.left
        return size + puts + fresh <= self.limit

    def _put(self, cluster: str, marker: Marker, position: Position) -> Taken:
        """Put a marker; where it ends a shown object, the next one under its key too."""
        key = (marker.namespace, marker.name)
        follow: Marker | None = None
        if marker.deleted:
            live = self._live(*key)
            if len(live) > 1 and live[0].cluster == cluster:
                follow = live[1]
                if follow.cluster in self.pending.get(key, ()):
                    return Taken.BLOCKED
        other = follow.cluster if follow is not None else cluster
        if not self._fits(2 if follow is not None else 1, cluster, other):
            return Taken.FULL
        self._add(marker)
        self.batch.positions[cluster] = position
        if follow is not None:
            self._add(follow.rewritten(CLASH))
            if other not in self.batch.positions:
                self.batch.positions[other] = self.state.positions[other]
        return Taken.YES

    def _add(self, marker: Marker) -> None:
        self.batch.markers.append(marker)
        self.pending.setdefault((marker.namespace, marker.name), {})[marker.cluster] = marker

    def _blocked(self, cluster: str, namespace: str, name: str) -> bool:
        return cluster in self.pending.get((namespace, name), ())

    # The kinds of work.

    def _event(self, event: Marker) -> Taken:
        cluster, namespace, name = event.cluster, event.namespace, event.name
        if self._blocked(cluster, namespace, name):
            return Taken.BLOCKED
        position = self._position(cluster)
        if position is None:
            # Events follow a diff, which makes a position. A queue that was cleared has none left.
            raise AssertionError(f"event of cluster {cluster!r} without a position")
        old = self._newest(cluster, namespace, name)
        if self._known(event, old, position):
            self.dropped += 1
            return Taken.YES
        alive = old is not None and not old.deleted
        if alive and old is not None and not event.same_object(old):
            # The deletion between the two was never sent. It moves no position: the event follows.
            gone = old.rewritten(DIFF, deleted=True, version=old.version)
            taken = self._put(cluster, gone, position)
            return Taken.BLOCKED if taken is Taken.YES else taken
        event.keep_since(old.since if alive and old is not None and not event.deleted else 0)
        seen = event.version
        moved = Position(position.incarnation, max(position.read, seen), max(position.resume, seen - 1))
        return self._put(cluster, event, moved)

    @staticmethod
    def _known(event: Marker, old: Marker | None, position: Position) -> bool:
        """Has the log this event, or something behind it?"""
        if old is not None and old.same_state(event):
            return True
        if event.version < position.read:
            return True
        if event.deleted:
            return old is None or old.deleted
        return event.version == position.read and old is not None and old.version >= event.version

    def _bookmark(self, cluster: str, bookmark: Bookmark) -> Taken:
        position = self._position(cluster)
        if position is None:
            return Taken.YES
        if bookmark.version > position.read and not position.diff:
            # Equal to `read` it may stand between two events of one version: that run is still open.
            position = replace(position, read=bookmark.version, resume=bookmark.version)
        elif not bookmark.forced:
            return Taken.YES
        if not self._fits(0, cluster):
            return Taken.FULL
        self.batch.positions[cluster] = position
        return Taken.YES

    def _diff(self, cluster: str, run: DiffRun, queue: deque[Work]) -> Taken:
        if run.puts is None:
            if cluster in self.batch.positions:
                return Taken.BLOCKED
            run.expand(self.state)
        if not run.puts:
            if not self._fits(0, cluster):
                return Taken.FULL
            self.batch.positions[cluster] = Position(run.incarnation, run.version, run.version)
            queue.popleft()
            self.batch.taken += 1
            return Taken.YES
        marker = run.puts[0]
        if self._blocked(cluster, marker.namespace, marker.name):
            return Taken.BLOCKED
        if not marker.deleted:
            old = self._newest(cluster, marker.namespace, marker.name)
            same = old is not None and not old.deleted and old.same_object(marker)
            marker.keep_since(old.since if same and old is not None else 0)
        before = self._position(cluster) or Position(run.incarnation, 0, 0)
        taken = self._put(cluster, marker, replace(before, diff=True, target=run.incarnation))
        if taken is Taken.YES:
            run.puts.popleft()
            self.batch.taken += 1
        return taken

    def _gap(self, cluster: str, run: GapRun) -> Taken:
        if run.names is None:
            if cluster in self.batch.positions:
                return Taken.BLOCKED
            run.expand(self.state)
        if not run.names:
            return Taken.BLOCKED  # closed by the next batch
        namespace, name = run.names[0]
        if self._blocked(cluster, namespace, name):
            return Taken.BLOCKED
        old = self._newest(cluster, namespace, name)
        position = self._position(cluster)
        if old is not None and not old.deleted and old.fleet <= run.bound and position is not None:
            taken = self._put(cluster, old.rewritten(GAP), position)
            if taken is not Taken.YES:
                return taken
        run.names.popleft()
        self.batch.taken += 1
        return Taken.YES

    def _leave(self, cluster: str, run: LeaveRun, queue: deque[Work]) -> Taken:
        if run.names is None:
            if cluster in self.batch.positions:
                return Taken.BLOCKED
            run.expand(self.state)
        if not run.names:
            return self._left(cluster, queue)
        namespace, name = run.names[0]
        if self._blocked(cluster, namespace, name):
            return Taken.BLOCKED
        old = self._newest(cluster, namespace, name)
        position = self._position(cluster)
        if old is not None and not old.deleted and position is not None:
            gone = old.rewritten(LEAVE, deleted=True)
            taken = self._put(cluster, gone, replace(position, diff=True))
            if taken is not Taken.YES:
                return taken
        run.names.popleft()
        self.batch.taken += 1
        return Taken.YES

    def _left(self, cluster: str, queue: deque[Work]) -> Taken:
        gap = cluster in self.state.gaps
        if not self._fits(int(gap) + (not self.batch.left), cluster):
            return Taken.FULL
        if cluster in self.state.positions:
            self.batch.positions[cluster] = None
            self.batch.left = True
        if gap:
            self.batch.gaps_left.append(cluster)
            # The key may have gone already: a transaction that writes nothing has no revision of its own.
            self.batch.left = True
        queue.popleft()
        self.batch.taken += 1
        return Taken.YES
