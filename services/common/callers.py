"""Who may call what, over mutual TLS: the table of services and RPCs, and the check that every server makes.

A caller is known by the names in its certificate: URI and DNS alternative names, and the common name. Services carry
the name of their Service in Kubernetes (`reclock-aggregator`). Plaintext exists on one machine only and is not judged.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any

import grpc

from services.common.config import is_loopback

AGGREGATOR, RECONCILER, SCHEDULER, DISCOVERY = (
    "reclock-aggregator", "reclock-reconciler", "reclock-scheduler", "reclock-discovery",
)  # fmt: skip
_DISCOVERY = "reclock.discovery.v1.DiscoveryService"
_CLOCK = "reclock.aggregator.v1.ClockService"
_PROVIDER = "reclock.discovery.v1.ClusterProviderService"
_PLACEMENT = "reclock.scheduler.v1.PlacementService"
_ADMISSION = "reclock.scheduler.v1.AdmissionService"
_PLUGIN = "reclock.scheduler.v1.PlacementPluginService"
_PEERS, _WORK, _QUEUES = (
    "reclock.reconciler.v1.PeerService", "reclock.reconciler.v1.ReconcilerService", "reclock.reconciler.v1.QueueService",
)  # fmt: skip

NEEDS: dict[str, dict[str, frozenset[str]]] = {
    AGGREGATOR: {
        _DISCOVERY: frozenset({"WatchClusters", "ListClusters", "ForgetCluster"}),
        _PLACEMENT: frozenset({"PlaceObject", "Explain"}),
    },
    RECONCILER: {
        _DISCOVERY: frozenset({"WatchClusters", "ReleaseCluster"}),
        # Its replicas, of each other.
        _PEERS: frozenset({"Relay", "Add"}),
        _WORK: frozenset({"QueryIndex"}),
        _QUEUES: frozenset({"ListQueues", "UpdateQueue"}),
    },
    SCHEDULER: {
        _DISCOVERY: frozenset({"WatchClusters"}),
        _ADMISSION: frozenset(
            {"Reserve", "Confirm", "Release", "Resync", "Watch", "Evaluate", "Heartbeat"}
        ),
        _PLUGIN: frozenset({"Nominate"}),
    },
    DISCOVERY: {_PROVIDER: frozenset({"ProvideClusters"})},
}
"""Service -> what it calls of the others; all else is refused to it."""
INTERNAL: dict[str, frozenset[str]] = {
    f"/{_DISCOVERY}/ReleaseCluster": frozenset({RECONCILER}),
    # Not for every worker that has a certificate: the front offers both, under the host's RBAC and with a line of audit.
    f"/{_DISCOVERY}/ForgetCluster": frozenset({AGGREGATOR}),
    f"/{_CLOCK}/RebuildMarkers": frozenset({AGGREGATOR}),
    **{f"/{_PEERS}/{rpc}": frozenset({RECONCILER}) for rpc in NEEDS[RECONCILER][_PEERS]},
    **{f"/{_ADMISSION}/{rpc}": frozenset({SCHEDULER}) for rpc in NEEDS[SCHEDULER][_ADMISSION]},
}
"""What is between services only: a wrong call here loses work, runs it twice, or makes every client list anew."""
OPEN = ("/grpc.health.", "/grpc.reflection.")


def is_local(context: Any) -> bool:
    """Whether the caller is on this machine, without TLS."""
    kind, _, address = str(context.peer()).partition(":")
    if kind in ("unix", "unix-abstract"):
        return True
    return kind in ("ipv4", "ipv6") and is_loopback(address.replace("%5B", "[").replace("%5D", "]"))


def is_tls(context: Any) -> bool:
    """Whether the caller has shown a certificate of our authority."""
    return context.auth_context().get("transport_security_type") == [b"ssl"]  # type: ignore[no-any-return]


def names_of(context: Any) -> frozenset[str]:
    """The names in a caller's certificate; none without one."""
    auth = context.auth_context()
    values = [*auth.get("x509_subject_alternative_name", ()), *auth.get("x509_common_name", ())]
    return frozenset(value.decode("utf-8", "replace") for value in values)


def may_have_access(context: Any, allowed: Collection[str]) -> bool:
    """Whether credentials of members may go to a caller: by a name of its certificate, or on this machine."""
    if is_tls(context):
        return not names_of(context).isdisjoint(allowed)
    return is_local(context)


def refusal(names: Collection[str], method: str) -> str:
    """Why a caller of these names may not call `/package.Service/Method`; "" when it may."""
    if method.startswith(OPEN):
        return ""
    internal = INTERNAL.get(method)
    if internal is not None and internal.isdisjoint(names):
        return f"{method} is for {', '.join(sorted(internal))}: no name of the caller's certificate is that ({said(names)})"
    service, _, rpc = method.removeprefix("/").partition("/")
    services = [name for name in NEEDS if name in names]
    if services and service.startswith("reclock.") and not any(rpc in NEEDS[s].get(service, ()) for s in services):
        return f"{', '.join(services)} has no business with {method}: use a certificate of your own for it"
    return ""


def said(names: Collection[str]) -> str:
    """The names for a message."""
    return f"it has {', '.join(sorted(names))}" if names else "it has none"


class Guard(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Refuses calls that the tables do not allow; for servers with mutual TLS."""

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        """See grpc.aio."""
        handler = await continuation(details)
        if handler is None or details.method.startswith(OPEN):
            return handler
        return _guarded(handler, details.method)


def _guarded(handler: Any, method: str) -> Any:
    serializers = {
        "request_deserializer": handler.request_deserializer,
        "response_serializer": handler.response_serializer,
    }

    async def check(context: Any) -> None:
        if reason := refusal(names_of(context), method):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)

    def unary(behaviour: Any) -> Any:
        async def run(request: Any, context: Any) -> Any:
            await check(context)
            return await behaviour(request, context)

        return run

    def stream(behaviour: Any) -> Any:
        async def run(request: Any, context: Any) -> AsyncIterator[Any]:
            await check(context)
            async for response in behaviour(request, context):
                yield response

        return run

    if handler.unary_unary:
        return grpc.unary_unary_rpc_method_handler(unary(handler.unary_unary), **serializers)
    if handler.stream_unary:
        return grpc.stream_unary_rpc_method_handler(unary(handler.stream_unary), **serializers)
    if handler.unary_stream:
        return grpc.unary_stream_rpc_method_handler(stream(handler.unary_stream), **serializers)
    return grpc.stream_stream_rpc_method_handler(stream(handler.stream_stream), **serializers)
