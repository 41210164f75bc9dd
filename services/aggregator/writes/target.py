"""Finds the member that holds an object, and turns fleet versions into that member's."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from _fastpath.marker import Marker
from services.aggregator.clock.clock import ResourceClock
from services.aggregator.types import Aggregated, Call
from services.aggregator.writes.context import SETTLE, WriteContext
from services.aggregator.writes.references import ROUTED
from services.common import errors
from services.common.errors import StatusError
from services.common.kube.client import KubeClient

ASK_TIMEOUT = 5.0
METADATA = {"Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"}
MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


@dataclass(slots=True)
class Target:
    """One object, where it is."""

    aggregated: Aggregated
    clock: ResourceClock
    marker: Marker
    client: KubeClient
    version: str  # API version that the caller speaks
    namespace: str
    name: str

    @property
    def cluster(self) -> str:
        return self.marker.cluster

    @property
    def is_routed(self) -> bool:
        """Whether the front created it: its label has to survive being replaced."""
        return bool(self.cluster) and ROUTED in (self.marker.labels or {})

    def path(self, call: Call) -> str:
        """The object's path on the member, subresource included; in the group that the caller named."""
        return member_path(call, self.namespace, self.name)

    async def member_version(self, asked: str) -> bytes | None:
        """Translate a resourceVersion that the caller sent: the member's, or None where none was sent.

        Anything but this object's current number is a conflict: passed through it would mean something else
        on the member, dropped it would overwrite unconditionally.
        """
        if asked in ("", "0"):
            return None
        resource, group = self.aggregated.resource, self.aggregated.group
        if not asked.isdigit():
            raise errors.bad_request(f"invalid object metadata.resourceVersion: {asked!r} is no integer")
        number = int(asked)
        if number > self.clock.head:
            # Given by another replica whose log is ahead of this one's.
            try:
                await self.clock.wait_head(number, SETTLE)
            except StatusError as late:
                raise errors.conflict(resource, self.name, MODIFIED, group) from late
            shown = self.clock.shown(self.namespace, self.name)
            if shown is not None and shown.cluster == self.marker.cluster:
                self.marker = shown
        if self.marker.fleet != number:
            raise errors.conflict(resource, self.name, MODIFIED, group)
        return str(self.marker.version).encode()


def member_path(call: Call, namespace: str, name: str = "") -> str:
    """Path of the called resource on a member; in the group and version that the caller named."""
    info = call.info
    base = f"/apis/{info.group}/{info.version}" if info.group else f"/api/{info.version}"
    scope = f"/namespaces/{namespace}" if namespace else ""
    path = f"{base}{scope}/{info.resource}"
    if name:
        path += f"/{name}"
    return f"{path}/{info.subresource}" if info.subresource else path


def clock_of(context: WriteContext, aggregated: Aggregated) -> ResourceClock:
    """The resource's clock; 503 while it is being set up."""
    clock = context.clock.get(aggregated.group, aggregated.resource)
    if clock is None:
        raise errors.unavailable(f"{aggregated.key} are not served yet: the clock is starting", retry_after=1)
    return clock


def client_of(clock: ResourceClock, cluster: str) -> KubeClient:
    """The member's client; 503 when it has just left."""
    state = clock.members.get(cluster)
    if state is None:
        raise errors.unavailable(f"cluster {cluster!r} is leaving the fleet", retry_after=1)
    return state.client


async def find(context: WriteContext, call: Call, aggregated: Aggregated) -> Target:
    """Find the object that the call names: by its marker, else by asking the members; 404 when nobody has it."""
    info = call.info
    clock = clock_of(context, aggregated)
    if info.verb != "get":
        clock.require_writable()
    marker = clock.shown(info.namespace, info.name)
    if marker is None:
        await clock.snapshot(timeout=SETTLE)
        marker = clock.shown(info.namespace, info.name)
    if marker is None:
        marker = await _just_created(call, clock)
    if marker is None:
        raise errors.not_found(info.resource, info.name, info.group)
    return Target(
        aggregated, clock, marker, client_of(clock, marker.cluster), info.version, info.namespace, info.name
    )


async def _just_created(call: Call, clock: ResourceClock) -> Marker | None:
    """Ask the members for an object that was created elsewhere and is not in the log yet."""
    info = call.info
    base = clock.aggregated.at(info.version).path(info.namespace or None, info.name)
    members = [state for state in clock.members.values() if state.serves and state.state != "Unreachable"]

    async def ask(client: KubeClient) -> tuple[str, int] | None:
        try:
            answer = await client.request("GET", base, headers=METADATA, timeout=ASK_TIMEOUT)
        except StatusError:
            return None  # absent, or away: either way this member cannot tell us of it
        metadata = answer.json()["metadata"]
        return metadata["uid"], int(metadata["resourceVersion"])

    found = await asyncio.gather(*(ask(state.client) for state in members))
    for state, seen in zip(members, found, strict=True):
        if seen is not None:
            await clock.wait_version(
                state.cluster, info.namespace, info.name, seen[0], seen[1], timeout=SETTLE
            )
    return clock.shown(info.namespace, info.name)
