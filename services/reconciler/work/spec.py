"""What a worker registered, decoded; and what checks it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from google.protobuf.duration_pb2 import Duration

from reclock.reconciler.v1 import reconciler_pb2 as pb
from services.common.errors import StatusError
from services.common.kube.labels import LabelSelector, parse_labels
from services.common.kube.resource import CLUSTERS, Resource
from services.reconciler.work.mapping import Channel, Mapping
from services.reconciler.work.paths import Path
from services.reconciler.work.predicates import Predicates

PROTOCOL = 1
MAX_IN_FLIGHT = 1000
PRIORITY = 32767
CAP_MAX = 1_000_000
WEIGHTS = (1e-6, 1e6)
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")


class BadRegister(Exception):
    """Wrong fields: (path of the field, what is wrong with it)."""

    def __init__(self, violations: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{path}: {text}" for path, text in violations))
        self.violations = violations


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """One source. `ident` is its name, or its place where it has none."""

    ident: str
    resource: Resource
    to: Mapping
    label_selector: str = ""
    field_selector: str = ""
    namespaces: tuple[str, ...] = ()
    scope: int = pb.SCOPE_MEMBERS
    predicates: Predicates = field(default_factory=Predicates)
    request_source: str = ""
    """Source that its requests name."""
    optional: bool = False
    priority: int = 0
    whole: bool = False
    """Whole objects are watched; else their metadata."""

    @property
    def is_fleet(self) -> bool:
        """Whether the source is the fleet's clusters themselves."""
        return (self.resource.group, self.resource.resource) == (CLUSTERS.group, CLUSTERS.resource)

    @property
    def is_channel(self) -> bool:
        """Whether workers say what is due, and nothing is watched."""
        return isinstance(self.to, Channel)


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """One index: `kind` is label, annotation or path."""

    name: str
    source: str
    kind: str
    key: str
    path: Path | None = None


@dataclass(frozen=True, slots=True)
class ControllerSpec:
    """What all workers of a controller agree on."""

    name: str
    sources: tuple[SourceSpec, ...]
    cluster_selector: LabelSelector = field(default_factory=LabelSelector)
    scope: int = pb.SCOPE_MEMBERS
    weights: dict[str, float] = field(default_factory=dict)
    caps: dict[str, int] = field(default_factory=dict)
    priority_first: bool = False
    indexes: tuple[IndexSpec, ...] = ()
    backoff_base: float = 0.005
    backoff_max: float = 1000.0
    leaving: bool = False
    """Clusters that are leaving are its business, too."""

    @property
    def channels(self) -> dict[str, SourceSpec]:
        """The sources whose requests workers tell of, by name; a single one also by "" alone."""
        found = {source.ident: source for source in self.sources if source.is_channel}
        return {**found, "": next(iter(found.values()))} if len(found) == 1 else found


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What a worker says of itself."""

    name: str
    max_in_flight: int
    version: int


def takes_host(scope: int) -> bool:
    """Whether a scope has the host in it."""
    return scope in (pb.SCOPE_HOST, pb.SCOPE_ALL)


def takes_members(scope: int) -> bool:
    """Whether a scope has members in it."""
    return scope in (pb.SCOPE_UNSPECIFIED, pb.SCOPE_MEMBERS, pb.SCOPE_ALL)


def seconds(duration: Duration) -> float:
    """A protobuf duration in seconds; NaN for one that breaks protobuf's own rules."""
    if abs(duration.nanos) >= 10**9 or duration.seconds * duration.nanos < 0:
        return math.nan
    return float(duration.seconds + duration.nanos / 1e9)


def check_weight(value: float) -> str:
    """What is wrong with a weight; "" when nothing is."""
    return "" if WEIGHTS[0] <= value <= WEIGHTS[1] else f"{value:g}: allowed is {WEIGHTS[0]:g} to {WEIGHTS[1]:g}"


def check_cap(value: int) -> str:
    """What is wrong with a cap; "" when nothing is."""
    return "" if 1 <= value <= CAP_MAX else f"{value}: allowed is 1 to {CAP_MAX}"


class Checker:
    """Collects what is wrong."""

    def __init__(self) -> None:
        self.violations: list[tuple[str, str]] = []

    def say(self, path: str, text: str) -> None:
        """Note one violation."""
        self.violations.append((path, text))

    def between(self, path: str, value: float, low: float, high: float) -> float:
        """`value`; a violation when it is not in [low, high]."""
        if not low <= value <= high:
            self.say(path, f"{value:g}: allowed is {low:g} to {high:g}")
        return value

    def selector(self, path: str, text: str) -> LabelSelector:
        """The parsed label selector."""
        try:
            return parse_labels(text)
        except StatusError as error:
            self.say(path, error.message)
            return LabelSelector()
