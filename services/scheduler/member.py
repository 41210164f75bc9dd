"""One member as the worker role sees it: its nodes, its pods and the reservations on them.

Pure state: informers feed it, the admission service asks it. All calls are synchronous, so a reservation is
checked and taken without another one in between.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from services.common.kube.times import parse_time
from services.scheduler.capacity import Allocation, Capacity, Refusal
from services.scheduler.ledger import Ledger, OwnerKey, Reservation, make_shares
from services.scheduler.shape import Shape, pod_shape
from services.scheduler.verdict import CAPACITY, Verdict

log = logging.getLogger(__name__)

TERMINAL = ("Succeeded", "Failed")
HASH_LABEL = "pod-template-hash"
FITS_LIMIT = 1_000_000
PodSets = Sequence[tuple[Shape, int]]


@dataclass(frozen=True, slots=True)
class Ask:
    """What a workload wants of one member."""

    id: str
    attempt: int
    owner: OwnerKey
    pod_sets: PodSets
    partial: bool = False
    at_most_once: bool = False
    placed: bool = False
    """True: the stored placement, told again; it is held whatever is free."""
    fleet_id: str = ""
    """Of the fleet that asks, where it says so."""

    @property
    def count(self) -> int:
        """Pods asked for."""
        return sum(count for _, count in self.pod_sets)


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether it is held, for how many pods, and what the filters say."""

    admitted: bool
    verdict: Verdict
    count: int = 0


@dataclass(slots=True)
class _Pod:
    """What is remembered of a pod: a few words instead of its manifest."""

    shape: Shape
    owner: OwnerKey
    node: str
    guess: Allocation
    created: datetime | None


@dataclass(frozen=True, slots=True)
class Stuck:
    """Pods of one owner that wait for a node: how many, and since when the oldest does."""

    count: int
    since: datetime


class MemberState:
    """Nodes, pods and reservations of `cluster`; `on_change(freed)` is called after each change."""

    def __init__(self, cluster: str, on_change: Callable[[bool], None] | None = None) -> None:
        self.cluster = cluster
        self.capacity = Capacity()
        self.ledger = Ledger(self.capacity)
        self.on_change = on_change
        self._pods: dict[str, _Pod] = {}
        self._unassigned: dict[OwnerKey, set[str]] = {}

    def _changed(self, freed: bool) -> None:
        if self.on_change is not None:
            self.on_change(freed)

    def upsert_node(self, obj: Mapping[str, Any]) -> None:
        """A node came or changed."""
        if self.capacity.upsert_node(obj):
            self.ledger.rebalance_all()
            self._changed(True)

    def remove_node(self, name: str) -> None:
        """A node went."""
        if self.capacity.remove_node(name) is not None:
            self.ledger.rebalance_all()
            self._changed(False)

    def upsert_pod(self, obj: Mapping[str, Any]) -> None:
        """A pod came or changed; one that ended uses nothing."""
        uid = obj["metadata"]["uid"]
        phase = (obj.get("status") or {}).get("phase")
        if phase in TERMINAL:
            self.remove_pod(uid)
            return
        node = (obj.get("spec") or {}).get("nodeName") or ""
        known = self._pods.get(uid)
        shape = self._shape(obj)
        if shape is None:
            return
        if known is None:
            self._add_pod(uid, obj, node, shape)
        elif node and not known.node:
            self.capacity.give_back(known.shape, known.guess, 1)
            known.node = node
            self._assigned(uid, known.owner)
            self.capacity.use(node, known.shape)
            self._changed(False)
        elif known.node and shape.requests != known.shape.requests:
            # Resized in place: nobody makes it anew.
            self.capacity.use(known.node, known.shape, -1)
            self.capacity.use(known.node, shape)
            known.shape = shape
            self._changed(True)

    def _shape(self, obj: Mapping[str, Any]) -> Shape | None:
        try:
            return pod_shape(obj.get("spec") or {}, obj.get("status"))
        except ValueError as error:
            log.warning("%s: pod %s is not counted: %s", self.cluster, obj["metadata"].get("name"), error)
            return None

    def _add_pod(self, uid: str, obj: Mapping[str, Any], node: str, shape: Shape) -> None:
        created = parse_time(obj["metadata"].get("creationTimestamp"))
        pod = _Pod(shape, owner_of(obj["metadata"]), node, [], created)
        self._pods[uid] = pod
        self.ledger.pod_came(pod.owner, node)
        if node:
            self.capacity.use(node, shape)
        else:
            # A pod that waits for a node needs room too, wherever its scheduler will put it.
            pod.guess = self.capacity.hold(shape, 1)
            self._unassigned.setdefault(pod.owner, set()).add(uid)
        self._changed(False)

    def _assigned(self, uid: str, owner: OwnerKey) -> None:
        """A pod waits for a node no longer."""
        waiting = self._unassigned.get(owner)
        if waiting is not None:
            waiting.discard(uid)
            if not waiting:
                del self._unassigned[owner]

    def stuck(self) -> dict[str, Stuck]:
        """Confirmed reservations whose pods wait for a node, by id. O(owners with such pods)."""
        found = {}
        for owner, uids in self._unassigned.items():
            times = [created for uid in uids if (created := self._pods[uid].created) is not None]
            for id_ in self.ledger.ids_of(owner) if times else ():
                found[id_] = Stuck(len(uids), min(times))
        return found

    def remove_pod(self, uid: str) -> None:
        """A pod ended or went."""
        pod = self._pods.pop(uid, None)
        if pod is None:
            return
        if pod.node:
            self.capacity.use(pod.node, pod.shape, -1)
        else:
            self.capacity.give_back(pod.shape, pod.guess, 1)
            self._assigned(uid, pod.owner)
        self.ledger.pod_went(pod.owner)
        self._changed(True)

    def evaluate(self, pod_sets: PodSets) -> Verdict:
        """Run the filters without holding anything; `fits` counts whole sets of pods that have room now."""
        wanted = [(shape, count) for shape, count in pod_sets if count > 0] or [(s, 1) for s, _ in pod_sets[:1]]
        fits = [self.capacity.fits(shape, FITS_LIMIT) for shape, _ in wanted]
        score = self.score(wanted)
        for (shape, count), room in zip(wanted, fits, strict=True):
            if room < count:
                return self._refused(shape, count, room)
        return Verdict(self.cluster, score=score, fits=min(fits, default=FITS_LIMIT), message=self._room(fits))

    def _room(self, fits: Sequence[int]) -> str:
        return f"room for {min(fits)} such pods now" if fits else "needs no room"

    def _refused(self, shape: Shape, count: int, room: int) -> Verdict:
        if room:
            text = f"asks for {count} pods, room for {room} now"
            asked = {name: amount * count for name, amount in shape.requests}
            free = {name: max(self.capacity.free.get(name, 0), 0) for name in asked}
            return Verdict(self.cluster, CAPACITY, text, asked, free, self.score([(shape, count)]), room)
        why: Refusal = self.capacity.refusal(shape)
        return Verdict(self.cluster, why.filter, why.message, why.asked, why.free)

    def score(self, pod_sets: Iterable[tuple[Shape, int]]) -> float:
        """0 to 100: the part of cpu, memory and pods that stays free once the pods run there."""
        asked: dict[str, int] = {}
        for shape, count in pod_sets:
            for name, amount in shape.requests:
                asked[name] = asked.get(name, 0) + amount * count
        return score(self.capacity.free, self.capacity.allocatable, asked)

    def reserve(self, ask: Ask, now: float, ttl: float) -> Answer:
        """Hold room for `ask` until `now + ttl`; all of it, or what fits when it may be partial.

        A reservation of the same id is replaced; one of a later attempt refuses the call.
        """
        held = self.ledger.get(ask.id)
        if held is not None and held.attempt > ask.attempt:
            text = f"attempt {ask.attempt} is over: attempt {held.attempt} is held"
            return Answer(False, Verdict(self.cluster, "Attempt", text))
        confirmed = ask.placed or (held is not None and held.confirmed and held.attempt == ask.attempt)
        fresh = Reservation(ask.id, ask.attempt, ask.owner, make_shares(ask.pod_sets), now + ttl, confirmed)
        room = self.ledger.put(fresh)
        verdict = self._after_reserve(ask, fresh, room)
        admitted = room == ask.count or ask.placed or (ask.partial and verdict.may_wait)
        if not admitted:
            self.ledger.drop(ask.id)
            if held is not None and held.confirmed:
                # What runs there keeps its room: a refused growth takes nothing away.
                self.ledger.put(held)
            return Answer(False, verdict, 0)
        self._changed(False)
        return Answer(True, verdict, room)

    def _after_reserve(self, ask: Ask, fresh: Reservation, room: int) -> Verdict:
        if room == ask.count:
            return Verdict(self.cluster, score=self.score(()), fits=room)
        short = next(s for s in fresh.shares if s.held < s.count)
        return self._refused(short.shape, short.count, short.held)

    def confirm(self, id_: str, attempt: int) -> bool:
        """Keep a reservation from now on; False when there is none of this attempt."""
        held = self.ledger.get(id_)
        if held is None or held.attempt != attempt:
            return False
        held.confirmed = True
        return True

    def release(self, id_: str, attempt: int = 0) -> bool:
        """Give a reservation back; one of a later attempt stays."""
        held = self.ledger.get(id_)
        if held is None or (attempt and held.attempt > attempt):
            return False
        self.ledger.drop(id_)
        self._changed(True)
        return True

    def resync(self, asks: Iterable[Ask]) -> None:
        """Take the manager's word for everything that is placed here."""
        self.ledger.resync(
            Reservation(ask.id, ask.attempt, ask.owner, make_shares(ask.pod_sets), 0.0, confirmed=True)
            for ask in asks
        )
        self._changed(True)

    def expire(self, now: float) -> None:
        """Drop what was neither renewed nor confirmed."""
        over = self.ledger.expire(now)
        if over:
            log.info("%s: %d reservations ended unconfirmed", self.cluster, len(over))
            self._changed(True)


def score(free: Mapping[str, int], allocatable: Mapping[str, int], asked: Mapping[str, int]) -> float:
    """0 to 100: mean free part of cpu, memory and pods after `asked` is taken; 0 without any node."""
    total, kinds = 0.0, 0
    for name in ("cpu", "memory", "pods"):
        size = allocatable.get(name, 0)
        if size > 0:
            total += (free.get(name, 0) - asked.get(name, 0)) / size
            kinds += 1
    return max(0.0, 100.0 * total / kinds) if kinds else 0.0


def owner_of(metadata: Mapping[str, Any]) -> OwnerKey:
    """Whose pod it is: its controller's, a Deployment instead of its ReplicaSet, else its own."""
    namespace = metadata.get("namespace") or ""
    for reference in metadata.get("ownerReferences") or ():
        if not reference.get("controller"):
            continue
        kind, name = reference.get("kind", ""), reference.get("name", "")
        suffix = (metadata.get("labels") or {}).get(HASH_LABEL)
        if kind == "ReplicaSet" and suffix and name.endswith(f"-{suffix}"):
            return OwnerKey(namespace, "Deployment", name[: -len(suffix) - 1])
        return OwnerKey(namespace, kind, name)
    return OwnerKey(namespace, "Pod", metadata.get("name") or "")
