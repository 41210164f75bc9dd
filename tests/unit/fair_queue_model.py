"""Plain-Python twin of `_fastpath.fair_queue`: dicts and lists, every cluster looked at on every pick.

Clusters' tags with what their running calls owe are worked out anew each time; the compiled code does it
lazily and must come to the same order.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass
class Run:
    key: Key
    cluster: Cluster
    start: float
    unit: float
    orphan: bool = False
    dirty: bool = False
    due: float | None = None
    prio: int = 0


@dataclass
class Item:
    cluster: str
    key: str
    priority: int
    attempts: int
    waited: float
    run: Run


@dataclass
class Key:
    name: str
    prio: int = 0
    level: int = 0
    since: float = 0.0
    due: float = 0.0
    start: int = 0
    order: int = 0
    state: str = "idle"
    attempts: int = 0
    run: Run | None = None

    @property
    def namespace(self) -> str:
        return self.name.split("/")[0] if "/" in self.name else ""


@dataclass
class Level:
    """Waiting keys of one priority: start-time fair queuing over namespaces, each service costing one."""

    keys: list[Key] = field(default_factory=list)
    vtime: int = 0
    finish: dict[str, int] = field(default_factory=dict)
    oldest: float = 0.0

    def __len__(self) -> int:
        return len(self.keys)

    def append(self, key: Key) -> None:
        if not self.keys or key.since < self.oldest:
            self.oldest = key.since
        key.start = max(self.vtime, self.finish.get(key.namespace, 0))
        if key.start > self.vtime + len(self.keys):
            key.start -= 1  # others of its namespace left without being served: it takes the turn of one
        self.finish[key.namespace] = key.start + 1
        self.keys.append(key)

    def remove(self, key: Key) -> None:
        self.keys.remove(key)
        if self.keys:
            self.vtime = max(self.vtime, min(key.start for key in self.keys))

    def take(self) -> Key:
        key = min(self.keys, key=lambda key: key.start)  # the first one of several
        self.vtime = key.start
        self.keys.remove(key)
        return key


@dataclass
class Cluster:
    name: str
    weight: float
    cap: int
    turn: int
    tag: float = 0.0
    paused: bool = False
    levels: dict[int, Level] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    keys: dict[str, Key] = field(default_factory=dict)
    settled: dict[int, int] = field(default_factory=dict)
    eligible: bool = False
    scan_at: float = 0.0
    rate: float = 0.0
    burst: int = 1
    bucket_at: float = -math.inf
    adds: int = 0
    served: int = 0

    def ready(self) -> int:
        return sum(map(len, self.levels.values()))


class FairQueue:
    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        expected_work: float = 0.1,
        base_delay: float = 0.005,
        max_delay: float = 1000.0,
        max_wait: float = 60.0,
        workers: int = 16,
        priority_first: bool = False,
    ) -> None:
        self.clock, self.work, self.base, self.max_delay = clock, expected_work, base_delay, max_delay
        self.max_wait, self.workers, self.priority_first = max_wait, workers, priority_first
        self.clusters: dict[str, Cluster] = {}
        self.locks: dict[tuple[str, str], Run] = {}  # running keys, of past generations too
        self.vtime, self.turns, self.orders, self.shutting = 0.0, 0, 0, False

    def __len__(self) -> int:
        return sum(c.ready() for c in self.clusters.values())

    # --- clusters ---
    def _cap(self, cap: int | None) -> int:
        if cap is not None and cap < 1:
            raise ValueError("cap")
        return max(1, self.workers // 4) if cap is None else cap

    def _weight(self, weight: float) -> float:
        if not 1e-6 <= weight <= 1e6:
            raise ValueError(f"weight {weight}: must be between 1e-06 and 1e+06")
        return weight

    def engage(self, cluster: str, weight: float = 1.0, cap: int | None = None) -> None:
        weight, cap = self._weight(weight), self._cap(cap)
        if cluster not in self.clusters:
            self.turns += 1
            self.clusters[cluster] = Cluster(cluster, weight, cap, self.turns)
        c = self.clusters[cluster]
        c.weight, c.cap = weight, cap
        self._settle(c)

    def disengage(self, cluster: str) -> int:
        c = self.clusters.pop(cluster, None)
        if c is None:
            return 0
        for (name, _), run in self.locks.items():
            if name == cluster:
                run.orphan, run.dirty, run.due = True, False, None
        return sum(k.state in ("ready", "delayed") for k in c.keys.values())

    def set_weight(self, cluster: str, weight: float) -> None:
        self.clusters[cluster].weight = self._weight(weight)

    def set_cap(self, cluster: str, cap: int | None) -> None:
        self.clusters[cluster].cap = self._cap(cap)
        self._settle(self.clusters[cluster])

    def set_rate(self, cluster: str, rate: float | None, burst: int = 1) -> None:
        c = self.clusters[cluster]
        c.rate, c.burst, c.bucket_at = rate or 0.0, burst, -math.inf

    def pause(self, cluster: str) -> None:
        self.clusters[cluster].paused = True
        self._settle(self.clusters[cluster])

    def resume(self, cluster: str) -> None:
        self.clusters[cluster].paused = False
        self._settle(self.clusters[cluster])

    def _charge(self, c: Cluster) -> None:
        """Further expected_work's of running calls, charged as they pass."""
        for run in c.runs:
            parts = int((self.clock() - run.start) / self.work)
            c.tag += (parts - c.settled.get(id(run), 0)) * run.unit
            c.settled[id(run)] = parts

    def _settle(self, c: Cluster) -> None:
        """Becoming eligible brings no credit for the time away."""
        now = bool(c.ready()) and len(c.runs) < c.cap and not c.paused
        if now and not c.eligible:
            self._charge(c)
            c.tag = max(c.tag, self.vtime)
        c.eligible = now

    # --- keys ---
    def _all(self) -> Iterator[tuple[Cluster, Key]]:
        for c in self.clusters.values():
            for key in c.keys.values():
                yield c, key

    def _release_due(self) -> None:
        due = [
            (k.due, k.order, c, k) for c, k in self._all() if k.state == "delayed" and k.due <= self.clock()
        ]
        for when, _, c, key in sorted(due, key=lambda d: d[:2]):
            self._enqueue(c, key, when)

    def _enqueue(self, c: Cluster, key: Key, since: float) -> None:
        key.state, key.since, key.level = "ready", since, key.prio
        c.levels.setdefault(key.prio, Level()).append(key)
        self._settle(c)

    def _delay(self, key: Key, due: float) -> None:
        self.orders += 1
        key.state, key.due, key.order = "delayed", due, self.orders

    def _move(self, c: Cluster, key: Key, level: int) -> None:
        c.levels[key.level].remove(key)
        if len(c.levels[key.level]) == 0:
            del c.levels[key.level]
        key.level = level
        c.levels.setdefault(level, Level()).append(key)

    def _put(self, cluster: str, name: str, prio: int, after: float) -> bool:
        c = self.clusters.get(cluster)
        if c is None or self.shutting:
            return False
        now = self.clock()
        self._release_due()
        due = now + after if after > 0 else now
        run = self.locks.get((cluster, name))
        if run is not None:
            run.prio = max(run.prio, prio) if run.dirty or run.due is not None else prio
            if not run.dirty:
                run.dirty = due <= now
                run.due = now if run.dirty else min(due, math.inf if run.due is None else run.due)
            c.keys.setdefault(name, Key(name, state="running"))
            return True
        key = c.keys.setdefault(name, Key(name))
        if key.state == "ready":
            if prio > key.level:
                self._move(c, key, prio)
            key.prio = max(key.prio, prio)
        elif key.state == "delayed":
            key.prio = max(key.prio, prio)
            if due <= now:
                self._enqueue(c, key, now)
            else:
                key.due = min(key.due, due)
        else:
            key.prio = prio
            if due <= now:
                self._enqueue(c, key, now)
            else:
                self._delay(key, due)
        return True

    def add(self, cluster: str, key: str, priority: int = 0) -> bool:
        return self._put(cluster, key, priority, 0.0)

    def add_after(self, cluster: str, key: str, delay: float, priority: int = 0) -> bool:
        return self._put(cluster, key, priority, delay)

    def add_rate_limited(self, cluster: str, key: str, priority: int = 0) -> float:
        c = self.clusters.get(cluster)
        if c is None or self.shutting:
            return -1.0
        self._release_due()
        known = c.keys.setdefault(key, Key(key, state="running" if (cluster, key) in self.locks else "idle"))
        after = min(self.base * 2.0**known.attempts, self.max_delay)
        known.attempts += 1
        if c.rate:
            c.bucket_at = max(c.bucket_at, self.clock() - c.burst / c.rate) + 1 / c.rate
            after = max(after, c.bucket_at - self.clock())
        self._put(cluster, key, priority, after)
        return after

    def forget(self, cluster: str, key: str) -> None:
        if cluster in self.clusters and key in self.clusters[cluster].keys:
            self.clusters[cluster].keys[key].attempts = 0

    def num_requeues(self, cluster: str, key: str) -> int:
        c = self.clusters.get(cluster)
        return c.keys[key].attempts if c is not None and key in c.keys else 0

    def _raise_old(self, c: Cluster) -> None:
        now, top = self.clock(), max(c.levels)
        if now < c.scan_at:
            return
        for prio in sorted(c.levels, reverse=True)[1:]:
            level = c.levels[prio]
            if now - level.oldest <= self.max_wait:
                continue
            c.scan_at = now + self.max_wait / 64
            for start in sorted({key.start for key in level.keys}):
                for key in [key for key in level.keys if key.start == start]:
                    if now - key.since <= self.max_wait:
                        break
                    self._move(c, key, top)
            firsts = {key.start: key.since for key in reversed(level.keys)}
            level.oldest = min([now, *firsts.values()])

    def get_nowait(self) -> Item | None:
        self._release_due()
        eligible = [c for c in self.clusters.values() if c.eligible]
        if not eligible:
            return None
        for c in eligible:
            self._charge(c)
        rank = (lambda c: -max(c.levels)) if self.priority_first else (lambda _: 0)
        c = min(eligible, key=lambda c: (rank(c), c.tag, c.turn))
        self._raise_old(c)
        level = c.levels[max(c.levels)]
        key = level.take()
        if len(level) == 0:
            del c.levels[max(c.levels)]
        run = Run(key, c, self.clock(), 1 / c.weight)
        key.state = "running"
        self.locks[c.name, key.name] = run
        c.runs.append(run)
        self.vtime = max(self.vtime, c.tag)
        c.tag += run.unit
        self.turns += 1
        c.turn = self.turns
        c.served += 1
        self._settle(c)
        return Item(c.name, key.name, key.prio, key.attempts, max(self.clock() - key.since, 0.0), run)

    def done(self, item: Item) -> None:
        run = item.run
        if self.locks.get((item.cluster, item.key)) is not run:
            return
        del self.locks[item.cluster, item.key]
        now = self.clock()
        c = self.clusters.get(item.cluster)
        if not run.orphan:
            run.cluster.runs.remove(run)
            parts = run.cluster.settled.pop(id(run), 0)
            spent = max(now - run.start, 0.0) / self.work
            run.cluster.tag = max(run.cluster.tag + (spent - 1 - parts) * run.unit, 0.0)
        if c is None:
            return
        key = c.keys.get(item.key)
        if key is not None:
            key.state = "idle"
        if run.dirty or (run.due is not None and not self.shutting):
            assert key is not None and run.due is not None
            key.prio = run.prio
            if run.dirty or run.due <= now:
                self._enqueue(c, key, run.due)
            else:
                self._delay(key, run.due)
        if not run.orphan:
            self._settle(c)

    def shut_down(self) -> None:
        self.shutting = True
        for c, key in list(self._all()):
            if key.state == "delayed":
                del c.keys[key.name]
