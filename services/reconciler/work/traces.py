"""Trace context from the event that made a request to the request; nothing is kept where traces are off."""

from __future__ import annotations

from services.common import telemetry
from services.reconciler.work.mapping import Target

KEPT = 100_000
"""Requests whose context is kept; the oldest go first."""


class Traces:
    """Target -> `traceparent` of the last event that made it due."""

    def __init__(self) -> None:
        self._parents: dict[Target, str] = {}

    def note(self, target: Target) -> None:
        """An event made a request due."""
        if not telemetry.enabled():
            return
        headers: dict[str, str] = {}
        with telemetry.span("event", cluster=target.cluster, namespace=target.namespace, object=target.name):
            telemetry.inject(headers)
        self._parents.pop(target, None)
        self._parents[target] = headers.get("traceparent", "")
        while len(self._parents) > KEPT:
            del self._parents[next(iter(self._parents))]

    def take(self, target: Target) -> str:
        """The context of a request that is handed out now."""
        return self._parents.pop(target, "") if self._parents else ""

    def drop(self, cluster: str) -> None:
        """Forget a cluster."""
        for target in [target for target in self._parents if target.cluster == cluster]:
            del self._parents[target]
