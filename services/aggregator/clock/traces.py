"""Traces of single events, from a member's feed to the clients: spans `event` over `queue`, `commit`, `log`, `deliver`.

Which events are traced, and under which ids, follows from the object's uid and version: replicas that share nothing but
the log add to one trace. The sequencer's tells of the way into the log, each tells of its own clients. Where traces
are off an event costs one look-up in an empty dict.
"""

from __future__ import annotations

import hashlib
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from _fastpath.marker import Marker
from services.common import telemetry

ARRIVED_MAX = 1024
"""Events that have arrived and are not in the log yet; the oldest are traced no more."""
OPEN_MAX = 256
"""Entries of the log whose deliveries are noted: the newest."""
DELIVERIES_MAX = 16
"""Deliveries of one entry that have a span; thousands of watchers may have it."""


@dataclass(slots=True)
class Traced:
    """An entry of the log whose way to clients is noted."""

    parent: Context
    logged: int
    """ns since the epoch"""
    deliveries: int = 0


def is_chosen(marker: Marker, ratio: float) -> bool:
    """Is this event traced? The same on every replica, and what a sampler by the trace's id finds."""
    return zlib.crc32(f"{marker.uid}/{marker.version}".encode()) < ratio * 2**32


def ids_of(marker: Marker) -> tuple[int, int]:
    """(trace id, id of its root): the lower half of the first begins with what `is_chosen` looks at."""
    text = f"{marker.uid}/{marker.version}".encode()
    digest = hashlib.blake2b(text, digest_size=20).digest()
    low = zlib.crc32(text) << 32 | int.from_bytes(digest[8:12], "big")
    return int.from_bytes(digest[:8], "big") << 64 | low, int.from_bytes(digest[12:], "big")


class EventTraces:
    """One resource's. Methods do not wait."""

    def __init__(self, resource: str) -> None:
        self.resource = resource
        self.open: dict[int, Traced] = {}
        """Fleet version -> an entry that is traced."""
        self._arrived: dict[tuple[str, int], int] = {}

    @property
    def on(self) -> bool:
        """Is any event traced?"""
        return telemetry.ratio() > 0

    def came(self, marker: Marker) -> None:
        """A feed brought an event."""
        if is_chosen(marker, telemetry.ratio()):
            self._arrived[marker.uid, marker.version] = time.time_ns()
            if len(self._arrived) > ARRIVED_MAX:
                del self._arrived[next(iter(self._arrived))]

    def committed(self, markers: Iterable[tuple[int, Marker]], begin: int, answered: int) -> None:
        """These are in the log by a transaction that took from `begin` to `answered` (ns since the epoch)."""
        if not self._arrived:
            return
        for _, marker in markers:
            came = self._arrived.pop((marker.uid, marker.version), 0)
            if came:
                self._way_in(marker, came, begin, answered)

    def _way_in(self, marker: Marker, came: int, begin: int, answered: int) -> None:
        from services.common.trace_ids import AsRoot  # needs the SDK, which is loaded where traces are on

        logged = time.time_ns()
        with AsRoot(*ids_of(marker)):
            root = telemetry.tracer().start_span(
                "event", context=Context(), start_time=came,
                attributes={
                    "resource": self.resource, "cluster": marker.cluster, "namespace": marker.namespace,
                    "object": marker.name, "type": marker.type, "memberVersion": marker.version,
                    "fleetVersion": marker.fleet,
                },
            )  # fmt: skip
        parent = trace.set_span_in_context(root)
        for name, start, end in (("queue", came, begin), ("commit", begin, answered), ("log", answered, logged)):
            telemetry.record(name, start, end, parent)
        root.end(logged)
        self._keep(marker, parent, logged)

    def followed(self, markers: Iterable[tuple[int, Marker]]) -> None:
        """These came into the log by the watch of etcd: another process committed them."""
        ratio = telemetry.ratio()
        for _, marker in markers:
            if is_chosen(marker, ratio):
                there = SpanContext(*ids_of(marker), is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
                self._keep(marker, trace.set_span_in_context(NonRecordingSpan(there)), time.time_ns())

    def _keep(self, marker: Marker, parent: Context, logged: int) -> None:
        self.open[marker.fleet] = Traced(parent, logged)
        if len(self.open) > OPEN_MAX:
            del self.open[next(iter(self.open))]

    def delivered(self, versions: Iterable[int]) -> None:
        """Entries of these fleet versions were written to a client just now."""
        now = time.time_ns()
        for version in versions:
            one = self.open.get(version)
            if one is not None and one.deliveries < DELIVERIES_MAX:
                one.deliveries += 1
                telemetry.record("deliver", one.logged, now, one.parent, resource=self.resource)
