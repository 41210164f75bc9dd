"""Requests that go to one member: `/clusters/<name>/…` as they are, and tunnels to where an object lives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from services.aggregator.away import require_answering, require_member
from services.aggregator.front.authz import Attributes, Authorizer, attributes_of
from services.aggregator.front.identity import member_headers
from services.aggregator.front.relay import encoded_target
from services.aggregator.front.server import FrontRequest
from services.aggregator.front.tunnel import path_with_query, tunnel
from services.aggregator.types import HOST, Aggregated, Call, RequestInfo
from services.common.errors import StatusError, not_found, unavailable
from services.common.fleet import FleetWatcher
from services.common.kube.client import KubeClient

if TYPE_CHECKING:
    from services.aggregator.clock.clocks import ResourceClocks

BARRIER_TIMEOUT = 5.0


class Members:
    """Finds the member and passes requests through."""

    def __init__(self, host: KubeClient, fleet: FleetWatcher, clock: ResourceClocks, authorizer: Authorizer) -> None:
        self._host = host
        self._fleet = fleet
        self._clock = clock
        self._authorizer = authorizer

    def require_fleet(self) -> None:
        """503 before the fleet is known: an answer without any member would look complete."""
        if (missing := self._fleet.check()) is not None:
            raise unavailable(f"the clusters of the fleet are not known yet: {missing}")

    def notice(self, info: RequestInfo) -> str | None:
        """The warning for the deletion of a namespace that has to wait for members, or None."""
        if (info.group, info.resource, info.subresource, info.verb) != ("", "namespaces", "", "delete"):
            return None
        away = sorted(name for name, member in self._fleet.members.items() if not member.reachable)
        if not away:
            return None
        return (
            f"namespaces: {', '.join(away)} cannot be reached: the namespace goes when it is empty there, or when the "
            "reconciler's workerLostTimeout is over (15 minutes unless it is set); next step: --wait=false"
        )

    async def _pass(
        self, call: Call, cluster: str, path_qs: str, identity: dict[str, str] | None = None
    ) -> web.StreamResponse:
        """To a cluster by name; 404 for a member that is not in the fleet, 503 at once for one that is away."""
        if cluster == HOST:
            return await tunnel(call, self._host, path_qs, identity)
        self.require_fleet()
        member = self._fleet.members.get(cluster)
        if member is None:
            raise not_found("clusters", cluster, "reclock.dev")
        await require_member(member)
        return await tunnel(call, member.client, path_qs, identity, away=lambda: not member.reachable)

    async def direct(self, call: Call) -> web.StreamResponse:
        """Serve `/clusters/<name>/…`: authorised on the host as the verb on `clusters/proxy` of that name.

        The member is called with Reclock's own identity, whoever asks: the right to do this is as good as
        being its administrator.
        """
        cluster = call.info.cluster
        assert cluster is not None
        await self._authorizer.require(
            call.user,
            Attributes(_verb(call), "", "reclock.dev", "v1alpha1", "clusters", "proxy", "", cluster),
        )
        request = call.request
        assert isinstance(request, FrontRequest)
        raw_path, query = encoded_target(request)
        head, inner = raw_path.lstrip("/").split("/")[:2], raw_path.lstrip("/").split("/")[2:]
        if head != ["clusters", cluster]:
            # An encoded slash: what was authorised is not what would be sent.
            raise not_found("clusters", cluster, "reclock.dev")
        return await self._pass(call, cluster, path_with_query("/" + "/".join(inner), query))

    def node_cluster(self, info: RequestInfo) -> str | None:
        """The member whose node's heartbeat a request reads, or None: `kubectl describe node` asks for that Lease.

        The host has none of them: its own leases are other things.
        """
        if (info.group, info.resource, info.namespace) != ("coordination.k8s.io", "leases", "kube-node-lease"):
            return None
        nodes = self._clock.get("", "nodes")
        if info.verb != "get" or info.subresource or nodes is None:
            return None
        marker = nodes.shown("", info.name)
        return str(marker.cluster) if marker is not None and marker.cluster != HOST else None

    async def node_lease(self, call: Call, cluster: str) -> web.StreamResponse:
        """Pass the read of such a Lease on, for who may do it on the host; the member decides too where it does of nodes."""
        await self._authorizer.require(call.user, attributes_of(call.info))
        nodes = self._clock.get("", "nodes")
        if nodes is None:
            raise unavailable("nodes are not followed any more")
        identity = member_headers(call, nodes.aggregated)
        request = call.request
        assert isinstance(request, FrontRequest)
        return await self._pass(call, cluster, path_with_query(*encoded_target(request)), identity)

    async def object_tunnel(self, call: Call, aggregated: Aggregated) -> web.StreamResponse:
        """Pass a log, exec, attach, portforward or proxy request on to the member that holds the object."""
        cluster = await self._cluster_of(call, aggregated)
        call.audit["cluster"] = cluster
        identity = member_headers(call, aggregated) if cluster != HOST else None
        request = call.request
        assert isinstance(request, FrontRequest)
        path, query = encoded_target(request)
        return await self._pass(call, cluster, path_with_query(path, query), identity)

    async def _cluster_of(self, call: Call, aggregated: Aggregated) -> str:
        info = call.info
        name = object_name(info.name) if info.subresource == "proxy" else info.name
        resource = self._clock.get(aggregated.group, aggregated.resource)
        if resource is None:
            raise unavailable(f"{aggregated.key} are not followed yet")
        marker = resource.shown(info.namespace, name)
        if marker is None:
            # Whoever was told of the object was told from a log: one read of the log's end is enough to know it.
            await resource.snapshot(timeout=BARRIER_TIMEOUT)
            marker = resource.shown(info.namespace, name)
        if marker is None:
            raise not_found(info.resource, name, info.group)
        if (state := resource.members.get(marker.cluster)) is not None:
            await require_answering(state)
        return str(marker.cluster)


def object_name(name: str) -> str:
    """The object's name in `[scheme:]name[:port]`, as the proxy subresource takes it."""
    parts = name.split(":")
    return parts[1] if len(parts) == 3 else parts[0]


def _verb(call: Call) -> str:
    verb = call.info.verb
    if not verb:
        raise StatusError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
    return verb
