"""Traces from the event that made a request to its Done; nothing is kept where traces are off."""

from __future__ import annotations

import time
from typing import NamedTuple

from opentelemetry.context import Context

from services.common import telemetry
from services.reconciler.work.mapping import Target

KEPT = 100_000
"""Requests whose context is kept; the oldest go first."""


class Trace(NamedTuple):
    """W3C context of a request's event, and when the request was handed out (ns since the epoch)."""

    parent: str
    began: int


NO_TRACE = Trace("", 0)


class Traces:
    """Target -> `traceparent` of the last event that made it due."""

    def __init__(self) -> None:
        self._parents: dict[Target, str] = {}

    def note(self, target: Target) -> None:
        """An event made a request due."""
        if not telemetry.enabled():
            return
        headers: dict[str, str] = {}
        # A root: what runs here is a watch, or a worker's stream, with a span that lasts and has all its events in it.
        with telemetry.span("event", parent=Context(), cluster=target.cluster, namespace=target.namespace, object=target.name):
            telemetry.inject(headers)
        self._parents.pop(target, None)
        self._parents[target] = headers.get("traceparent", "")
        while len(self._parents) > KEPT:
            del self._parents[next(iter(self._parents))]

    def take(self, target: Target) -> Trace:
        """The context of a request that is handed out now."""
        if not telemetry.enabled():
            return NO_TRACE
        return Trace(self._parents.pop(target, ""), time.time_ns())

    def end(self, target: Target, trace: Trace, outcome: str) -> None:
        """The request's lease has ended: a span from its handing out until now."""
        if not trace.began or not telemetry.enabled():
            return
        span = telemetry.tracer().start_span(
            "request", context=telemetry.extract({"traceparent": trace.parent}), start_time=trace.began,
            attributes={
                "cluster": target.cluster, "namespace": target.namespace, "object": target.name, "outcome": outcome,
            },
        )  # fmt: skip
        span.end()

    def drop(self, cluster: str) -> None:
        """Forget a cluster."""
        for target in [target for target in self._parents if target.cluster == cluster]:
            del self._parents[target]
