"""The fleet: merges what providers find, probes say and operators set; tells the stream and the keepers.

Rules: engaging is idempotent and waits for no cluster; changed credentials or server re-engage in place; a
source that cannot be read keeps its last clusters; nothing leaves before its provider's first complete reading;
a name, and a cluster (by the uid of kube-system), belongs to who had it first. A cluster that the reconciler
follows leaves in two steps: first it is *leaving* (its access is kept, for what Reclock made there to be removed),
then released. One that comes back meanwhile is engaged in place, as if nothing had been. Other access under its name
is used once it is known to lead to the same cluster; another cluster waits until it has left (`waiting`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec

from reclock.discovery.v1 import discovery_pb2
from services.discovery import metrics, same, succession
from services.discovery.hub import Hub
from services.discovery.probe import ProbeResult
from services.discovery.providers.base import Found, Problem, Reading, is_unread
from services.discovery.record import (
    CONFIGURED,
    REACHABLE,
    READY,
    Operator,
    Record,
    now,
    to_proto,
)  # fmt: skip
from services.discovery.sources import Sources
from services.discovery.waiting import fingerprint

log = logging.getLogger(__name__)

LEAVING = (
    "no provider has it any more; its access is kept until what Reclock made there is gone"
    " (`reclock forget` moves its work at once)"
)
OVERDUE = (
    "no provider has it any more, and for {limit:g} s nobody has said that what Reclock made there is gone: what must not"
    " run twice may run there. `reclock forget {name}` says that it does not, and lets it go"
)
UNREAD_IDENTITY = "its access is new, and it is not known yet that it leads to the cluster that it was: nothing is written there"


REFUSED = frozenset(
    {"Unauthorized", "CertificateExpired", "CertificateNotTrusted", "TLSFailed", "CredentialsUnavailable"}
)
"""Reasons of probes for which other credentials may be there by now."""


class Keeper(Protocol):
    """Told of changes; must not block. The prober, the host's objects and the state file are keepers."""

    def engaged(self, record: Record) -> None:
        """The cluster joined, or its access changed."""

    def changed(self, record: Record) -> None:
        """Something about it changed."""

    def waits(self, record: Record) -> None:
        """Other access under its name came, or is gone (`record.waiting`)."""

    def disengaged(self, record: Record) -> None:
        """It left."""


class Registry:
    """Owned by the event loop; all methods are synchronous, so each is one step for everybody else."""

    def __init__(self, hub: Hub, providers: Iterable[str]) -> None:
        self.hub = hub
        self.records: dict[str, Record] = {}
        self._providers = set(providers)
        self._read: set[str] = set()
        self.sources = Sources()
        self._keepers: list[Keeper] = []
        self.refused: Callable[[str, str], None] = lambda provider, source: None
        """Told (provider, source) when a cluster does not take the credentials that were found there."""

    def add_keeper(self, keeper: Keeper) -> None:
        """Add a keeper before anything is restored or read."""
        self._keepers.append(keeper)

    def holders(self, provider: str) -> dict[str, str]:
        """Name -> source of the provider's clusters."""
        return {r.name: r.source for r in self.records.values() if r.provider == provider}

    def unread(self) -> list[str]:
        """Providers without a complete reading so far."""
        return sorted(self._providers - self._read)

    # What was known before.

    def restore(self, record: Record) -> None:
        """Take what a keeper has kept; what was found or probed meanwhile is newer and wins."""
        mine = self.records.get(record.name)
        if mine is None:
            late = self.hub.complete.is_set()
            if late and (not record.owned or self.hub.has_left(record.name)):
                return
            self.records[record.name] = record
            if record.leaving_since is not None:
                self._restore_leaving(record)
            elif late:
                self.leave(record, "no provider has it")
            return
        if mine.uid and mine.uid != record.uid:
            return
        mine.uid = mine.uid or record.uid
        mine.kube_version = mine.kube_version or record.kube_version
        mine.verified = record.verified if mine.verified is None else mine.verified
        mine.tainted = {**mine.tainted, **record.tainted}
        mine.held = mine.held or record.held
        mine.health.began(record.health.changes)
        if record.engaged_at and (mine.engaged_at is None or record.engaged_at < mine.engaged_at):
            mine.engaged_at = record.engaged_at
        if not mine.is_true(REACHABLE) and record.unreachable_since:
            ours = mine.unreachable_since or record.unreachable_since
            mine.unreachable_since = min(ours, record.unreachable_since)
            mine.forgotten = mine.forgotten or record.forgotten
        self.publish(mine)

    def _restore_leaving(self, record: Record) -> None:
        """No provider will bring it: it is streamed as it was; without access to those who have theirs still."""
        if record.kept is not None:
            self.use(record, record.kept)
            self.tell("engaged", record)
        self.publish(record)

    # Providers.

    def reading(self, provider: str, reading: Reading) -> None:
        """Compare a reading with what is known."""
        clashes: list[Problem] = []
        wanted: dict[str, Found] = {}
        for found in reading.clusters:
            holder, source = self.holder(found.name)
            if holder not in ("", provider):
                clashes.append(Problem(
                    found.source, f"the name {found.name!r} is taken by {holder} ({source}); it is left out"
                ))  # fmt: skip
            elif found.name in wanted:
                clashes.append(Problem(found.source, f"the name {found.name!r} is found twice; left out"))
            else:
                wanted[found.name] = found
        if reading.complete:
            self._read.add(provider)
        succession.withdraw(self, provider, wanted, reading.unreadable)
        for record in [r for r in self.records.values() if r.provider == provider and r.name not in wanted]:
            if is_unread(record.source, reading.unreadable):
                self.set_configured(record, "its source cannot be read now; this is what was known last")
                self.publish(record)
            else:
                self.leave(record, "no longer in its source")
        for found in wanted.values():
            self._engage(provider, found)
        self.sources.note(provider, [*reading.problems, *clashes])
        self._complete()

    def holder(self, name: str) -> tuple[str, str]:
        """(provider, source) that has a name, or waits for it; not one that is leaving, or is not configured."""
        record = self.records.get(name)
        if record is not None and record.waiting is not None and record.waiting.provider in self._providers:
            return record.waiting.provider, record.waiting.found.source
        if record is None or record.provider not in self._providers or record.leaving_since is not None:
            return "", ""
        return record.provider, record.source

    def _complete(self) -> None:
        if self.hub.complete.is_set() or not self._providers <= self._read:
            return
        for record in [r for r in self.records.values() if r.provider not in self._providers]:
            self.leave(record, f"its provider {record.provider} is no longer configured")
        self.hub.complete.set()
        log.info("all providers have read their sources: %d clusters", len(self.records))

    def _engage(self, provider: str, found: Found) -> None:
        record = self.records.get(found.name)
        if record is not None and succession.must_wait(record, found):
            succession.let_wait(self, record, provider, found)
            return
        if record is None:
            record = self.records[found.name] = Record(found.name, provider, found.source)
        self.take(record, provider, found)

    @staticmethod
    def use(record: Record, found: Found) -> None:
        """This is the access in force."""
        record.found, record.place, record.server = found, found.place, found.server

    def take(self, record: Record, provider: str, found: Found) -> None:
        """Engage it, or take its access in place."""
        fresh, old = record.found is None, record.found
        record.provider, record.source = provider, found.source
        self.use(record, found)
        if record.waiting is not None:
            record.waiting = None
            self.tell("waits", record)
        if record.leaving_since is not None:
            log.info("cluster %s is back before it had left: nothing of it is lost", record.name)
            record.leaving_since, record.forgotten = None, False
        record.engaged_at = record.engaged_at or now()
        self.set_configured(record, found.problem)
        if REACHABLE not in record.conditions:
            record.set_condition(REACHABLE, "Unknown", "NotProbedYet", "no probe has ended yet")
            record.set_condition(READY, "Unknown", "NotProbedYet", "no probe has ended yet")
        elif not record.trusted:
            self.doubt(record, UNREAD_IDENTITY)
        if fresh and not record.uid:
            # The same address is the same cluster: no need to show it until its first probe says so.
            record.uid = next((r.uid for r in self.records.values() if r is not record and r.place == found.place), "")
        same.find(self, record)
        if fresh:
            same.find_parts(self, record)
            same.recheck(self, record.name)
            log.info("cluster %s engaged (%s, %s)", record.name, record.server, record.source)
            metrics.ENGAGED.labels(provider).inc()
        elif old is not None and old.digest != found.digest:
            log.info("cluster %s: its access changed, engaged anew in place", record.name)
        if fresh or old is None or old.digest != found.digest:
            self.tell("engaged", record)
        self.publish(record)

    @staticmethod
    def doubt(record: Record, why: str) -> None:
        """It counts as not reached: it is not known whether what answers is this cluster."""
        record.set_condition(REACHABLE, "Unknown", "IdentityNotRead", why)
        record.set_condition(READY, "Unknown", "IdentityNotRead", "its readiness is not known")

    def set_configured(self, record: Record, problem: str) -> None:
        """Set the condition; `problem`: why its source cannot be read now."""
        if record.waiting is not None:
            leaving = record.leaving_since is not None
            record.set_condition(CONFIGURED, "False", *record.waiting.describe(record.name, record.uid, leaving))
        elif record.leaving_since is not None:
            record.set_condition(CONFIGURED, "False", "Leaving", LEAVING)
        elif record.same_as:
            part = record.place is not None and record.place[1].of
            what = "a part of" if part else "the same cluster as"
            message = f"this is {what} {record.same_as!r} (uid {part or record.uid}); it is left out"
            record.set_condition(CONFIGURED, "False", "SameCluster", message)
        elif problem:
            record.set_condition(CONFIGURED, "False", "SourceUnreadable", problem)
        else:
            record.set_condition(CONFIGURED, "True", "SourceRead", "")

    def hold(self, name: str) -> None:
        """Somebody who makes copies was told of the cluster: from now on it leaves in two steps."""
        record = self.records.get(name)
        if record is not None and not record.held:
            record.held = True
            self.tell("changed", record)

    def leave(self, record: Record, reason: str) -> None:
        """No provider has it any more: it goes at once where there can be no copies, else when it is released."""
        if record.leaving_since is not None:
            return
        if not record.owned:  # one that was never reached has nothing of ours
            self._disengage(record, reason)
            return
        record.leaving_since = now()
        log.warning("cluster %s is leaving: %s; its access is kept until its copies are gone", record.name, reason)
        if record.found is None and record.kept is not None:
            self.use(record, record.kept)
            self.tell("engaged", record)
        self.set_configured(record, "")
        self.publish(record)

    def release(self, record: Record, left_behind: str = "") -> None:
        """Its copies are gone, or have to be left behind (what, for people): it leaves."""
        record.left_behind = left_behind
        self._disengage(record, f"left behind there: {left_behind}" if left_behind else "nothing of ours is left there")

    def release_overdue(self, limit: float) -> None:
        """See to those that have been leaving for more than `limit` seconds: nobody says how their copies are.

        What must not run twice may run there: each is kept, and named, until an operator says that it will not come back.
        """
        for record in list(self.records.values()):
            if record.leaving_since is None or (now() - record.leaving_since).total_seconds() <= limit:
                continue
            if record.forgotten:
                self.release(record, f"unknown: nobody reported on it for {limit:g} s")
            elif record.waiting is None and record.set_condition(
                CONFIGURED, "False", "LeftBehind", OVERDUE.format(name=record.name, limit=limit)
            ):
                self.publish(record)

    def _disengage(self, record: Record, reason: str) -> None:
        del self.records[record.name]
        log.info("cluster %s disengaged: %s", record.name, reason)
        self.hub.remove(record.name)
        metrics.forget_cluster(record.name)
        self.tell("disengaged", record)
        same.recheck(self, record.name)
        succession.inherit(self, record)

    # Probes and operators.

    def probed(self, name: str, result: ProbeResult) -> None:
        """Take over what a probe found out."""
        record = self.records.get(name)
        if record is None or record.found is None:
            return
        if result.reachable:
            self._reached(record, result)
        else:
            record.set_condition(REACHABLE, "False", result.reason, result.message)
            record.set_condition(READY, "Unknown", "Unreachable", "its readiness is not known")
            record.unreachable_since = record.unreachable_since or now()
        metrics.show_cluster(record)
        self.publish(record)
        self.note_refusal(record.provider, record.source, result)

    def note_refusal(self, provider: str, source: str, result: ProbeResult) -> None:
        """Have a source read again whose credentials a cluster does not take."""
        if result.reason in REFUSED:
            self.refused(provider, source)

    def _reached(self, record: Record, result: ProbeResult) -> None:
        if record.keeps_name and result.uid not in ("", record.uid):
            succession.misled(self, record, result.uid)
            return
        if not record.trusted and not result.uid:
            self.doubt(record, result.message or UNREAD_IDENTITY)
            return
        record.set_condition(REACHABLE, "True", "Answers", "")
        record.set_condition(READY, "True" if result.ready else "False", result.reason, result.message)
        record.unreachable_since = None
        # One that leaves is not expected back, whether it answers or not.
        record.forgotten = record.forgotten and record.leaving_since is not None
        record.kube_version = result.version or record.kube_version
        record.health.answered(result.sample_us or result.latency_us)
        if noticeable(record.latency_us, result.latency_us):
            record.latency_us = result.latency_us
        if result.uid:
            self._identified(record, result.uid)

    def _identified(self, record: Record, uid: str) -> None:
        """The access in force leads to this cluster."""
        assert record.found is not None
        if uid != record.uid:
            if record.uid:
                log.warning("cluster %s came back as another one (uid %s)", record.name, uid)
                record.engaged_at = now()
            record.uid = uid
            same.find(self, record)
            same.find_parts(self, record)
        record.verified = fingerprint(uid, record.found)
        waiting = record.waiting
        if waiting is not None and waiting.found.digest == record.found.digest:
            self.take(record, waiting.provider, waiting.found)

    def operated(self, name: str, operator: Operator) -> None:
        """Take over what the operator set on the `Cluster` object."""
        record = self.records.get(name)
        if record is not None and record.operator != operator:
            record.operator = operator
            self.publish(record)

    def forget(self, record: Record) -> None:
        """An operator says that the cluster will not come back."""
        record.forgotten = True
        log.warning("cluster %s is forgotten: an operator says that it will not come back", record.name)
        self.publish(record)

    # Telling.

    def publish(self, record: Record) -> None:
        """Stream it as it is now, and tell the keepers."""
        record.note_taints()
        if record.same_as:
            self.hub.remove(record.name)
        else:
            self.hub.put(to_proto(record), access_of(record))
        self.tell("changed", record)

    def tell(self, what: str, record: Record) -> None:
        """Call the method `what` of all keepers."""
        for keeper in self._keepers:
            getattr(keeper, what)(record)


def noticeable(old_us: int, new_us: int) -> bool:
    """Whether a latency differs enough to be told: by a quarter and a millisecond."""
    return old_us == 0 or abs(new_us - old_us) > max(old_us // 4, 1000)


def access_of(record: Record) -> Any | None:
    """Return the discovery_pb2.Access of a record."""
    if record.found is None:
        return None
    return discovery_pb2.Access(
        kubeconfig=msgspec.json.encode(record.found.kubeconfig), digest=record.found.digest
    )
