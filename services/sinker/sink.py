"""The controller of one Sink. Its requests are copies, in the cluster of the copy: a slow cluster holds up nobody else.

What changes in the source cluster is mapped to one request for each cluster that takes it. A cluster that joins or
changes is compared as a whole; so is every cluster now and then.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from reclock import (
    FLEET,
    ApiError,
    Changed,
    Cluster,
    ClusterInfo,
    Controller,
    Fleet,
    For,
    NotFound,
    Object,
    On,
    Predicates,
    Request,
    Requeue,
    Result,
    Seen,
    Target,
    Watch,
    controller,
)
from services.sinker.copies import ORIGIN, SINK, make_copy
from services.sinker.spec import SINKS, Spec
from services.sinker.tally import FAILED, Key, Tally
from services.sinker.writer import MANAGER, WAITING, State, Writer

AT_ONCE = 8
"""Copies of one cluster that a comparison writes at once."""
MAX_IN_FLIGHT = 32
MAX_BACKOFF = 300.0
WAIT_SECONDS = 2.0


@dataclass
class Fleets:
    """What Sinks reach, and who is in the fleet."""

    host: Fleet
    """The host itself: the front's root would show all clusters' objects of an aggregated type."""
    members: Fleet
    fleet_id: str = ""
    infos: dict[str, ClusterInfo] = field(default_factory=dict)
    instance: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    """In the names of sources that tell a new process everything anew: what this process keeps began empty."""

    def cluster(self, name: str) -> Cluster:
        """A client of a member, or of the host."""
        return self.members.bound(name, MANAGER) if name else self.host.bound("", MANAGER)

    async def follow(self) -> None:
        """Keep `infos`, until cancelled."""
        async for change in self.host.watch_clusters():
            if change.type == "LEFT":
                self.infos.pop(change.cluster.name, None)
            else:
                self.infos[change.cluster.name] = change.cluster


class Sink:
    """One Sink at work."""

    def __init__(self, spec: Spec, fleets: Fleets, tally: Tally, resync: float) -> None:
        self.spec = spec
        self.tally = tally
        self._fleets = fleets
        self._resync = resync
        self._writer = Writer(spec.resource, spec.name, fleets.fleet_id, create_namespaces=spec.create_namespaces)
        self._compared: set[str] = set()
        self._ours = f"{SINK}={spec.name},{ORIGIN}={fleets.fleet_id}"

    def controller(self) -> Controller:
        """What is registered with the reconciler."""
        spec = self.spec
        originals = Watch(
            spec.resource, by=self.targets, labels=spec.objects.text, namespaces=spec.namespaces,
            on=On.MEMBERS if spec.source else On.HOST, name="original", optional=True,
        )  # fmt: skip
        itself = For(
            SINKS, fields=f"metadata.name={spec.name}", on=On.HOST, name=f"sink-{self._fleets.instance}",
            predicates=Predicates(changes=[Changed.GENERATION]),
        )  # fmt: skip
        copies = For(spec.resource, labels=self._ours, on=On.ALL, name="copy", optional=True)
        return controller(
            for_=[copies, FLEET, itself], watches=[originals], name=f"sink-{spec.name}", on=On.ALL,
            max_in_flight=MAX_IN_FLIGHT, backoff_max=MAX_BACKOFF,
        )(self.handle)  # fmt: skip

    def targets(self, seen: Seen) -> list[Target]:
        """The copies that an object of the source has or should have."""
        if seen.cluster != self.spec.source:
            return []
        metadata = seen.object["metadata"]
        names = [name for name, info in self._fleets.infos.items() if self.spec.takes(name, info.labels)]
        if self.spec.takes("", {}):
            names.append("")
        return [Target(metadata["name"], metadata.get("namespace", ""), name, "copy") for name in names]

    async def handle(self, request: Request) -> Result:
        """A copy, a cluster, or the Sink itself: then all that this process has not compared yet."""
        if request.source == "copy":
            return await self._copy(request.cluster_name, (request.namespace, request.name))
        if request.source == "cluster":
            return await self._cluster(request.name)
        names = [name for name in self._fleets.infos if name not in self._compared]
        ends = await asyncio.gather(*(self._cluster(name) for name in ["", *names]), return_exceptions=True)
        if errors := [end for end in ends if isinstance(end, BaseException) and not isinstance(end, Requeue)]:
            raise errors[0]
        return ends[0] if isinstance(ends[0], Requeue) else None

    async def _copy(self, name: str, key: Key) -> Result:
        if name and name not in self._fleets.infos:
            return None  # it has left, or is compared as a whole when it is known
        desired = None
        if self.spec.takes(name, self._labels(name)):
            desired = self._desired(await self._original(key))
        client = self._fleets.cluster(name)
        state = await self._sync(client, key, desired, await client.find(self.spec.resource, key[1], key[0]))
        return Requeue(after=WAIT_SECONDS) if state == WAITING else None

    async def _original(self, key: Key) -> Object | None:
        """The object in the source cluster; an error while that cannot be known: nothing is deleted for not knowing."""
        return await self._fleets.cluster(self.spec.source).find(self.spec.resource, key[1], key[0])

    def _labels(self, name: str) -> Mapping[str, str]:
        info = self._fleets.infos.get(name)
        return info.labels if info is not None else {}

    def _desired(self, original: Object | None) -> Object | None:
        if original is None or not self.spec.chooses(original):
            return None
        return make_copy(original, self._fleets.fleet_id, self.spec.name, self.spec.source)

    async def _sync(self, client: Cluster, key: Key, desired: Object | None, found: Object | None) -> State:
        """Make one copy so, and note how it stands; what the cluster refuses is noted, and raised."""
        try:
            state = await self._writer.sync(client, key[0], key[1], desired, found)
        except ApiError as error:
            self.tally.note(client.name, key, State(FAILED, str(error)))
            raise
        self.tally.note(client.name, key, state)
        return state

    async def _cluster(self, name: str) -> Result:
        """Compare all of a cluster."""
        labels: Mapping[str, str] = {}
        if name:
            found = await self._fleets.host.host.find("reclock.dev/v1alpha1/clusters", name)
            if found is None or (found.get("status") or {}).get("leavingSince"):
                self.tally.drop(name)
                return None
            info = ClusterInfo.of(found)
            labels = info.labels
            self._fleets.infos[name] = info  # this request may be faster than our watch
        taken = self.spec.takes(name, labels)
        try:
            originals = await self._originals() if taken else {}
            client = self._fleets.cluster(name)
            copies = {key_of(one): one for one in await client.list(self.spec.resource, labels=self._ours)}
            if taken:
                self.tally.keep(name, originals.keys() | copies.keys())
            waiting = await self._compare(client, originals, copies)
        except NotFound as error:
            if taken:
                self.tally.trouble(name, str(error))
                raise
            return None  # it has no such type, so nothing of ours either
        except ApiError as error:
            if taken or self.tally.knows(name):
                self.tally.trouble(name, str(error))
            raise
        if not taken:
            self.tally.drop(name)
        self._compared.add(name)
        return Requeue(after=WAIT_SECONDS if waiting else self._resync)

    async def _originals(self) -> dict[Key, Object]:
        source = self._fleets.cluster(self.spec.source)
        found: dict[Key, Object] = {}
        for namespace in self.spec.namespaces or ("",):
            for one in await source.list(self.spec.resource, namespace, labels=self.spec.objects.text):
                if (copy := self._desired(one)) is not None:
                    found[key_of(one)] = copy
        return found

    async def _compare(self, client: Cluster, wanted: dict[Key, Object], copies: dict[Key, Object]) -> bool:
        """Bring all to what it should be; whether something takes time. Raises the first error when all were tried."""
        limit, errors, waiting = asyncio.Semaphore(AT_ONCE), list[ApiError](), False

        async def one(key: Key) -> None:
            nonlocal waiting
            async with limit:
                if any(error.code == 503 for error in errors):
                    return  # it does not answer: the rest would only wait as long
                try:
                    found = copies.get(key) or await client.find(self.spec.resource, key[1], key[0])
                    waiting |= await self._sync(client, key, wanted.get(key), found) == WAITING
                except ApiError as error:
                    errors.append(error)

        await asyncio.gather(*(one(key) for key in sorted(wanted.keys() | copies.keys())))
        if errors:
            raise errors[0]
        return waiting

    async def empty(self) -> list[str]:
        """The Sink goes: remove all copies; the clusters that could not be asked, with the reason."""
        left = []
        # Asked, not remembered: a process that has just started knows of no cluster yet.
        clusters = await self._fleets.host.host.list("reclock.dev/v1alpha1/clusters")
        for name, obj in [("", {}), *((one["metadata"]["name"], one) for one in clusters)]:
            if (obj.get("status") or {}).get("leavingSince"):
                left.append(f"{name}: it is leaving, and they go with it")
                continue
            client = self._fleets.cluster(name)
            try:
                copies = {key_of(one): one for one in await client.list(self.spec.resource, labels=self._ours)}
                await self._compare(client, {}, copies)
            except NotFound:
                continue  # no such type or cluster: nothing of ours
            except ApiError as error:
                left.append(f"{name or 'host'}: {error}")
        return left


def key_of(obj: Object) -> Key:
    """Namespace and name."""
    return obj["metadata"].get("namespace") or "", obj["metadata"]["name"]

