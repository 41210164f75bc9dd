"""The clock with one of its rules broken, each on purpose: what `tests/unit/test_proof_mutations.py` must find.

A mutation patches the real code through `patch(owner, name, value)`; it is undone with the test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from services.aggregator.clock import resource as resources
from services.aggregator.clock.answers import Answers
from services.aggregator.clock.batch import Builder
from services.aggregator.clock.feed import Feed
from services.aggregator.clock.following import Following
from services.aggregator.clock.history import load
from services.aggregator.clock.resource import ResourceClock
from services.aggregator.clock.state import Change, State
from services.aggregator.clock.view import View
from services.aggregator.reads.judge import Judge
from services.aggregator.reads.member_list import MemberList
from services.aggregator.reads.owed import Owed
from services.aggregator.reads.watch import WatchSession
from services.aggregator.reads.watcher import Watcher
from services.aggregator.writes.target import Target

Patch = Callable[[Any, str, Any], None]


def i1_watch_skips_ahead(patch: Patch) -> None:
    """A watch takes the first and the last of what waits, and leaves out what lies between."""
    real = Watcher._send

    async def send(self: Watcher, entries: Any) -> None:
        await real(self, [entries[0], entries[-1]] if len(entries) > 2 else entries)

    patch(Watcher, "_send", send)


def i1_half_a_revision(patch: Patch) -> None:
    """A follower publishes a revision before it is complete."""
    real = Following.observe

    def observe(self: Following, change: Change) -> None:
        if len(change.markers) > 1:
            change.markers.pop()
        real(self, change)

    patch(Following, "observe", observe)


def i1_selector_forgets_before(patch: Patch) -> None:
    """What leaves a selector is passed over: the state before is not looked at."""
    patch(Judge, "had", lambda self, entry, key: entry.before is not None and self.selects(entry))


def i1_list_is_not_exact(patch: Patch) -> None:
    """A list at L shows what a member has now: not what it had where the log stands at L."""
    real = MemberList.__init__

    def begin(self: MemberList, client: Any, cluster: str, path: str, query: Any, *rest: Any, **more: Any) -> None:
        real(self, client, cluster, path, {k: v for k, v in query.items() if not k.startswith("resourceVersion")}, *rest, **more)

    patch(MemberList, "__init__", begin)


def i1_newer_is_taken_for_granted(patch: Patch) -> None:
    """A state is passed over because its member had a newer one, and nobody sees to it that the log ever names that."""
    patch(Owed, "add", lambda self, clock, resource, entry: None)


def i2_out_of_order(patch: Patch) -> None:
    """A cluster's queue is taken from behind."""
    real = Builder._take

    def take(self: Builder, cluster: str, queue: Any) -> Any:
        if len(queue) > 1 and all(hasattr(work, "uid") for work in queue):
            queue.rotate(1)
        return real(self, cluster, queue)

    patch(Builder, "_take", take)
    patch(Builder, "_known", staticmethod(lambda event, old, position: old is not None and old.same_state(event)))


def i3_numbers_by_itself(patch: Patch) -> None:
    """A follower numbers a marker by its place in the watch, not by that in the transaction."""

    def observe(self: Following, change: Change) -> None:
        change.markers = list(enumerate(marker for _, marker in reversed(change.markers)))
        real(self, change)

    real = Following.observe
    patch(Following, "observe", observe)


def i3_recommits_what_it_has(patch: Patch) -> None:
    """An event that the log has already gets another number."""
    patch(Builder, "_known", staticmethod(lambda event, old, position: False))


def i4_gap_is_not_noted(patch: Patch) -> None:
    """A member is left out of an answer, and nobody is told to send its objects anew."""

    async def open_gap(self: Answers, cluster: str) -> None:
        return None

    patch(Answers, "open_gap", open_gap)


def i4_gap_is_not_healed(patch: Patch) -> None:
    """A member is back, its gap is closed, its objects are not sent anew."""
    patch(Builder, "_gap", _gap_without_rewrites)


def _gap_without_rewrites(self: Builder, cluster: str, run: Any) -> Any:
    from services.aggregator.clock.batch import Taken

    if run.names is None:
        run.expand(self.state)
        run.names.clear()
    return Taken.BLOCKED


def i4_restore_is_not_noticed(patch: Patch) -> None:
    """A member that was set back goes on under its old incarnation, as if nothing had happened."""

    async def life(self: Feed, position: Any, uid: str, current: int) -> Any:
        found, reason = await real(self, position, uid, current)
        return (position.incarnation, "") if reason == "restored" else (found, reason)

    real = Feed._life
    patch(Feed, "_life", life)


def i4_old_sequencer_does_not_resign(patch: Patch) -> None:
    """After an error the leader key is kept, and the next term goes on under it: a transaction whose answer was lost may
    still succeed."""

    async def resign(self: ResourceClock, term: int) -> None:
        return None

    async def campaign(store: Any, group: str, resource: str, leases: Any, me: str, **more: Any) -> int:
        held = await store.etcd.get(store.keys.leader(group, resource))
        if held is not None and held.value == me.encode():
            return int(held.create_revision)
        return await real(store, group, resource, leases, me, **more)

    real = resources.campaign
    patch(ResourceClock, "_resign", resign)
    patch(resources, "campaign", campaign)


def i5_follower_does_not_wait(patch: Patch) -> None:
    """A follower answers from what it has, without asking etcd how far it must be."""

    async def catch_up(self: Answers) -> bool:
        return True

    patch(Answers, "_catch_up", catch_up)


def i5_sequencer_asks_nobody(patch: Patch) -> None:
    """A sequencer's replica lists from what it has: it asks nobody whether it still leads, and does not wait for what it
    has under way, which other replicas may have shown."""

    async def passes(self: Answers) -> bool:
        return True

    patch(Answers, "_pass", passes)


def i6_get_of_a_lagging_follower(patch: Patch) -> None:
    """A follower answers a get of what its log shows as if it were the sequencer."""
    patch(Answers, "certain", True)


def i6_get_passes_the_commit_under_way(patch: Patch) -> None:
    """The sequencer's replica answers a get while a transaction of its own is in etcd and not yet in its log: another
    replica may have shown that number already."""
    patch(Answers, "committing", False)


def i7_delete_does_not_wait(patch: Patch) -> None:
    """A deletion is answered as soon as its member has done it, whether the log has it or not."""

    async def wait_deleted(self: View, *which: Any, timeout: float = 0.0, version: int = 0) -> None:
        return None

    patch(View, "wait_deleted", wait_deleted)


def i8_any_version_will_do(patch: Patch) -> None:
    """A stale version is dropped instead of being a conflict: the write is unconditional."""

    async def member_version(self: Target, asked: str) -> bytes | None:
        return None

    patch(Target, "member_version", member_version)


def i8_translated_to_the_newest(patch: Patch) -> None:
    """A stale version is translated to the newest one that the member has."""

    async def member_version(self: Target, asked: str) -> bytes | None:
        return str(self.marker.version).encode() if asked else None

    patch(Target, "member_version", member_version)


def i9_everything_is_made_ahead(patch: Patch) -> None:
    """A client that does not read is written to all the same."""
    real = WatchSession._write

    async def write(self: WatchSession, data: bytes) -> None:
        response = self._response
        writer: Any = response._payload_writer if response is not None else None
        if writer is None:
            await real(self, data)
        else:
            writer.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    push = WatchSession._push
    patch(WatchSession, "_write", write)
    patch(WatchSession, "_push", lambda self, chunk: push(self, chunk) or True)


def i10_restart_forgets(patch: Patch) -> None:
    """A restarted replica begins its log at etcd's revision of now."""

    async def from_now(context_store: Any, group: str, resource: str, revisions: int) -> State:
        return await load(context_store, group, resource, 0)

    from services.aggregator.clock import history

    patch(history, "load", from_now)


__all__ = [name for name in globals() if name.startswith("i") and name[1:2].isdigit()]
