"""What a worker says is due, while it waits for its turn on the stream: each request once, however often it was told."""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic

from reclock._durations import duration
from reclock._sources import Target
from reclock.reconciler.v1 import reconciler_pb2 as pb

BATCH = 500
"""Requests of one message: with the longest names it stays below what the service takes (1 MiB)."""
Key = tuple[str, str, str, str]
"""(cluster, namespace, name, source)."""


class Dues:
    """Bounded by the requests that there can be. Merged as the service's queue merges: higher priority, earlier time."""

    def __init__(self) -> None:
        self._waiting: dict[Key, tuple[int | None, float]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, targets: Iterable[Target]) -> None:
        """Note requests."""
        now = monotonic()
        for target in targets:
            key = (target.cluster or "", target.namespace, target.name, target.source)
            wanted = target.priority
            due = now + target.after if target.after else 0.0
            before = self._waiting.get(key)
            self._waiting[key] = (wanted, due) if before is None else (_higher(wanted, before[0]), min(due, before[1]))

    def take(self) -> pb.WorkRequest:
        """The next message's worth."""
        message = pb.Due()
        now = monotonic()
        while self._waiting and len(message.keys) < BATCH:
            key = next(iter(self._waiting))
            priority, due = self._waiting.pop(key)
            cluster, namespace, name, source = key
            made = message.keys.add(cluster=cluster, namespace=namespace, name=name, source=source)
            if priority is not None:
                made.priority = priority
            if due > now:
                made.after.CopyFrom(duration(due - now))
        return pb.WorkRequest(due=message)

    def clear(self) -> None:
        """There is no stream: all is told anew on the next one."""
        self._waiting.clear()


def _higher(one: int | None, other: int | None) -> int | None:
    """The higher priority; None is the source's own, which the service knows: taken for 0 here."""
    return one if (one or 0) >= (other or 0) else other
