"""`PlacementPolicy` objects and which of them applies to a workload."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from services.common.kube.resource import Resource
from services.scheduler.matching import selector_holds
from services.scheduler.workload import DIVIDED, DUPLICATED, SINGLE

POLICIES = Resource("reclock.dev", "v1alpha1", "placementpolicies", "PlacementPolicy", namespaced=False)
STATIC_WEIGHT, CAPACITY = "StaticWeight", "Capacity"
ALL_AT_ONCE, SEQUENTIAL = "AllAtOnce", "Sequential"
KEEP, DISCARD = "Keep", "Discard"
FINISH, SUSPEND = "Finish", "Suspend"
LONGEST = 315_360_000
"""Seconds (ten years) that every time of a policy is cut to: beyond them there is no date, and no duration on the wire."""


@dataclass(frozen=True, slots=True)
class Selector:
    """Which objects a policy is for."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    namespaces: tuple[str, ...] = ()
    labels: Mapping[str, Any] | None = None

    def selects(self, target: Target) -> bool:
        """Say whether it is for `target`."""
        return (
            self.api_version in ("", target.api_version)
            and self.kind in ("", target.kind)
            and self.name in ("", target.name)
            and (not self.namespaces or target.namespace in self.namespaces)
            and selector_holds(target.labels, self.labels)
        )

    @property
    def specificity(self) -> int:
        """A name beats labels, labels a namespace, a namespace a kind, a kind an API version."""
        given = (bool(self.name), bool(self.labels), bool(self.namespaces), bool(self.kind), bool(self.api_version))
        return sum(weight for weight, present in zip((16, 8, 4, 2, 1), given, strict=True) if present)


@dataclass(frozen=True, slots=True)
class Target:
    """An object that a policy is looked for."""

    api_version: str
    kind: str
    namespace: str
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Weight:
    """A StaticWeight rule."""

    names: frozenset[str]
    selector: Mapping[str, Any] | None
    weight: int

    def selects(self, name: str, labels: Mapping[str, str]) -> bool:
        """Say whether the rule is for that cluster."""
        return (not self.names or name in self.names) and selector_holds(labels, self.selector)


@dataclass(frozen=True, slots=True)
class Policy:
    """How workloads are placed. Times in seconds; None leaves them to the service's configuration."""

    name: str = ""
    """"" is the built-in default."""
    selectors: tuple[Selector, ...] = ()
    priority: int = 0
    type: str = DIVIDED
    strategy: str = CAPACITY
    weights: tuple[Weight, ...] = ()
    cluster_selector: Mapping[str, Any] | None = None
    cluster_names: frozenset[str] = frozenset()
    tolerations: tuple[Mapping[str, Any], ...] = ()
    dispatcher: str = ALL_AT_ONCE
    worker_lost_timeout: float | None = None
    pods_ready_timeout: float | None = None
    admit_timeout: float | None = None
    move_volumes: str = KEEP
    """Discard: pods with claims may leave a cluster, and start with empty volumes on the next."""
    drain_jobs: str = FINISH
    """Suspend: a drain stops Jobs, which start again elsewhere."""

    def type_for(self, mode: str) -> str:
        """What the kind allows wins over what the policy says."""
        return {"Single": SINGLE, "Duplicated": DUPLICATED}.get(mode, self.type)

    def weight_of(self, name: str, labels: Mapping[str, str]) -> int:
        """A cluster's weight: the sum of its rules'; 1 for all without any rule."""
        if not self.weights:
            return 1
        return sum(rule.weight for rule in self.weights if rule.selects(name, labels))


DEFAULT = Policy()


def parse(obj: Mapping[str, Any]) -> Policy:
    """Read a PlacementPolicy; the CRD's schema has checked it."""
    spec = obj.get("spec") or {}
    divided = spec.get("divided") or {}
    return Policy(
        name=obj["metadata"]["name"],
        selectors=tuple(_selector(item) for item in spec.get("resourceSelectors") or ()),
        priority=spec.get("priority") or 0,
        type=spec.get("type") or DIVIDED,
        strategy=divided.get("strategy") or CAPACITY,
        weights=tuple(
            Weight(frozenset(item.get("clusterNames") or ()), item.get("clusterSelector"), item.get("weight") or 0)
            for item in divided.get("weights") or ()
        ),
        cluster_selector=spec.get("clusterSelector"),
        cluster_names=frozenset(spec.get("clusterNames") or ()),
        tolerations=tuple(_toleration(item) for item in spec.get("tolerations") or ()),
        dispatcher=spec.get("dispatcher") or ALL_AT_ONCE,
        worker_lost_timeout=_seconds(spec.get("workerLostTimeout")),
        pods_ready_timeout=_seconds(spec.get("podsReadyTimeout")),
        admit_timeout=_seconds(spec.get("admitTimeout")),
        move_volumes=spec.get("moveVolumes") or KEEP,
        drain_jobs=spec.get("drainJobs") or FINISH,
    )


def _seconds(value: int | None) -> int | None:
    return None if value is None else min(value, LONGEST)


def _toleration(item: Mapping[str, Any]) -> Mapping[str, Any]:
    return item if item.get("tolerationSeconds") is None else {**item, "tolerationSeconds": _seconds(item["tolerationSeconds"])}


def _selector(item: Mapping[str, Any]) -> Selector:
    namespaces = tuple(item.get("namespaces") or ())
    if item.get("namespace"):
        namespaces = (*namespaces, item["namespace"])
    return Selector(
        item.get("apiVersion") or "", item.get("kind") or "", item.get("name") or "", namespaces,
        item.get("labelSelector"),
    )  # fmt: skip


def choose(policies: Iterable[Policy], target: Target) -> Policy:
    """Return the policy of highest priority, then of the most specific selector, then first by name."""
    best, rank = DEFAULT, None
    for policy in policies:
        found = [item.specificity for item in policy.selectors if item.selects(target)]
        if policy.selectors and not found:
            continue
        mine = (-policy.priority, -max(found, default=0), policy.name)
        if rank is None or mine < rank:
            best, rank = policy, mine
    return best
