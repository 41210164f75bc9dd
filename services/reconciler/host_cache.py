"""What the host holds, followed by informers, with the look-ups that reconciles need in O(1)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial

from services.common.kube.client import KubeClient
from services.common.kube.informer import Informer
from services.reconciler.names import ON_HOST, Obj
from services.reconciler.objects import controller, deleting, name_of, propagation, uid
from services.reconciler.workload_spec import KINDS

Event = Callable[[str, str, Obj, Obj | None], None]
"""(kind, ADDED|MODIFIED|DELETED, object, old)."""

BY_NAMESPACE = ("service", "networkpolicy", "limitrange", "workload")
OWNERS = frozenset(KINDS)
REMEMBERED = 10_000
"""Propagations kept of objects that are gone; the oldest go first."""


class HostCache:
    """All host objects that the reconciler reads. Written by the informers' tasks only."""

    def __init__(self, client: KubeClient, event: Event) -> None:
        self.client = client
        self._event = event
        self.informers = {
            kind: Informer(client, resource, handler=partial(self._handle, kind))
            for kind, resource in ON_HOST.items()
        }
        self._names: dict[str, dict[str, dict[str, Obj]]] = {
            kind: defaultdict(dict) for kind in BY_NAMESPACE
        }
        self._children: dict[str, set[tuple[str, str]]] = defaultdict(set)
        self._propagation: dict[str, str] = {}

    def missing(self) -> str | None:
        """What has not been read yet."""
        waiting = [kind for kind, informer in self.informers.items() if not informer.synced.is_set()]
        if not waiting:
            return None
        reason = next((self.informers[k].last_error for k in waiting if self.informers[k].last_error), "")
        return f"not read from the host yet: {', '.join(waiting)}" + (f" ({reason})" if reason else "")

    def get(self, kind: str, namespace: str, name: str) -> Obj | None:
        """The object as last seen."""
        return self.informers[kind].store.get((namespace, name))

    def all(self, kind: str) -> Iterable[Obj]:
        """A snapshot of all objects of a kind."""
        return list(self.informers[kind].store.values())

    def in_namespace(self, kind: str, namespace: str) -> Iterable[Obj]:
        """Services, NetworkPolicies, LimitRanges or Workloads of a namespace."""
        return list(self._names[kind].get(namespace, {}).values())

    def children(self, owner_uid: str) -> list[Obj]:
        """ReplicaSets that this Deployment controls."""
        found = (self.get("replicaset", *key) for key in self._children.get(owner_uid, ()))
        return [obj for obj in found if obj is not None]

    def propagation(self, wanted: str) -> str | None:
        """How the object of that uid was deleted, as far as its events said; None when none was seen."""
        return self._propagation.get(wanted)

    def _handle(self, kind: str, event: str, obj: Obj, old: Obj | None) -> None:
        namespace, name = name_of(obj)
        if kind in self._names:
            names = self._names[kind][namespace]
            if event == "DELETED":
                names.pop(name, None)
                if not names:
                    del self._names[kind][namespace]
            else:
                names[name] = obj
        if kind == "replicaset":
            self._link(event, obj, old)
        if kind in OWNERS:
            self._note(obj)
        self._event(kind, event, obj, old)

    def _link(self, event: str, obj: Obj, old: Obj | None) -> None:
        before = controller(old) if old is not None else None
        after = controller(obj)
        for reference in (before, after):
            if reference is not None:
                children = self._children[reference["uid"]]
                children.discard(name_of(obj))
                if not children:
                    del self._children[reference["uid"]]
        if event != "DELETED" and after is not None:
            self._children[after["uid"]].add(name_of(obj))

    def _note(self, obj: Obj) -> None:
        """Keep how it is deleted: the finalizers that say so may be gone at the next event."""
        key = uid(obj)
        if deleting(obj):
            said = propagation(obj)
            if said != "Background" or key not in self._propagation:
                self._propagation[key] = said
            while len(self._propagation) > REMEMBERED:
                del self._propagation[next(iter(self._propagation))]
