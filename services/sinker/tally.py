"""How the copies of a Sink stand, by cluster; and the status, events and figures that say so."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from reclock import Object
from services.sinker.spec import Spec
from services.sinker.writer import CONFLICT, SYNCED, State

FAILED = "Failed"
CLUSTERS_MAX = 1000
"""Clusters that a status names; those with problems first."""
EVENTS_MAX = 20
"""Conflicts that are told as events at once; of more the status has the number."""
MESSAGE_MAX = 1024

Key = tuple[str, str]
"""Namespace and name."""


class Tally:
    """Of one Sink. `changed` is set whenever the status may be another one."""

    def __init__(self, spec: Spec, conditions: list[Object]) -> None:
        self._spec = spec
        self._conditions = conditions
        self._states: dict[str, dict[Key, State]] = {}
        self._troubles: dict[str, str] = {}
        """What keeps a whole cluster from being looked at."""
        self._refused = ""
        self._told: set[tuple[str, Key]] = set()
        self._events: list[Object] = []
        self.changed = asyncio.Event()

    def note(self, cluster: str, key: Key, state: State) -> None:
        """How one copy stands now; a state without a word of its own is no copy any more."""
        states = self._states.setdefault(cluster, {})
        if state.word in (SYNCED.word, CONFLICT, FAILED, "Waiting"):
            if states.get(key) == state:
                return
            states[key] = state
        elif states.pop(key, None) is None:
            return
        self._tell(cluster, key, state)
        self.changed.set()

    def keep(self, cluster: str, keys: Iterable[Key]) -> None:
        """Of this cluster there are these objects, and no others; it could be looked at."""
        wanted = set(keys)
        states = self._states.setdefault(cluster, {})
        for key in [key for key in states if key not in wanted]:
            del states[key]
        self._troubles.pop(cluster, None)
        self.changed.set()

    def trouble(self, cluster: str, message: str) -> None:
        """A cluster cannot be looked at; what is known of it stands."""
        self._states.setdefault(cluster, {})
        self._troubles[cluster] = message[:MESSAGE_MAX]
        self.changed.set()

    def drop(self, cluster: str) -> None:
        """A cluster gets no copies (any more)."""
        self._troubles.pop(cluster, None)
        self._told = {one for one in self._told if one[0] != cluster}
        if self._states.pop(cluster, None) is not None:
            self.changed.set()

    def knows(self, cluster: str) -> bool:
        """Whether the status names it."""
        return cluster in self._states

    def refuse(self, message: str) -> None:
        """Nothing can be done at all; empty: it can."""
        if message != self._refused:
            self._refused = message[:MESSAGE_MAX]
            self.changed.set()

    def counts(self) -> Counter[str]:
        """Copies by state, over all clusters."""
        return Counter(state.word for states in self._states.values() for state in states.values())

    def status(self) -> Object:
        """`status` of the Sink."""
        rows = [self._row(cluster) for cluster in sorted(self._states)]
        rows.sort(key=lambda row: row["state"] == SYNCED.word)
        counts, synced = self.counts(), sum(row["state"] == SYNCED.word for row in rows)
        return {
            "observedGeneration": self._spec.generation, "clusters": rows[:CLUSTERS_MAX],
            "summary": f"{synced}/{len(rows)}", "copies": counts[SYNCED.word], "conflicts": counts[CONFLICT],
            "conditions": self._judge(rows),
        }  # fmt: skip

    def events(self) -> list[Object]:
        """Events that nobody has written yet."""
        events, self._events = self._events, []
        return events

    def _row(self, cluster: str) -> Object:
        states = self._states[cluster]
        counts = Counter(state.word for state in states.values())
        trouble = self._troubles.get(cluster, "")
        word = FAILED if trouble or counts[FAILED] else CONFLICT if counts[CONFLICT] else SYNCED.word
        if word == SYNCED.word and counts["Waiting"]:
            word = "Waiting"
        first = next((s.message for s in states.values() if s.word == word and s.message), "")
        return {
            "name": cluster or "host", "state": word, "copies": counts[SYNCED.word], "conflicts": counts[CONFLICT],
            "failed": counts[FAILED], "message": (trouble or first)[:MESSAGE_MAX],
        }  # fmt: skip

    def _judge(self, rows: list[Object]) -> list[Object]:
        bad = [row["name"] for row in rows if row["state"] in (FAILED, "Waiting")]
        taken = [row["name"] for row in rows if row["conflicts"]]
        if self._refused:
            synced = ("False", "Refused", self._refused)
        elif bad or taken:
            synced = ("False", "NotEverywhere", f"not on {', '.join([*bad, *(n for n in taken if n not in bad)][:10])}")
        else:
            synced = ("True", "Synced", f"equal on {len(rows)} clusters")
        conflict = ("True", "NameTaken", f"on {', '.join(taken[:10])}") if taken else ("False", "NoConflict", "")
        self._conditions = [self._condition("Synced", *synced), self._condition("Conflict", *conflict)]
        return self._conditions

    def _condition(self, kind: str, status: str, reason: str, message: str) -> Object:
        old = next((one for one in self._conditions if one["type"] == kind and one["status"] == status), None)
        since = old["lastTransitionTime"] if old else datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "type": kind, "status": status, "reason": reason, "message": message[:MESSAGE_MAX],
            "lastTransitionTime": since, "observedGeneration": self._spec.generation,
        }  # fmt: skip

    def _tell(self, cluster: str, key: Key, state: State) -> None:
        if state.word != CONFLICT:
            self._told.discard((cluster, key))
        elif (cluster, key) not in self._told and len(self._events) < EVENTS_MAX:
            self._told.add((cluster, key))
            self._events.append(event(self._spec, CONFLICT, f"{cluster or 'host'}: {state.message}"))


def event(spec: Spec, reason: str, note: str) -> Object:
    """An Event about a Sink."""
    now: Any = datetime.now(UTC)
    return {
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "type": "Warning", "reason": reason, "action": "Copy",
        "metadata": {"name": f"{spec.name}.{uuid.uuid4().hex[:16]}", "namespace": "default"},
        "regarding": {"apiVersion": "reclock.dev/v1alpha1", "kind": "Sink", "name": spec.name, "uid": spec.uid},
        "note": note[:1024], "reportingController": "reclock.dev/sinker", "reportingInstance": "sinker",
        "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    }  # fmt: skip


class CopiesMetric(Collector):
    """`reclock_sinker_copies{sink, state}`, read from the tallies when asked for."""

    def __init__(self, tallies: dict[str, Tally]) -> None:
        self._tallies = tallies

    def collect(self) -> Iterable[Metric]:
        """One series for each Sink and state."""
        made = GaugeMetricFamily("reclock_sinker_copies", "Copies by state", labels=["sink", "state"])
        for sink, tally in self._tallies.items():
            counts = tally.counts()
            for word in (SYNCED.word, CONFLICT, FAILED, "Waiting"):
                made.add_metric([sink, word], counts[word])
        yield made
