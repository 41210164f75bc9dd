"""What readers and writers ask of one resource's clock that needs etcd: barriers, snapshots, gaps, claims."""

from __future__ import annotations

import asyncio
import logging

from services.aggregator.clock import metrics
from services.aggregator.clock.barrier import Shared
from services.aggregator.clock.claims import Claim, Claims
from services.aggregator.clock.context import Context
from services.aggregator.clock.members import Members
from services.aggregator.clock.membership import MemberState
from services.aggregator.clock.overdue import ASK_EVERY
from services.aggregator.clock.position import decode_position
from services.aggregator.clock.pulse import Pulse
from services.aggregator.clock.sequencer import Sequencer
from services.aggregator.clock.state import State
from services.aggregator.clock.store import StorageChanged
from services.aggregator.clock.vector import vector_of
from services.aggregator.clock.version import decode
from services.aggregator.clock.view import Snapshot, View
from services.aggregator.types import Aggregated
from services.common import errors
from services.common.etcd import EtcdCompacted, EtcdError, prefix_end

log = logging.getLogger(__name__)

DIFF_PATIENCE = 1.0
"""Seconds that a list waits for the end of a member's diff before it leaves the member out."""
CLAIM_PATIENCE = 5.0
"""Seconds that a create waits for another one of the same name: clients repeat what they got no answer to."""
WRITE_RETRY = 1
"""Seconds after which clients may try a write again that etcd's absence refused. client-go waits ten times that, then tells."""
FUTURE_PATIENCE = 3.0
"""Seconds that a version of the future is waited for, as Kubernetes does."""
LAG = 2.0
"""Seconds after which a watch of etcd that has not brought what etcd has is no good."""


class Answers(View):
    """Linearizable answers wait until the log has all that etcd had when they were asked for."""

    def __init__(self, context: Context, aggregated: Aggregated) -> None:
        super().__init__(aggregated)
        self.context = context
        self.group, self.resource = aggregated.group, aggregated.resource
        self.label = aggregated.key
        self.term = 0
        """create_revision of our leader key; 0 while another process leads, or nobody."""
        self.trouble = "starting"
        """Why there is no term."""
        self.loaded = asyncio.Event()
        self._members = Members(self)
        self._sequencer: Sequencer | None = None
        self._deposed = asyncio.Event()
        self._claims = Claims(context.store, self.group, self.resource)
        self._follows = False
        """Does the watch bring our log's revisions?"""
        self._complete = 0
        """etcd's revision up to which all commits are in the log."""
        self._coming: State | None = None
        """Read anew, and not yet as far as readers have come; `_complete` is its then."""
        self.followed = Pulse()
        """Beats when `_complete` moved by the watch."""
        self._commits = Shared(self._newest_commit)

    @property
    def members(self) -> dict[str, MemberState]:
        """Clusters that are engaged and selected, and those on their way out; HOST where it is included."""
        return self._members.states

    @property
    def sequencer(self) -> Sequencer | None:
        """The term's sequencer; None while we do not lead."""
        return self._sequencer

    def depose(self) -> None:
        """End the term; another one follows."""
        self._deposed.set()

    @property
    def certain(self) -> bool:
        """Is this process the only sequencer for sure? Then every number that was given is in its log, or in the
        transaction that is under way: see `settled`."""
        return bool(self.term) and not self._deposed.is_set() and self.context.leases.certain

    @property
    def committing(self) -> bool:
        """Is a transaction of ours under way? Etcd may have it already, and another replica may have shown it."""
        return self._sequencer is not None and self._sequencer.committing

    @property
    def leads(self) -> bool:
        """Is this process the sequencer, as far as it knows?"""
        return bool(self.term)

    def require_writable(self) -> None:
        """StatusError 503 while etcd takes nothing: a write would reach its member, and never the log."""
        if reason := self.context.upkeep.refuses():
            raise errors.unavailable(f"{self.label} cannot be written now: {reason}", retry_after=WRITE_RETRY)

    def gap_changed(self, cluster: str, revision: int, there: bool) -> None:
        """A gap key was put or deleted."""
        raise NotImplementedError

    async def barrier(self, timeout: float = 10) -> int:
        """Wait until the log has passed etcd's current revision; return the head. 503 when that cannot be."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    await self.loaded.wait()
                    if await (self._pass() if self.term else self._catch_up()):
                        return self.state.head
            except StorageChanged:
                self.context.follower.kick()  # it finds out, and what to do
            except TimeoutError:
                raise self._not_leading() from None
            except EtcdError as error:
                raise errors.unavailable(f"the store of fleet versions does not answer: {error}") from error
            left = deadline - loop.time()
            if left <= 0:
                raise self._not_leading()
            await self.head_pulse.wait(min(left, 0.2))

    def _not_leading(self) -> errors.StatusError:
        return errors.unavailable(f"the clock of {self.label} is not running: {self.trouble or 'busy'}")

    async def _pass(self) -> bool:
        """If the leader key was ours at etcd's current revision, nobody else has written since: once our
        transaction in flight has settled, the log is complete up to there."""
        revision, leaders = await self.context.leaders.get()
        sequencer, term = self._sequencer, self.term
        if sequencer is None or not term or leaders.get((self.group, self.resource)) != term:
            return False
        await sequencer.caught_up()
        if self._sequencer is not sequencer:
            return False
        if revision > self.state.revision:
            self.state.pass_revision(revision)
            self.head_pulse.beat()
        return True

    async def settled(self, timeout: float = 10) -> None:
        """For who found us `certain`: wait until the log has all that was numbered when this was called. 503 when that
        cannot be."""
        sequencer = self._sequencer
        if sequencer is not None:
            try:
                async with asyncio.timeout(timeout):
                    await sequencer.caught_up()
            except TimeoutError:
                raise self._not_leading() from None
        if sequencer is None or self._sequencer is not sequencer:
            await self.barrier(timeout)  # what became of the transaction the term's end did not tell

    async def _newest_commit(self) -> tuple[int, int]:
        return await self.context.store.committed(self.group, self.resource, self._complete)

    async def _catch_up(self) -> bool:
        """Another process commits: wait until the watch has brought the newest commit of now. Whatever follows is
        above etcd's revision of now."""
        state = self.state
        revision, newest = await self._commits.get()

        def reached() -> bool | None:
            usable = self.state is state and self._follows and self._coming is None
            return (self._complete >= newest or None) if usable else False

        found = await self.followed.until(reached, LAG)
        if found is None:
            log.warning("%s: the watch of etcd lags behind: it begins anew", self.label)
            self.context.follower.kick()
        if not found:
            return False
        if revision < state.revision:
            self.context.follower.kick()  # set back to an older state
            return False
        if revision > state.revision:
            state.pass_revision(revision)
            self.head_pulse.beat()
        return True

    async def snapshot(self, *, linearizable: bool = True, minimum: int = 0, timeout: float = 10) -> Snapshot:
        """Fix a version for a list, and the member versions that it stands for.

        StatusError 503 while the log cannot be vouched for, 504 for a `minimum` of the future.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        if linearizable:
            await self.barrier(timeout)
        elif not self.loaded.is_set():
            await self._wait_loaded(timeout)
        if minimum > self.state.head:
            try:
                await self.barrier(timeout)
                await self.wait_head(minimum, min(FUTURE_PATIENCE, max(deadline - loop.time(), 0)))
            except errors.StatusError as error:
                if error.code != 504:
                    raise
                raise errors.too_large_version(minimum, self.state.head) from error
        patience = min(DIFF_PATIENCE, max(deadline - loop.time(), 0))
        await self.pulse.until(lambda: None if self._members.diffing() else True, patience)
        return self._members.snapshot()

    async def _wait_loaded(self, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self.loaded.wait()
        except TimeoutError:
            raise self._not_leading() from None

    async def vector_at(self, version: int) -> Snapshot:
        """The member versions that a past fleet version stands for; 410 outside the window and inside a diff."""
        if version > self.state.head:
            await self.snapshot(minimum=version)
        self._check(version)
        revision, _ = decode(self.state.base, version)
        if revision <= 0:
            raise errors.expired(f"too old resource version: {version} ({self.state.floor})")
        prefix = self.context.store.keys.all("positions", self.group, self.resource)
        positions = {}
        try:
            async for page in self.context.store.etcd.pages(prefix, prefix_end(prefix), revision=revision):
                for kv in page.kvs:
                    key = self.context.store.keys.parse(kv.key)
                    if key is not None:
                        positions[key.cluster] = decode_position(kv.value)
        except EtcdCompacted:
            raise errors.expired(f"too old resource version: {version} ({self.state.floor})") from None
        except EtcdError as error:
            raise errors.unavailable(f"the store of fleet versions does not answer: {error}") from error
        return vector_of(self.state, version, positions)

    async def open_gap(self, cluster: str) -> None:
        """Note that an answer leaves the cluster out: its objects are sent anew on open watches when it is back.
        In etcd when this returns; 503 when that cannot be."""
        try:
            revision = await self.context.store.put_gap(self.group, self.resource, cluster)
        except EtcdError as error:
            raise errors.unavailable(f"the store of fleet versions does not answer: {error}") from error
        metrics.GAPS.labels(self.label, metrics.named(cluster)).inc()
        self.gap_changed(cluster, revision, True)

    async def overdue(self, cluster: str, limit: float) -> None:
        """See `View`: the one who has the cluster's feed doubts its watch; another replica wishes so."""
        if self._sequencer is not None:
            self._members.overdue(cluster)
            return
        state, now = self.members.get(cluster), asyncio.get_running_loop().time()
        position = self.state.positions.get(cluster)
        if state is None or position is None or now - state.doubted < ASK_EVERY:
            return
        state.doubted = now
        try:
            async with asyncio.timeout(limit):
                await self.context.store.ask_watch(self.group, self.resource, cluster, position.read)
        except (EtcdError, TimeoutError) as error:
            log.info("%s: the watch of cluster %r could not be asked about: %s", self.label, cluster, error)

    async def claim(self, namespace: str, name: str, cluster: str) -> Claim:
        """Claim a key for a create on `cluster`; the claim's cluster may be that of an earlier try.
        409 when an object holds it, 503 while another create of it does not end."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CLAIM_PATIENCE
        try:
            while (claim := await self._claims.take(namespace, name, cluster)) is None:
                left = deadline - loop.time()
                if left <= 0:
                    # Not 409: nobody knows yet whether there will be such an object.
                    raise errors.unavailable(f"another create of {self.resource} {name!r} is under way, try again")
                await self._claims.ended.wait(left)
        except EtcdError as error:
            raise errors.unavailable(f"the store of fleet versions does not answer: {error}") from error
        try:
            await self.barrier(5)
        except errors.StatusError:
            claim.leave()
            raise
        if self.shown(namespace, name) is not None:
            await claim.release()
            raise errors.already_exists(self.resource, name, self.group)
        return claim

    async def refresh(self, cluster: str, timeout: float = 5) -> None:
        """Have the cluster listed anew, and wait until its position is current: its history of the old one is
        gone. StatusError 503 when that takes longer."""
        before = self.state.positions.get(cluster)
        if self._sequencer is not None:
            self._members.relist(cluster)
        elif before is not None:
            try:
                await self.context.store.ask_list(self.group, self.resource, cluster, before.read)
            except EtcdError as error:
                raise errors.unavailable(f"the store of fleet versions does not answer: {error}") from error

        def moved() -> bool | None:
            position = self.state.positions.get(cluster)
            return None if position is None or position.diff or position == before else True

        if await self.pulse.until(moved, timeout) is None:
            raise errors.unavailable(f"cluster {cluster!r} is being listed anew")
