"""One history: members, etcd, replicas and clients in virtual time, moved by named actions with small numbers.

The same seed and the same actions give the same history. `finish` heals everything and returns what was recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from typing import Any

from deploy.local.sim import World as Clusters
from services.aggregator.clock.position import split_incarnation
from services.aggregator.clock.store import BASE_LAYOUT
from services.aggregator.clock.varint import Writer as Encoder
from services.aggregator.reads import fanout
from services.common.etcd import op_put
from tests.proof.history import Counter, History, Key, Measure, Run
from tests.proof.virtual.actions import Actions
from tests.proof.virtual.blur import Blur
from tests.proof.virtual.clients import COUNT, MANNERS, Informer, Looker, Writer
from tests.proof.virtual.etcd import EtcdStore
from tests.proof.virtual.loop import VirtualLoop
from tests.proof.virtual.members import NAMESPACE, PODS, Site
from tests.proof.virtual.process import FLEET, PREFIX, Replica
from tests.proof.virtual.wire import BUFFER

BASE = 1_796_050_000_000
WINDOW = 120.0
MOST_HELD = BUFFER + 128 * 1024
"""Bytes that may wait for one client: what is on its way, and what is made ahead."""
FEATURES = ("clash", "gaps", "restore", "membership", "etcd", "kills", "slow")
QUIET = 90.0


class World(Actions):
    """`act` does one thing, `finish` ends it."""

    def __init__(self, seed: int, features: frozenset[str] | None = None, **sizes: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.features = features if features is not None else _features(self.random)
        self.loop = VirtualLoop()
        self.trace: list[str] = []
        self.steps = 0
        self.sizes = sizes
        self.ring = (0, 4_000, 1 << 20)[seed % 3]
        """Bytes of events that a replica keeps for clients that are slower than others of their kind."""
        self.garbage: list[asyncio.Task[Any]] = []
        with self.running():
            self.loop.run_until_complete(self._begin())

    # Time.

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """While the loop runs, the process' clocks are its time and its dice are the seed's."""
        real, mono = time.time, time.monotonic
        slice_, ring = fanout.SLICE, fanout.RING
        time.time = lambda: BASE / 1000 + self.loop.now  # type: ignore[assignment]
        time.monotonic = self.loop.time  # type: ignore[assignment]
        fanout.SLICE, fanout.RING = -1.0, self.ring  # other work has its turn between any two writes
        state = random.getstate()
        random.seed(f"{self.seed}/{self.steps}")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
            random.setstate(state)
            time.time, time.monotonic = real, mono  # type: ignore[assignment]
            fanout.SLICE, fanout.RING = slice_, ring

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        with self.running():
            return self.loop.run_until_complete(work)

    # Begin.

    async def _begin(self) -> None:
        pick = self.random
        clusters = Clusters(self.seed, now=self.loop.time)
        self.store = EtcdStore(self.loop)
        out = Encoder(BASE_LAYOUT)
        out.number(BASE)
        out.text(FLEET)
        self.store.put(op_put(f"{PREFIX}base".encode(), out.done()).request_put)
        self.host = Site(clusters, "host")
        count = self.sizes.get("members") or pick.choice((2, 2, 3))
        self.sites = [Site(clusters, name) for name in ("east", "west", "north")[:count]]
        for site in self.sites:
            site.drips = pick.random() < 0.4
            site.tick(pick.randrange(100))
        self.engaged = list(self.sites)
        # Four is the least: the end of a shown object, the next of its key, and both positions.
        ops = self.sizes.get("ops") or pick.choice((4, 4, 5, 8, 128))
        self.names = "ab" if pick.random() < 0.5 else "abcde"
        self.blur = Blur(self)
        self.marks: list[tuple[float, int]] = []
        if "clash" in self.features:
            for site in self.sites:
                site.record.returns = True
        self.sites[0].put("count", "a")
        number = self.sizes.get("replicas") or pick.choice((1, 2, 2, 3))
        self.replicas = [
            Replica(
                f"r{at}", self.store, self.host, random.Random(f"{self.seed}/{at}"), window_seconds=WINDOW,
                window_revisions=1_000_000, max_ops=ops,
            )
            for at in range(number)
        ]  # fmt: skip
        for one in self.replicas:
            one.start(self.engaged)
        self.informers = [
            Informer(f"informer {at} {manner.name}", manner, self.replicas, self.seed * 100 + at)
            for at, manner in enumerate(self._manners())
        ]
        for one in self.informers:
            one.gaps = self.store.gap_changes
        self.looker = Looker("looker", "all", self.replicas, self.seed + 1)
        self.writers = [Writer(f"writer{at}", self.replicas, self.seed + 2 + at) for at in range(2)]
        self.busy: dict[str, asyncio.Task[Any]] = {}
        self.tasks = [asyncio.create_task(one.run(), name=one.history.client) for one in self.informers]
        await asyncio.sleep(0.5)

    def _manners(self) -> list[Any]:
        most = self.sizes.get("informers") or 5
        # Two of the plainest always: what one was told the other must have been told too.
        return [MANNERS[0], MANNERS[self.random.randrange(4)], *self.random.sample(MANNERS[1:], most - 2)]

    # Steps.

    def act(self, name: str, a: int = 0, b: int = 0, c: int = 0) -> None:
        """One action, then a moment."""
        self.steps += 1
        self.trace.append(f"{name} {a} {b} {c}")
        self.run(self._act(name, a, b, c))

    async def _act(self, name: str, a: int, b: int, c: int) -> None:
        await getattr(self, f"do_{name}")(a, b)
        self._failures()
        if self.steps % 10 == 0:
            self.marks.append((self.loop.now, self.store.revision))
        await asyncio.sleep((0.0, 0.001, 0.004, 0.02, 0.1, 0.6, 3.0)[c % 7])
        self._failures()

    def _failures(self) -> None:
        for replica in self.replicas:
            if replica.bugs:
                raise replica.bugs[0]
        for task in [*self.tasks, *(one for one in self.busy.values() if one.done())]:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    # End.

    def finish(self) -> Run:
        """Heal all, wait until nothing happens any more, and return the records."""
        return self.run(self._finish())

    async def _finish(self) -> Run:
        await self.heal()
        await asyncio.gather(*self.busy.values())
        deadline = self.loop.now + QUIET
        why = ""
        while (why := self._unsettled()) and self.loop.now < deadline:  # noqa: ASYNC110 - time is virtual
            await asyncio.sleep(0.1)
        if not why:
            await asyncio.sleep(1.5)
        self._failures()
        run = self._recorded()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for one in self.replicas:
            if one.up:
                self.garbage.append(one.stop())
        await asyncio.gather(*self.garbage)
        return run

    def close(self) -> None:
        """After a failure: let go of all tasks."""
        self.run(self._drop())
        self.loop.close()

    async def _drop(self) -> None:
        while left := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    def _unsettled(self) -> str:
        """What is to be waited for; "" when all is at rest."""
        clocks = [one.pods for one in self.replicas if one.up]
        if sum(bool(one.term) for one in clocks) != 1:
            return "nobody leads"
        for clock in clocks:
            if clock.state.gaps:
                return "gaps are open"
            if clock.state.head < max(one.state.head for one in clocks) - (5 << 7):
                return "a follower lags"
            have = {(one.cluster, one.namespace, one.name): one.uid for one in clock.iter_markers()}
            want = {(site.name, *key): uid for site in self.engaged for key, (uid, _) in site.live.items()}
            if have != want:
                return f"markers are not what the members have: {have} {want}"
        if any(one.owes for one in self.replicas):
            return "something newer than was told is to come"
        wanted = self.wanted()
        for one in self.informers:
            held = {key: (seen.uid, seen.stamp) for key, seen in one.held.items()}
            if not one.version or held != wanted[one.manner.scope]:
                return f"{one.history.client} has {held}, not {wanted[one.manner.scope]}"
        return ""

    def wanted(self) -> dict[str, dict[Key, tuple[str, str]]]:
        """What each scope shows in the end: the model of the fleet, merged."""
        clock = self._any().pods
        out: dict[str, dict[Key, tuple[str, str]]] = {one.manner.scope: {} for one in self.informers}
        out["all"] = {}
        for site in self.engaged:
            for obj in site.cluster.objects(PODS):
                meta = obj["metadata"]
                key = (meta["namespace"], meta["name"])
                rivals = [one.name for one in self.engaged if key in one.live]
                shown = clock.shown(*key) if len(rivals) > 1 else None
                if shown is not None and shown.cluster != site.name:
                    continue
                for scope in out:
                    if _selects(scope, obj):
                        out[scope][key] = site.live[key]
        return out

    def _any(self) -> Replica:
        """A replica that is up; at rest all have one log."""
        return next(one for one in sorted(self.replicas, key=lambda one: not one.leads) if one.up)

    def _recorded(self) -> Run:
        histories = [one.history for one in (*self.informers, self.looker, *self.writers)]
        final = {} if "count" not in {key[1] for key in self.sites[0].live} else {"count": self._count()}
        counters = [
            Counter((NAMESPACE, "count"), 0, final["count"], {one.history.client: tuple(one.won) for one in self.writers},
                    sum(one.unknown for one in self.writers))
        ] if final and self.sites[0].lives == 1 else []  # fmt: skip
        self._note_lives()
        measures = [Measure(f"bytes kept for {one.history.client}", one.most, MOST_HELD) for one in self.informers]
        return Run(
            [replace(one) for one in histories], [site.record for site in self.sites], self.wanted(), counters,
            gaps=self.store.gap_changes() > 0,
            window=20.0, measures=measures,
        )  # fmt: skip

    def _note_lives(self) -> None:
        """A diff that was broken off counts as another life: all objects of it have changed then."""
        state = self._any().pods.state
        for site in self.sites:
            position = state.positions.get(site.name)
            if position is None or split_incarnation(position.incarnation)[1]:
                site.record.returns = True

    def _count(self) -> int:
        obj = self.sites[0].cluster.get(PODS, NAMESPACE, "count")
        return int(obj["metadata"]["annotations"].get(COUNT, "0"))

    def histories(self) -> list[History]:
        return [one.history for one in (*self.informers, self.looker, *self.writers)]


def _selects(scope: str, obj: dict[str, Any]) -> bool:
    if scope == "all":
        return True
    field, _, value = scope.partition("=")
    if field == "group":
        return bool(obj["metadata"]["labels"].get("group") == value)
    if field == "metadata.name":
        return bool(obj["metadata"]["name"] == value)
    return bool(obj.get("status", {}).get("phase") == value)


def _features(pick: random.Random) -> frozenset[str]:
    """Some of all, so that some histories are judged by the strictest rules."""
    if pick.random() < 0.25:
        return frozenset(one for one in ("etcd", "kills", "slow") if pick.random() < 0.7)
    return frozenset(one for one in FEATURES if pick.random() < 0.5)
