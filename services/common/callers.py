"""Who may call what: every RPC of every service, and who it is for. What is not named here is refused.

Services are known by a name in their certificate (mutual TLS), which is that of their Service in Kubernetes
(`reclock-aggregator`). Users are known by a bearer token, on a port of its own, and judged by the host's RBAC.
`guard.py` holds calls against the table.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import reduce
from typing import Any

from services.common.access import GROUP, Attributes

AGGREGATOR, RECONCILER, SCHEDULER, DISCOVERY, SINKER = (
    "reclock-aggregator", "reclock-reconciler", "reclock-scheduler", "reclock-discovery", "reclock-sinker",
)  # fmt: skip
READS = frozenset({"get", "list", "watch", "work"})
"""`work` is a worker's: what it asks for changes nothing by itself."""


@dataclass(frozen=True, slots=True)
class On:
    """What a user must be allowed: all of `verbs`, on a resource of reclock.dev or on a path that stands for no object.

    `namespace` and `name` are fields of the request, "a.b" a field of a field; "" is all of them.
    """

    verbs: tuple[str, ...]
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    @property
    def reads(self) -> bool:
        """Whether it changes nothing."""
        return READS.issuperset(self.verbs)

    def attributes(self, request: Any) -> list[Attributes]:
        """What to ask the host about a request."""
        if self.path:
            return [Attributes(verb, path=self.path) for verb in self.verbs]
        namespace, name = _field(request, self.namespace), _field(request, self.name)
        return [Attributes(verb, GROUP, self.resource, self.subresource, namespace, name) for verb in self.verbs]


@dataclass(frozen=True, slots=True)
class Told:
    """Users are judged by what they say in the stream: `by` is the part of the service that does."""

    by: str


@dataclass(frozen=True, slots=True)
class Rule:
    """Who an RPC is for. Without `users` it is between services only."""

    services: frozenset[str] = frozenset()
    users: On | Told | None = None


def _field(request: Any, path: str) -> str:
    return str(reduce(getattr, path.split("."), request)) if path else ""


def _between(*services: str) -> Rule:
    """A wrong call here loses work, runs it twice, or hands out what no user may have."""
    return Rule(frozenset(services))


def _rule(users: On | Told, *services: str) -> Rule:
    return Rule(frozenset(services), users)


def _of(package: str, service: str, rules: dict[str, Rule]) -> dict[str, Rule]:
    return {f"/reclock.{package}.v1.{service}/{rpc}": rule for rpc, rule in rules.items()}


RULES: dict[str, Rule] = {
    **_of("discovery", "DiscoveryService", {
        "WatchClusters": _rule(On(("watch",), "clusters"), AGGREGATOR, RECONCILER, SCHEDULER),
        "ListClusters": _rule(On(("list",), "clusters"), AGGREGATOR),
        "GetCluster": _rule(On(("get",), "clusters", name="name")),
        # It replaces what is registered under the name.
        "RegisterCluster": _rule(On(("create", "update"), "clusters", name="name")),
        "DeregisterCluster": _rule(On(("delete",), "clusters", name="name")),
        "ForgetCluster": _rule(On(("create",), "clusters", "forget", name="name"), AGGREGATOR),
        "ReleaseCluster": _between(RECONCILER),
    }),
    **_of("discovery", "ClusterProviderService", {"ProvideClusters": _between(DISCOVERY)}),
    **_of("scheduler", "PlacementService", {
        "Submit": _rule(On(("create", "update"), "workloads", namespace="workload.ref.namespace", name="workload.ref.name")),
        "Get": _rule(On(("get",), "workloads", namespace="ref.namespace", name="ref.name")),
        "List": _rule(On(("list",), "workloads", namespace="namespace")),
        "Watch": _rule(On(("watch",), "workloads", namespace="namespace")),
        "Cancel": _rule(On(("delete",), "workloads", namespace="ref.namespace", name="ref.name")),
        "Explain": _rule(On(("get",), "workloads", "explain", namespace="owner.namespace"), AGGREGATOR),
        "PlaceObject": _between(AGGREGATOR),
    }),
    **_of("scheduler", "AdmissionService", dict.fromkeys(
        ("Reserve", "Confirm", "Release", "Resync", "Watch", "Evaluate", "Heartbeat"), _between(SCHEDULER)
    )),
    **_of("scheduler", "PlacementPluginService", {"Nominate": _between(SCHEDULER)}),
    **_of("aggregator", "ClockService", {
        "ListMarkers": _rule(On(("list",), "versionmarkers", namespace="namespace")),
        "WatchMarkers": _rule(On(("watch",), "versionmarkers")),
        "Stats": _rule(On(("get",), path="/reclock/markers/stats")),
        "VerifyMarkers": _rule(On(("get",), path="/reclock/markers/verify")),
        "RebuildMarkers": _rule(On(("post",), path="/reclock/markers/rebuild")),
    }),
    **_of("reconciler", "ReconcilerService", {
        "Work": _rule(Told("services.reconciler.work.servicer"), SINKER),
        "QueryIndex": _rule(On(("work",), "controllers", name="controller"), RECONCILER, SINKER),
    }),
    **_of("reconciler", "QueueService", {
        "ListQueues": _rule(On(("list",), "controllers"), RECONCILER),
        "WatchQueues": _rule(On(("list",), "controllers")),
        "UpdateQueue": _rule(On(("update",), "controllers", name="controller"), RECONCILER),
    }),
    # Replicas of the reconciler, of each other.
    **_of("reconciler", "PeerService", {"Relay": _between(RECONCILER), "Add": _between(RECONCILER)}),
}  # fmt: skip
HEALTH = "/grpc.health.v1.Health/Check"
"""For everybody: load balancers and kubelets have no token."""
PLUMBING = ("/grpc.health.", "/grpc.reflection.")
"""For every certificate of the authority, and every user: it says nothing of the fleet."""


def refusal(names: Collection[str], method: str) -> str:
    """Why a service with these names may not call `/package.Service/Method`; "" when it may."""
    if method.startswith(PLUMBING):
        return ""
    rule = RULES.get(method)
    if rule is None:
        return unnamed(method)
    if not rule.services.isdisjoint(names):
        return ""
    whose = ", ".join(sorted(rule.services)) or "no service"
    users = "; users call it with a token, at userAddress" if rule.users else ""
    return f"{method} is for {whose}: no name of the caller's certificate is that ({said(names)}){users}"


def unnamed(method: str) -> str:
    """Why an RPC that the table does not have is refused."""
    return f"{method}: nobody may call it"


def for_users(service: str) -> bool:
    """Whether a service (`package.Service`) has something for users."""
    return any(rule.users for method, rule in RULES.items() if method.startswith(f"/{service}/"))


def said(names: Collection[str]) -> str:
    """The names for a message."""
    return f"it has {', '.join(sorted(names))}" if names else "it has none"
