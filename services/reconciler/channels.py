"""From the caches to the queues of the reconcile protocol: what is due is told over the worker's stream."""

from __future__ import annotations

from collections.abc import Mapping

from reclock import Controller, Request, Target, Worker
from services.reconciler import keys
from services.reconciler.keys import Key

OWNED = "owned"
"""The one source whose kinds are many: a resource each."""


class Channels:
    """The `Queue` of reconciles and of the router.

    While there is no worker nothing is kept: it tells all that is due when it has come, and of each cluster that comes.
    """

    def __init__(self) -> None:
        self.worker: Worker | None = None
        self.controllers: Mapping[str, Controller] = {}
        """Source -> whose requests its keys are."""

    def add(self, cluster: str, key: str, priority: int = 0) -> None:
        """It is due."""
        self.add_after(cluster, key, 0.0, priority)

    def add_after(self, cluster: str, key: str, delay: float, priority: int = 0) -> None:
        """It is due in `delay` seconds."""
        if self.worker is not None:
            made = target(cluster, keys.parse(key), priority, delay)
            self.worker.tell(self.controllers[made.source], made)


def target(cluster: str, key: Key, priority: int | None = None, after: float = 0.0) -> Target:
    """A key as a request: the kind is its source, what stands behind the kind's slash goes before the name."""
    source, _, more = key.kind.partition("/")
    name = f"{more}:{key.name}" if more else key.name
    return Target(name, key.namespace, cluster, source, priority, after)


def key_of(request: Request) -> Key:
    """The inverse of `target`."""
    if request.source == OWNED:
        resource, _, name = request.name.partition(":")
        return Key(f"{OWNED}/{resource}", request.namespace, name)
    return Key(request.source, request.namespace, request.name)
