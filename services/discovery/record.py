"""What discovery knows about one cluster, and its shapes: the gRPC message and the `Cluster` object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from reclock.discovery.v1 import discovery_pb2
from services.common.errors import cut
from services.common.kube.shape import Shape
from services.discovery.health import Change, Health
from services.discovery.providers.base import Found
from services.discovery.waiting import ANOTHER, Waiting, fingerprint

REACHABLE, READY, CONFIGURED = "Reachable", "Ready", "Configured"
API_VERSION = "reclock.dev/v1alpha1"


def now() -> datetime:
    """Current time, in whole seconds as metav1.Time."""
    return datetime.now(UTC).replace(microsecond=0)


@dataclass(slots=True)
class Condition:
    """A metav1.Condition."""

    status: str
    reason: str
    message: str
    since: datetime


@dataclass(frozen=True, slots=True)
class Operator:
    """What belongs to the operator: metadata and spec of the `Cluster` object."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, Any], ...] = ()

    @property
    def empty(self) -> bool:
        """Whether the operator has set nothing."""
        kept = {key for key in self.annotations if not key.startswith("kubectl.kubernetes.io/")}
        return not (self.labels or kept or self.taints)


def is_part(shape: Shape) -> bool:
    """Whether a cluster is a part of a server: a namespace, a workspace."""
    return bool(shape.namespace or shape.identity)


@dataclass(slots=True)
class Record:
    """One cluster. Owned by the registry."""

    name: str
    provider: str
    source: str
    server: str = ""
    found: Found | None = None
    """None: known from before the restart, not found yet."""
    place: tuple[str, Shape] | None = None
    """Its server, and what of that it is, once found."""
    uid: str = ""
    kube_version: str = ""
    latency_us: int = 0
    conditions: dict[str, Condition] = field(default_factory=dict)
    engaged_at: datetime | None = None
    unreachable_since: datetime | None = None
    forgotten: bool = False
    held: bool = False
    """The reconciler follows it: it may have copies, which must go before its credentials do."""
    leaving_since: datetime | None = None
    """No provider has it any more; it is kept for its copies to be removed."""
    kept: Found | None = None
    """Its access before a restart, for a cluster whose source is gone since."""
    left_behind: str = ""
    verified: str | None = None
    """`fingerprint` of the access that was seen to lead to it, or ANOTHER; None: that is not known."""
    waiting: Waiting | None = None
    """Other access under its name."""
    tainted: dict[str, datetime] = field(default_factory=dict)
    """NoExecute taints that do not say it themselves: since when they are there (`taint_key`)."""
    operator: Operator = field(default_factory=Operator)
    health: Health = field(default_factory=Health)
    same_as: str = ""
    """Name of the engaged record that turned out to be the same cluster; this one is then not streamed."""

    def set_condition(self, kind: str, status: str, reason: str, message: str) -> bool:
        """Set a condition; say whether it changed."""
        message = cut(message, 1000)
        old = self.conditions.get(kind)
        if old is not None and (old.status, old.reason, old.message) == (status, reason, message):
            return False
        since = old.since if old is not None and old.status == status else now()
        self.conditions[kind] = Condition(status, reason, message, since)
        # "Not probed yet" is no state to remember, and a text that differs no change.
        if status != "Unknown" and (old is None or (old.status, old.reason) != (status, reason)):
            self.health.changes.append(Change(now(), kind, status, reason, message))
        return True

    def is_true(self, kind: str) -> bool:
        """Whether a condition is True."""
        condition = self.conditions.get(kind)
        return condition is not None and condition.status == "True"

    @property
    def owned(self) -> bool:
        """Whether copies may be there, which go before it does."""
        return self.held and bool(self.uid) and not self.same_as

    @property
    def keeps_name(self) -> bool:
        """Whether another cluster has to wait for its name: what was made here may run on where we do not see it.

        Of a part of a server (a namespace, a workspace) that was made anew nothing is left of the old one.
        """
        return self.owned and not (self.place is not None and is_part(self.place[1]))

    @property
    def trusted(self) -> bool:
        """Whether the access in force leads to this cluster, as far as is known; else nothing may be written there."""
        if not self.keeps_name or self.verified is None or self.found is None:
            return True
        return self.verified == fingerprint(self.uid, self.found)

    @property
    def misled(self) -> bool:
        """Whether the access in force leads to another cluster now."""
        return self.verified == ANOTHER

    def note_taints(self) -> None:
        """Note since when NoExecute taints without a time are there: tolerations count from then."""
        timeless = [t for t in self.operator.taints if t.get("effect") == "NoExecute" and _time(t.get("timeAdded")) is None]
        self.tainted = {key: self.tainted.get(key) or now() for key in map(taint_key, timeless)}

    @property
    def provider_labels(self) -> Mapping[str, str]:
        """Labels that the provider knows."""
        return self.found.labels if self.found is not None else {}


def to_proto(record: Record) -> Any:
    """Return the discovery_pb2.Cluster, without access and version."""
    cluster = discovery_pb2.Cluster(
        name=record.name, provider=record.provider, source=record.source, uid=record.uid,
        labels={**record.provider_labels, **record.operator.labels},
        annotations=dict(record.operator.annotations), kube_version=record.kube_version,
        server=record.server, latency_us=record.latency_us, forgotten=record.forgotten,
    )  # fmt: skip
    for kind, condition in sorted(record.conditions.items()):
        message = cluster.conditions.add(
            type=kind, status=condition.status, reason=condition.reason, message=condition.message
        )
        message.last_transition.FromDatetime(condition.since)
    for taint in record.operator.taints:
        added = cluster.taints.add(
            key=str(taint.get("key", "")), value=str(taint.get("value") or ""),
            effect=str(taint.get("effect", "")),
        )  # fmt: skip
        if (stamp := _time(taint.get("timeAdded")) or record.tainted.get(taint_key(taint))) is not None:
            added.added_at.FromDatetime(stamp)
    if record.engaged_at is not None:
        cluster.engaged_at.FromDatetime(record.engaged_at)
    if record.leaving_since is not None:
        cluster.leaving_since.FromDatetime(record.leaving_since)
    if record.unreachable_since is not None:
        cluster.unreachable_since.FromDatetime(record.unreachable_since)
    return cluster


def taint_key(taint: Mapping[str, Any]) -> str:
    """Which taint of a cluster it is, as people write it."""
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint.get('key', '')}{value}:{taint.get('effect', '')}"


def _stamp(time: datetime | None) -> str | None:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if time is not None else None


def _time(text: Any) -> datetime | None:
    if not isinstance(text, str):
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):  # the first and the last day have hours that no other time zone has
        return None


def to_status(record: Record) -> dict[str, Any]:
    """Return `status` of the `Cluster` object."""
    status: dict[str, Any] = {
        "provider": record.provider, "source": record.source, "server": record.server, "uid": record.uid,
        "kubeVersion": record.kube_version, "latency": show_latency(record.latency_us),
        "engagedAt": _stamp(record.engaged_at), "unreachableSince": _stamp(record.unreachable_since),
        "forgotten": record.forgotten or None, "reconciled": record.held or None,
        "leavingSince": _stamp(record.leaving_since), "verifiedAccess": record.verified,
        "taints": [{"taint": key, "since": _stamp(since)} for key, since in sorted(record.tainted.items())],
        "conditions": [
            {"type": kind, "status": c.status, "reason": c.reason, "message": c.message,
             "lastTransitionTime": _stamp(c.since)}
            for kind, c in sorted(record.conditions.items())
        ],
        "latencies": _latencies(record.health),
        "history": [
            {"time": _stamp(c.time), "type": c.type, "status": c.status, "reason": c.reason, "message": cut(c.message, 200)}
            for c in record.health.changes
        ],
    }  # fmt: skip
    return {key: value for key, value in status.items() if value not in (None, "", [], {})}


def _latencies(health: Health) -> dict[str, Any]:
    if not health.samples:
        return {}
    return {
        "p50": show_latency(health.latency(0.5)), "p99": show_latency(health.latency(0.99)), "samples": health.samples,
    }  # fmt: skip


def show_latency(latency_us: int) -> str:
    """`1.2ms`; "" before the first probe."""
    return f"{latency_us / 1000:.1f}ms" if latency_us else ""


def operator_part(obj: Mapping[str, Any], provider_labels: Mapping[str, str]) -> Operator:
    """Return what of a `Cluster` object is the operator's: labels that only repeat the provider's are not."""
    metadata = obj.get("metadata") or {}
    labels = metadata.get("labels") or {}
    taints = (obj.get("spec") or {}).get("taints") or []
    return Operator(
        {key: value for key, value in labels.items() if provider_labels.get(key) != value},
        dict(metadata.get("annotations") or {}),
        tuple(taint for taint in taints if isinstance(taint, dict)),
    )


def from_object(obj: Mapping[str, Any]) -> Record | None:
    """Return the record that a `Cluster` object keeps; None where discovery never wrote its status."""
    status = obj.get("status") or {}
    name = (obj.get("metadata") or {}).get("name")
    if not name or not status.get("provider"):
        return None
    record = Record(name, str(status["provider"]), str(status.get("source", "")), str(status.get("server", "")))
    record.uid = str(status.get("uid", ""))
    record.kube_version = str(status.get("kubeVersion", ""))
    record.engaged_at = _time(status.get("engagedAt"))
    record.unreachable_since = _time(status.get("unreachableSince"))
    record.forgotten = bool(status.get("forgotten"))
    record.held = bool(status.get("reconciled"))
    record.leaving_since = _time(status.get("leavingSince"))
    record.verified = status.get("verifiedAccess")
    record.tainted = {
        str(item["taint"]): since for item in status.get("taints") or ()
        if item.get("taint") and (since := _time(item.get("since"))) is not None
    }  # fmt: skip
    for item in status.get("conditions") or []:
        since = _time(item.get("lastTransitionTime")) or now()
        record.conditions[str(item.get("type"))] = Condition(
            str(item.get("status", "Unknown")), str(item.get("reason", "")), str(item.get("message", "")), since
        )
    record.operator = operator_part(obj, {})
    record.health.began(
        Change(_time(item.get("time")) or now(), *(str(item.get(key, "")) for key in ("type", "status", "reason", "message")))
        for item in status.get("history") or []
    )
    return record


def to_object(record: Record) -> dict[str, Any]:
    """Return the whole `Cluster` object, as the state file keeps it."""
    return {
        "apiVersion": API_VERSION, "kind": "Cluster",
        "metadata": {"name": record.name, "labels": dict(record.operator.labels),
                     "annotations": dict(record.operator.annotations)},
        "spec": {"taints": [dict(taint) for taint in record.operator.taints]},
        "status": to_status(record),
    }  # fmt: skip
