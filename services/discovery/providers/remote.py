"""Provider `remote`: a ClusterProviderService in another process, in any language."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import grpc

from reclock.discovery.v1 import discovery_pb2, discovery_pb2_grpc
from services.common.config import ConfigError
from services.common.errors import cut, from_rpc
from services.common.grpc import channel
from services.common.kube.kubeconfig import KubeconfigError
from services.common.tasks import Backoff
from services.discovery.config import RemoteProvider
from services.discovery.names import bad_label, bad_name
from services.discovery.providers.base import Problem, Publish, Reading, embedded, found, unread

log = logging.getLogger(__name__)

FIRST = 5.0
"""Seconds after which it is said that the first complete set has not come."""
SETTLE = 0.05
"""Seconds over which events are gathered."""
STEADY = 10.0
"""Seconds that a stream must have lived for the next one to be opened soon: a provider that ends each stream is
asked ever more seldom."""
MAX_CLUSTERS = 10_000


class ProviderError(Exception):
    """The provider does not keep to the protocol; for people."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One cluster as the provider sent it."""

    sent: bytes = b""
    """Digest of what was sent."""
    kubeconfig: Mapping[str, Any] | None = None
    """As last sent well."""
    labels: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    """What is wrong with what was sent last."""


class RemoteProviderTask:
    """`id`, `run`: see base.Provider. A new stream's complete set replaces what is known; until then that stays."""

    def __init__(self, ident: str, settings: RemoteProvider) -> None:
        self.id = ident
        self._settings = settings
        self._known: dict[str, Entry] = {}
        self._complete = False
        self._trouble = ""
        """Why it is not followed now."""
        self._event = asyncio.Event()
        self._backoff = Backoff(initial=0.2, maximum=30.0)

    async def run(self, publish: Publish) -> None:
        """Follow the provider and publish what changed."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._stay(), name=f"{self.id}/stream")
            await self._publish(publish)

    async def _publish(self, publish: Publish) -> None:
        last: Reading | None = None
        while True:
            try:
                async with asyncio.timeout(None if self._complete else FIRST):
                    await self._event.wait()
                await asyncio.sleep(SETTLE)
            except TimeoutError:
                log.debug("%s: no complete set yet", self.id)
            self._event.clear()
            reading = self._reading()
            if reading != last:
                publish(reading)
                last = reading

    def _reading(self) -> Reading:
        address = self._settings.address
        if not self._complete:
            return unread(address, self._trouble or "it has not sent its complete set yet")
        problems = [Problem(address, self._trouble)] if self._trouble else []
        clusters, unreadable = [], []
        for name, entry in self._known.items():
            source = f"{cut(name, 80)} of {address}"
            if entry.problem:
                problems.append(Problem(source, entry.problem))
                unreadable.append(source)
            if entry.kubeconfig is not None:
                problem = entry.problem or self._trouble
                clusters.append(found(name, entry.kubeconfig, source, entry.labels, problem))
        return Reading(tuple(clusters), tuple(problems), tuple(unreadable))

    # The stream.

    async def _stay(self) -> None:
        """Open streams, one after the other, for ever."""
        clock = asyncio.get_running_loop().time
        while True:
            opened = clock()
            try:
                # A new channel each time: certificates may have been rotated.
                async with channel(self._settings.address, self._settings.tls or None) as chan:
                    await self._follow(discovery_pb2_grpc.ClusterProviderServiceStub(chan))
                self._say("the stream ended")
            except grpc.aio.AioRpcError as error:
                self._say(from_rpc(error, "the provider").message)
            except (ProviderError, ConfigError) as error:
                self._say(str(error))
            if clock() - opened > STEADY:
                self._backoff.reset()
            await self._backoff.wait()

    def _say(self, trouble: str) -> None:
        self._trouble = trouble
        self._event.set()

    async def _follow(self, stub: Any) -> None:
        """Take one stream's events until it ends."""
        call = stub.ProvideClusters(discovery_pb2.ProvideClustersRequest())
        fresh: dict[str, Entry] | None = {}
        try:
            while (event := await call.read()) is not grpc.aio.EOF:
                kind = event.WhichOneof("event")
                target = self._known if fresh is None else fresh
                if kind == "found":
                    await self._found(event.found, target, first=fresh is not None)
                elif kind == "gone":
                    target.pop(event.gone, None)
                elif kind == "synced" and event.synced and fresh is not None:
                    self._known, fresh = fresh, None
                    self._complete = True
                    self._say("")
                # Else a repeated mark, or an event of a newer protocol: nothing that we could act on.
                if fresh is None:
                    self._event.set()
        finally:
            call.cancel()

    async def _found(self, sent: Any, target: dict[str, Entry], *, first: bool) -> None:
        """Take over a cluster; `first`: the stream's complete set is still being sent."""
        name = sent.name
        digest = hashlib.sha256(sent.SerializeToString(deterministic=True)).digest()
        here, before = target.get(name), self._known.get(name)
        if here is not None and here.sent == digest and (first or not here.problem):
            return
        if here is not None and first:
            target[name] = replace(here, problem="is sent twice in one set, and differs; the first is kept")
            return
        if before is not None and before.sent == digest and not before.problem:
            target[name] = before
            return
        if len(target) >= MAX_CLUSTERS and here is None:
            raise ProviderError(f"it sends more than {MAX_CLUSTERS} clusters")
        target[name] = await asyncio.to_thread(entry_of, sent, digest, before or Entry())


def entry_of(sent: Any, digest: bytes, before: Entry) -> Entry:
    """Decode a ProvideClustersResponse.Found; what is bad leaves what was sent well before."""
    if problem := bad_name(sent.name):
        return Entry(digest, problem=problem)
    labels = dict(sent.labels)
    try:
        kubeconfig = embedded(bytes(sent.kubeconfig))
    except KubeconfigError as error:
        return replace(before, sent=digest, problem=f"kubeconfig {error}")
    if problem := bad_label(labels):
        return Entry(digest, kubeconfig, before.labels, problem)
    return Entry(digest, kubeconfig, labels)
