"""Runs a cluster's controllers: each change names keys to look at; they are looked at soon, each once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from deploy.local.sim.controllers.owners import Owners
from deploy.local.sim.core import Core
from deploy.local.sim.deletes import NO_OPTIONS, Options, delete
from deploy.local.sim.errors import Refused
from deploy.local.sim.objects import loaded
from deploy.local.sim.store import Change, Collection, State
from deploy.local.sim.types import Object, ResourceType
from deploy.local.sim.writes import Writing, create, update

_BY_CONTROLLERS = Writing("kube-controller-manager")


class Controller:
    """One controller. `watches`: collections whose changes it hears in `keys_of`; `reconcile` brings one key up to date."""

    watches: ClassVar[tuple[str, ...]] = ()

    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self.core: Core = manager.core

    def keys_of(self, collection: Collection, change: Change) -> Iterable[str]:
        """Keys that this change concerns."""
        return (change.state.key,)

    def reconcile(self, key: str) -> None:
        raise NotImplementedError

    def rebuild(self) -> None:
        """Forgets what it remembered: the cluster's contents are others now."""

    # What controllers do.

    def type(self, plural: str) -> ResourceType:
        return self.manager.type(plural)

    def state(self, plural: str, key: str) -> State | None:
        return self.core.collection(self.type(plural)).live.get(key)

    def find(self, plural: str, key: str) -> Object | None:
        """A fresh copy of the object; None when there is none."""
        state = self.state(plural, key)
        return None if state is None else loaded(self.type(plural), state)

    def make(self, plural: str, namespace: str | None, obj: Object) -> State | None:
        """Creates an object; None when the API server refuses (the namespace is going, the name is taken)."""
        try:
            return create(self.core, self.type(plural), namespace, obj, _BY_CONTROLLERS)
        except Refused:
            return None

    def change(self, plural: str, key: str, change: Callable[[Object], Object], sub: str = "") -> None:
        """Updates an object that is there."""
        namespace, _, name = key.rpartition("/")
        update(self.core, self.type(plural), namespace or None, name, change, _BY_CONTROLLERS, sub=sub)

    def set_status(self, plural: str, key: str, status: Object) -> None:
        """Replaces the status of an object that is there; nothing is written when it is the same."""

        def change(obj: Object) -> Object:
            obj["status"] = status
            return obj

        self.change(plural, key, change, sub="status")

    def remove(self, plural: str, key: str, options: Options = NO_OPTIONS) -> None:
        """Deletes an object, if it is there."""
        namespace, _, name = key.rpartition("/")
        if self.state(plural, key) is not None:
            delete(self.core, self.type(plural), namespace or None, name, options)

    def later(self, seconds: float, key: str) -> None:
        """Looks at the key again after so many seconds."""
        self.core.timers.after(seconds, lambda: self.manager.enqueue(self, key))


class Manager:
    """A cluster's controllers and their queue. Work is done in timers, never inside the write that caused it."""

    def __init__(self, core: Core, kinds: Sequence[Callable[[Manager], Controller]]) -> None:
        self.core = core
        self.owners = Owners()
        self._types: dict[str, ResourceType] = {}
        self._queue: dict[tuple[int, str], None] = {}
        self._planned = False
        self.controllers = [kind(self) for kind in kinds]
        self._hearing: dict[str, list[tuple[int, Controller]]] = {}
        for number, controller in enumerate(self.controllers):
            for collection in controller.watches:
                self._hearing.setdefault(collection, []).append((number, controller))

    def type(self, plural: str) -> ResourceType:
        found = self._types.get(plural)
        if found is None:
            served = self.core.catalog.by_collection(plural)
            if served is None:
                raise LookupError(plural)
            found = self._types[plural] = served
        return found

    def attach(self) -> None:
        """Follows the cluster's (new) store, and looks at everything that is in it."""
        self.core.store.listeners.append(self._changed)
        self._queue.clear()
        self.owners.clear()
        for controller in self.controllers:
            controller.rebuild()
        for collection in list(self.core.store.collections.values()):
            for state in list(collection.live.values()):
                self._changed(collection, Change("ADDED", state, None))

    def enqueue(self, controller: Controller, key: str) -> None:
        """Has `reconcile(key)` called soon."""
        self._add(self.controllers.index(controller), key)

    def _add(self, number: int, key: str) -> None:
        self._queue[(number, key)] = None
        if not self._planned:
            self._planned = True
            self.core.timers.after(0, self._work)

    def _changed(self, collection: Collection, change: Change) -> None:
        self.owners.follow(collection.name, change)
        for number, controller in self._hearing.get(collection.name, ()):
            for key in controller.keys_of(collection, change):
                self._add(number, key)
        for number, controller in self._hearing.get("*", ()):
            for key in controller.keys_of(collection, change):
                self._add(number, key)

    def _work(self) -> None:
        """Takes what is queued now; what that causes comes in a turn of its own."""
        self._planned = False
        queue, self._queue = self._queue, {}
        for number, key in queue:
            self.controllers[number].reconcile(key)
