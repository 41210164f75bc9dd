"""Metrics of the clock; `resource` is the aggregation's key, `cluster` a member or `host`.

Figures of each member are in `member_metrics`.
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

PREFIX = "reclock_aggregator_clock"

LAG = Histogram(
    f"{PREFIX}_lag_seconds",
    "Time from an event's arrival in its queue until it is in the log (the oldest of each batch)",
    ["resource"],
    buckets=(0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5, 30),
)
COMMIT = Histogram(
    f"{PREFIX}_commit_seconds",
    "Duration of etcd transactions",
    ["resource"],
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5),
)
BATCH = Histogram(
    f"{PREFIX}_batch_markers",
    "Markers per transaction",
    ["resource"],
    buckets=(0, 1, 2, 4, 8, 16, 32, 64, 127),
)
COMMITS = Counter(f"{PREFIX}_commits", "Committed transactions", ["resource"])
EVENTS = Counter(f"{PREFIX}_events", "Markers that were committed", ["resource"])
DROPPED = Counter(f"{PREFIX}_events_dropped", "Events that the log had already", ["resource"])
TERMS = Counter(f"{PREFIX}_terms", "Times that this process became the sequencer", ["resource"])
LEADS = Gauge(f"{PREFIX}_leads", "1 while this process is the sequencer", ["resource"])
MARKERS = Gauge(f"{PREFIX}_markers", "Live objects", ["resource"])
ENTRIES = Gauge(f"{PREFIX}_log_entries", "Entries of the log", ["resource"])
WINDOW = Gauge(f"{PREFIX}_window_revisions", "Revisions of etcd that clients can go back", ["resource"])
CLASHES = Gauge(
    f"{PREFIX}_hidden_objects", "Objects hidden behind an older one of the same key", ["resource"]
)
STATE = Gauge(f"{PREFIX}_feed_state", "1 for the state that a feed is in", ["resource", "cluster", "state"])
LISTS = Counter(
    f"{PREFIX}_relists", "Whole lists taken of a member, by reason", ["resource", "cluster", "reason"]
)
RENEWED = Counter(
    f"{PREFIX}_watches_renewed",
    "Watches of a member that were silent while an event was overdue, and were opened anew",
    ["resource", "cluster", "feed"],
)
GAPS = Counter(f"{PREFIX}_gaps", "Answers that were given without a member", ["resource", "cluster"])
GAPS_OPEN = Gauge(f"{PREFIX}_gaps_open", "Members whose objects must be sent anew", ["resource"])
FULL = Counter(f"{PREFIX}_full", "Transactions that etcd refused because its quota is used up", ["resource"])
ETCD_UP = Gauge("reclock_aggregator_etcd_up", "1 while the endpoint answers and knows a leader", ["endpoint"])
ETCD_SIZE = Gauge("reclock_aggregator_etcd_size_bytes", "etcd's database file, which its quota counts", ["endpoint"])
ETCD_USED = Gauge("reclock_aggregator_etcd_used_bytes", "Bytes of the database in use", ["endpoint"])
ETCD_FULL = Gauge("reclock_aggregator_etcd_full", "1 while etcd's alarm NOSPACE is on", ["endpoint"])
WAITING = Gauge(f"{PREFIX}_queue_length", "Work waiting for the sequencer", ["resource"])


REASONS = ("new", "unfinished", "incarnation", "restored", "compacted", "expired")
"""Why a feed lists."""


class Commits:
    """What each commit of one resource counts; the children are looked up once, not per event."""

    def __init__(self, resource: str) -> None:
        self._commits, self._events = COMMITS.labels(resource), EVENTS.labels(resource)
        self._batch, self._seconds, self._lag = (one.labels(resource) for one in (BATCH, COMMIT, LAG))
        self._markers, self._hidden = MARKERS.labels(resource), CLASHES.labels(resource)

    def committed(self, markers: int, seconds: float, lag: float) -> None:
        """A transaction with so many markers took `seconds`; its oldest event had waited `lag` seconds."""
        self._commits.inc()
        self._events.inc(markers)
        self._batch.observe(markers)
        self._seconds.observe(seconds)
        self._lag.observe(lag)

    def objects(self, live: int, hidden: int) -> None:
        """How many there are now."""
        self._markers.set(live)
        self._hidden.set(hidden)


def named(cluster: str) -> str:
    """Label of a cluster: an empty one would be none to Prometheus."""
    return cluster or "host"


def forget(resource: str, cluster: str) -> None:
    """Drop the series of a member that left."""
    states = ("Connecting", "Diffing", "Live", "Unreachable", "NoType", "Disengaging")
    series = [(STATE, state) for state in states] + [(LISTS, reason) for reason in REASONS]
    series += [(RENEWED, feed) for feed in ("log", "payloads")]
    for metric, *labels in [*series, (GAPS,)]:
        try:
            metric.remove(resource, named(cluster), *labels)
        except KeyError:
            continue  # it was never in that state
