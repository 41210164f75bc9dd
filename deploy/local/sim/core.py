"""The parts of a simulated cluster that reads, writes and controllers share."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from deploy.local.sim.catalog import Catalog
from deploy.local.sim.errors import not_found
from deploy.local.sim.store import Collection, State, Store, object_key
from deploy.local.sim.timers import Timers, timestamp
from deploy.local.sim.types import ResourceType

#: Who writes when nobody says: the User-Agent's first part is the field manager of clients that name none.
UNKNOWN_MANAGER = "unknown"


@dataclass(frozen=True)
class User:
    """Who asks."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""


@dataclass(eq=False)
class Core:
    """State and sources of one cluster. Nothing here reads a wall clock or a global random source."""

    name: str
    timers: Timers
    random: random.Random
    store: Store = field(default_factory=Store)
    catalog: Catalog = field(default_factory=Catalog)
    managed_fields: bool = True
    tokens: dict[str, User] = field(default_factory=dict)
    """Bearer tokens that are known, and whose they are."""

    def collection(self, type_: ResourceType) -> Collection:
        return self.store.collection(type_.collection)

    def now(self) -> str:
        """RFC 3339, whole seconds."""
        return timestamp(self.timers.now())

    def later(self, seconds: float) -> str:
        """The time in so many seconds."""
        return timestamp(self.timers.now() + seconds)

    def find(self, type_: ResourceType, namespace: str | None, name: str) -> State | None:
        return self.collection(type_).live.get(object_key(namespace, name))

    def get(self, type_: ResourceType, namespace: str | None, name: str) -> State:
        """Raises Refused (404)."""
        found = self.find(type_, namespace, name)
        if found is None:
            raise not_found(type_.group, type_.plural, name)
        return found

    def type(self, group: str, version: str, plural: str) -> ResourceType:
        """A type that is known to be served; LookupError when it is not."""
        found = self.catalog.find(group, version, plural)
        if found is None:
            raise LookupError(f"{self.name} serves no {plural} in {group}/{version}")
        return found
