"""Claims: which member a create under way goes to, so that a repeated POST never makes two objects."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

from services.aggregator.clock.pulse import Pulse
from services.aggregator.clock.store import Store
from services.aggregator.clock.varint import Reader, Writer
from services.common.etcd import EtcdError, EtcdUnavailable, compare, op_delete, op_put, op_range

log = logging.getLogger(__name__)

LAYOUT = 1


@dataclass(eq=False)
class Claim:
    """Holds (namespace, name) for `cluster`, which may be an earlier claim's.

    Release it with the outcome. One that is left (the outcome is not known) stays in etcd: a later create of that
    name takes it over and goes to the same member.
    """

    namespace: str
    name: str
    cluster: str
    key: bytes = field(repr=False)
    revision: int = field(repr=False)
    _claims: Claims = field(repr=False)
    earlier: bool = False
    """It is left from another try, whose outcome is not known."""
    since: float = 0.0
    """When it was made, in seconds since the epoch."""

    async def move(self, cluster: str) -> None:
        """The cluster so far is known not to have the object: hold the key for another. EtcdError."""
        await self._claims.move(self, cluster)

    def leave(self) -> None:
        """The outcome is not known: the next create of that name takes the claim over. Idempotent."""
        self._claims.leave(self)

    async def release(self) -> None:
        """The outcome is known: remove the claim."""
        await self._claims.release(self)


class Claims:
    """Claims of one resource, made by this process."""

    def __init__(self, store: Store, group: str, resource: str) -> None:
        self.store, self.group, self.resource = store, group, resource
        self._active: weakref.WeakValueDictionary[bytes, Claim] = weakref.WeakValueDictionary()
        self.ended = Pulse()
        """Beats when a create of this process is over."""

    async def take(self, namespace: str, name: str, cluster: str) -> Claim | None:
        """Take the key; None while another create of this process is under way. EtcdError."""
        key = self.store.keys.claim(self.group, self.resource, namespace, name)
        if key in self._active:
            return None
        claim = Claim(namespace, name, cluster, key, 0, self)
        self._active[key] = claim  # before the first await: two creates must not both pass
        try:
            await self._put(claim)
        except BaseException:
            self.leave(claim)
            raise
        return claim

    async def _put(self, claim: Claim) -> None:
        """Put the claim if there is none, else take over what is there."""
        key, claim.since = claim.key, time.time()
        answer = await self.store.etcd.txn(
            [compare(key, "create", "=", 0)], [op_put(key, _encode(claim.cluster, claim.since))], [op_range(key)]
        )
        if answer.succeeded:
            claim.revision = answer.revision
            return
        claim.earlier = True
        held = answer.responses[0].response_range.kvs
        if not held:
            raise EtcdUnavailable("etcd: the claim went while it was asked for")
        claim.cluster, claim.since = _decode(held[0].value)
        claim.revision = held[0].mod_revision

    async def move(self, claim: Claim, cluster: str) -> None:
        """Hold a claim that is still what it was for another cluster. EtcdError."""
        since = time.time()
        answer = await self.store.etcd.txn(
            [compare(claim.key, "mod", "=", claim.revision)], [op_put(claim.key, _encode(cluster, since))]
        )
        if not answer.succeeded:
            raise EtcdUnavailable("etcd: the claim changed hands meanwhile")
        claim.cluster, claim.since, claim.revision, claim.earlier = cluster, since, answer.revision, False

    def leave(self, claim: Claim) -> None:
        """Let go of a claim without removing it."""
        # Not left to the garbage collector: the error that a create ended with holds its frames, and so the claim.
        if self._active.get(claim.key) is claim:
            del self._active[claim.key]
            self.ended.beat()

    async def release(self, claim: Claim) -> None:
        """Remove a claim that is still what it was."""
        try:
            await self.store.etcd.txn(
                [compare(claim.key, "mod", "=", claim.revision)], [op_delete(claim.key)]
            )
        except EtcdError as error:
            # The object is made (or is not): the create's answer stands. The sweep removes the claim.
            log.warning("claim of %s/%s was not removed: %s", claim.namespace, claim.name, error)
        finally:
            self.leave(claim)

    async def sweep(self, known: Callable[[str, str], bool]) -> None:
        """Remove claims of keys that have a live object now: their outcome is known."""
        prefix = self.store.keys.all("claims", self.group, self.resource)
        answer = await self.store.etcd.range(prefix, prefix=True)
        for kv in answer.kvs:
            key = self.store.keys.parse(kv.key)
            if key is None or kv.key in self._active or not known(key.namespace, key.name):
                continue
            await self.store.etcd.txn([compare(kv.key, "mod", "=", kv.mod_revision)], [op_delete(kv.key)])


def _encode(cluster: str, since: float) -> bytes:
    out = Writer(LAYOUT)
    out.text(cluster)
    out.number(int(since))
    return out.done()


def _decode(value: bytes) -> tuple[str, float]:
    read = Reader(value, LAYOUT, "claim")
    return read.text(), float(read.number())
