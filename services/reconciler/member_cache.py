"""What one member holds of ours, followed by informers restricted to this fleet's origin label."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial

from services.common.fleet import Member
from services.common.kube import identity
from services.common.kube.client import KubeClient
from services.common.kube.informer import Informer
from services.common.tasks import Tasks
from services.reconciler.names import COPIED, ON_MEMBERS, ORIGIN, Obj
from services.reconciler.objects import count, host_uid, name_of, replicas, uid
from services.reconciler.owned import OwnedObjects

Event = Callable[["MemberCache", str, str, Obj, Obj | None], None]
CopyKey = tuple[str, str, str]
"""(kind, namespace, name)."""

IDENTITY_HOLDS = 1.0
"""Seconds for which it is known which cluster answers, where no more hangs on it than tidiness."""
WRITE_SEEN_WITHIN = 30.0
"""Seconds after which a write whose event never came is no longer counted as running."""
WRITES_MAX = 1000
"""Writes that are remembered before those of long ago are dropped."""


class MemberCache:
    """Copies on one member; informers write it, reconciles read it.

    Objects stay as last seen while the member is away: a lost member's counts stand until it is given up.
    """

    def __init__(self, member: Member, fleet_id: str, event: Event, tasks: Tasks) -> None:
        self.member = member
        self.name = member.name
        self.fleet_id = fleet_id
        self._event = event
        self._tasks = tasks
        self._by_host: dict[str, set[CopyKey]] = defaultdict(set)
        self._by_namespace: dict[str, set[CopyKey]] = defaultdict(set)
        """Copies of workloads, without what they need."""
        self.fingerprints: dict[str, bytes] = {}
        """Uid of a copy -> its content right after our own write."""
        self.namespaces: set[str] = set()
        """Namespaces known to be there, ours or not."""
        self._writing: dict[CopyKey, tuple[int, float]] = {}
        self._making: dict[str, float] = {}
        """Host uid of a copy that was sent and not seen yet -> until when it may be there (inf: it is on its way)."""
        self._identified = float("-inf")
        self.owned: OwnedObjects | None = None
        selector = f"{ORIGIN}={fleet_id}"
        self.informers = {
            kind: Informer(
                self.client, resource, label_selector=selector, handler=partial(self._handle, kind), absent_is_empty=True,
                check=partial(self.identify, IDENTITY_HOLDS),
            )
            for kind, resource in ON_MEMBERS.items()
        }  # fmt: skip

    @property
    def client(self) -> KubeClient:
        return self.member.client

    @property
    def reachable(self) -> bool:
        return self.member.reachable

    @property
    def synced(self) -> bool:
        """Whether all of it was read at least once."""
        return all(informer.synced.is_set() for informer in self.informers.values())

    async def identify(self, holds: float = 0.0) -> None:
        """MemberUnreachable unless this very cluster answers; `holds`: seconds for which an earlier answer counts.

        Another one may have its address before discovery has noticed: what is made there in its place, or what is not
        found there, would say nothing about what runs here.
        """
        asked = time.monotonic()
        if asked >= self._identified + holds:
            await identity.expect(self.client, self.member.uid)
            self._identified = asked

    def get(self, kind: str, namespace: str, name: str) -> Obj | None:
        """The copy as last seen."""
        return self.informers[kind].store.get((namespace, name))

    def of_host(self, wanted: str) -> list[CopyKey]:
        """Keys of the copies that stand for the host object of that uid."""
        return list(self._by_host.get(wanted, ()))

    def workloads(self, namespace: str = "") -> list[CopyKey]:
        """Keys of the workloads' copies in a namespace, in all when "". O(those)."""
        if namespace:
            return list(self._by_namespace.get(namespace, ()))
        return [key for keys in self._by_namespace.values() for key in keys]

    def copies(self, kind: str) -> list[Obj]:
        """A snapshot of all copies of a kind."""
        return list(self.informers[kind].store.values())

    def count(self) -> int:
        """How many objects of ours are there."""
        return sum(len(informer.store) for informer in self.informers.values())

    def used(self, key: CopyKey, wanted: str) -> int:
        """Replicas that the copy of that host uid has or may still make."""
        copy = self.get(*key)
        seen = 0
        if copy is not None and host_uid(copy) == wanted:
            seen = max(replicas(copy), count(copy.get("status") or {}, "replicas"))
        wrote, until = self._writing.get(key, (0, 0.0))
        return max(seen, wrote) if time.monotonic() < until else seen

    def writes(self, key: CopyKey, number: int) -> None:
        """Note, before it is sent, that a copy is written with so many replicas."""
        now = time.monotonic()
        if len(self._writing) >= WRITES_MAX:
            # Those whose events never came: the member refused them.
            self._writing = {known: entry for known, entry in self._writing.items() if entry[1] > now}
        self._writing[key] = (number, now + WRITE_SEEN_WITHIN)

    def makes(self, owner: str) -> None:
        """Note, before it is sent, that the copy of that host uid is made: from now on it may be there."""
        self._making[owner] = float("inf")

    def made(self, owner: str, *, seen: bool) -> None:
        """The call has ended. `seen`: it is known what came of it; else its event tells, if there ever is one."""
        self._making.pop(owner, None)
        if not seen:
            self._making[owner] = time.monotonic() + WRITE_SEEN_WITHIN

    def may_have(self, wanted: str) -> bool:
        """Whether the member has a copy of that host uid, or one that was sent and not seen yet."""
        if self._by_host.get(wanted):
            return True
        until = self._making.get(wanted)
        if until is None:
            return False
        now = time.monotonic()
        if not self.reachable and until < float("inf"):
            self._making[wanted] = now + WRITE_SEEN_WITHIN  # its event cannot come now
        elif now >= until:
            del self._making[wanted]
            return False
        return True

    def _handle(self, kind: str, event: str, obj: Obj, old: Obj | None) -> None:
        key: CopyKey = (kind, *name_of(obj))
        owner = host_uid(obj)
        if self._making.get(owner, float("inf")) < float("inf"):
            del self._making[owner]
        if old is not None and host_uid(old) != owner:
            _drop(self._by_host, host_uid(old), key)
        if kind in COPIED and event == "DELETED":
            _drop(self._by_namespace, key[1], key)
        elif kind in COPIED:
            self._by_namespace[key[1]].add(key)
        if event == "DELETED":
            _drop(self._by_host, owner, key)
            self.fingerprints.pop(uid(obj), None)
            if kind == "namespace":
                self.namespaces.discard(obj["metadata"]["name"])
        else:
            self._by_host[owner].add(key)
        if key in self._writing and event != "DELETED" and replicas(obj) == self._writing[key][0]:
            del self._writing[key]
        self._event(self, kind, event, obj, old)

    def start(self) -> None:
        """Follow the member."""
        for kind, informer in self.informers.items():
            self._tasks.spawn(informer.run(), f"member {self.name} {kind}", root=True)


def _drop(index: dict[str, set[CopyKey]], name: str, key: CopyKey) -> None:
    keys = index.get(name)
    if keys is not None:
        keys.discard(key)
        if not keys:
            del index[name]
