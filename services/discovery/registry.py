"""The fleet: merges what providers find, probes say and operators set; tells the stream and the keepers.

Rules: engaging is idempotent and waits for no cluster; changed credentials or server re-engage in place; a
source that cannot be read keeps its last clusters; nothing leaves before its provider's first complete reading;
a name, and a cluster (by the uid of kube-system), belongs to who had it first. A cluster that the reconciler
follows leaves in two steps: first it is *leaving* (its access is kept, for what Reclock made there to be removed),
then released. One that comes back meanwhile is engaged in place, as if nothing had been.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, Protocol

import msgspec

from reclock.discovery.v1 import discovery_pb2
from services.discovery import metrics
from services.discovery.hub import Hub
from services.discovery.probe import ProbeResult
from services.discovery.providers.base import Found, Problem, Reading
from services.discovery.record import (
    CONFIGURED,
    REACHABLE,
    READY,
    Operator,
    Record,
    now,
    to_proto,
)  # fmt: skip

log = logging.getLogger(__name__)

LEAVING = (
    "no provider has it any more; its access is kept until what Reclock made there is gone"
    " (`reclock forget` moves its work at once)"
)


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

    def disengaged(self, record: Record) -> None:
        """It left."""


class Registry:
    """Owned by the event loop; all methods are synchronous, so each is one step for everybody else."""

    def __init__(self, hub: Hub, providers: Iterable[str]) -> None:
        self.hub = hub
        self.records: dict[str, Record] = {}
        self._providers = set(providers)
        self._read: set[str] = set()
        self._problems: dict[str, dict[tuple[str, str], datetime]] = {}
        self._clashes: dict[str, list[Problem]] = {}
        self._keepers: list[Keeper] = []
        self.refused: Callable[[str, str], None] = lambda provider, source: None
        """Told (provider, source) when a cluster does not take the credentials that were found there."""

    def add_keeper(self, keeper: Keeper) -> None:
        """Add a keeper before anything is restored or read."""
        self._keepers.append(keeper)

    def holders(self, provider: str) -> dict[str, str]:
        """Name -> source of the provider's clusters."""
        return {r.name: r.source for r in self.records.values() if r.provider == provider}

    def problems(self) -> Iterator[tuple[str, str, str, datetime]]:
        """Yield (provider, source, message, since) of what is wrong with sources."""
        for provider, known in sorted(self._problems.items()):
            for (source, message), since in sorted(known.items()):
                yield provider, source, message, since

    def unread(self) -> list[str]:
        """Providers without a complete reading so far."""
        return sorted(self._providers - self._read)

    # What was known before.

    def restore(self, record: Record) -> None:
        """Take what a keeper has kept; what was found or probed meanwhile is newer and wins."""
        mine = self.records.get(record.name)
        if mine is None:
            if not self.hub.complete.is_set():
                self.records[record.name] = record
                if record.leaving_since is not None:
                    self._restore_leaving(record)
            return
        if mine.uid and mine.uid != record.uid:
            return
        mine.uid = mine.uid or record.uid
        mine.kube_version = mine.kube_version or record.kube_version
        mine.held = mine.held or record.held
        mine.health.began(record.health.changes)
        if record.engaged_at and (mine.engaged_at is None or record.engaged_at < mine.engaged_at):
            mine.engaged_at = record.engaged_at
        if not mine.is_true(REACHABLE) and record.unreachable_since:
            ours = mine.unreachable_since or record.unreachable_since
            mine.unreachable_since = min(ours, record.unreachable_since)
            mine.forgotten = mine.forgotten or record.forgotten
        self._publish(mine)

    def _restore_leaving(self, record: Record) -> None:
        """No provider will bring it: it is streamed as it was; without access to those who have theirs still."""
        if record.kept is not None:
            record.found = record.kept
            self._tell("engaged", record)
        self._publish(record)

    # Providers.

    def reading(self, provider: str, reading: Reading) -> None:
        """Compare a reading with what is known."""
        clashes: list[Problem] = []
        wanted: dict[str, Found] = {}
        for found in reading.clusters:
            holder = self.records.get(found.name)
            if holder is not None and holder.provider != provider and self._holds(holder):
                clashes.append(Problem(
                    found.source,
                    f"the name {found.name!r} is taken by {holder.provider} ({holder.source}); it is left out",
                ))  # fmt: skip
            elif found.name in wanted:
                clashes.append(Problem(found.source, f"the name {found.name!r} is found twice; left out"))
            else:
                wanted[found.name] = found
        if reading.complete:
            self._read.add(provider)
        for record in [r for r in self.records.values() if r.provider == provider and r.name not in wanted]:
            if any(record.source.startswith(source) for source in reading.unreadable):
                self._set_configured(record, "its source cannot be read now; this is what was known last")
                self._publish(record)
            else:
                self._leave(record, "no longer in its source")
        for found in wanted.values():
            self._engage(provider, found)
        self._note_problems(provider, [*reading.problems, *clashes])
        self._complete()

    def _holds(self, record: Record) -> bool:
        """Whether a record's name is taken: not by one that is leaving, or whose provider is not configured."""
        return record.provider in self._providers and record.leaving_since is None

    def _complete(self) -> None:
        if self.hub.complete.is_set() or not self._providers <= self._read:
            return
        for record in [r for r in self.records.values() if r.provider not in self._providers]:
            self._leave(record, f"its provider {record.provider} is no longer configured")
        self.hub.complete.set()
        log.info("all providers have read their sources: %d clusters", len(self.records))

    def _note_problems(self, provider: str, problems: Iterable[Problem]) -> None:
        before = self._problems.get(provider, {})
        known: dict[tuple[str, str], datetime] = {}
        for problem in problems:
            key = (problem.source, problem.message)
            known[key] = before.get(key) or now()
            if key not in before:
                log.warning("%s: %s: %s", provider, problem.source, problem.message)
        for source, message in set(before) - set(known):
            log.info("%s: %s: no longer so: %s", provider, source, message)
        self._problems[provider] = known
        metrics.SOURCE_PROBLEMS.labels(provider).set(len(known))
        oldest = min(known.values()).timestamp() if known else 0
        metrics.SOURCE_PROBLEMS_SINCE.labels(provider).set(oldest)

    def _engage(self, provider: str, found: Found) -> None:
        record = self.records.get(found.name)
        fresh = record is None or record.found is None
        if record is None:
            record = self.records[found.name] = Record(found.name, provider, found.source)
        old = record.found
        record.provider, record.source, record.server = provider, found.source, found.server
        record.found = found
        record.place = found.place
        if record.leaving_since is not None:
            log.info("cluster %s is back before it had left: nothing of it is lost", record.name)
            record.leaving_since, record.forgotten = None, False
        record.engaged_at = record.engaged_at or now()
        self._set_configured(record, found.problem)
        if REACHABLE not in record.conditions:
            record.set_condition(REACHABLE, "Unknown", "NotProbedYet", "no probe has ended yet")
            record.set_condition(READY, "Unknown", "NotProbedYet", "no probe has ended yet")
        if fresh and not record.uid:
            # The same address is the same cluster: no need to show it until its first probe says so.
            record.uid = next((r.uid for r in self.records.values() if r is not record and r.place == found.place), "")
        self._find_same(record)
        if fresh:
            self._find_parts(record)
            self._recheck(record.name)
            log.info("cluster %s engaged (%s, %s)", record.name, record.server, record.source)
            metrics.ENGAGED.labels(provider).inc()
        elif old is not None and old.digest != found.digest:
            log.info("cluster %s: its access changed, engaged anew in place", record.name)
        if fresh or old is None or old.digest != found.digest:
            self._tell("engaged", record)
        self._publish(record)

    def _set_configured(self, record: Record, problem: str) -> None:
        if record.leaving_since is not None:
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
            self._tell("changed", record)

    def _leave(self, record: Record, reason: str) -> None:
        """No provider has it any more: it goes at once where there can be no copies, else when it is released."""
        if record.leaving_since is not None:
            return
        if not record.held or record.same_as or not record.uid:  # one that was never reached has nothing of ours
            self._disengage(record, reason)
            return
        record.leaving_since = now()
        log.warning("cluster %s is leaving: %s; its access is kept until its copies are gone", record.name, reason)
        if record.found is None and record.kept is not None:
            record.found = record.kept
            self._tell("engaged", record)
        self._set_configured(record, "")
        self._publish(record)

    def release(self, record: Record, left_behind: str = "") -> None:
        """Its copies are gone, or have to be left behind (what, for people): it leaves."""
        record.left_behind = left_behind
        self._disengage(record, f"left behind there: {left_behind}" if left_behind else "nothing of ours is left there")

    def release_overdue(self, limit: float) -> None:
        """Release what has been leaving for more than `limit` seconds: nobody says how its copies are."""
        for record in list(self.records.values()):
            if record.leaving_since is not None and (now() - record.leaving_since).total_seconds() > limit:
                self.release(record, f"unknown: nobody reported on it for {limit:g} s")

    def _disengage(self, record: Record, reason: str) -> None:
        del self.records[record.name]
        log.info("cluster %s disengaged: %s", record.name, reason)
        self.hub.remove(record.name)
        metrics.forget_cluster(record.name)
        self._tell("disengaged", record)
        self._recheck(record.name)

    def _recheck(self, name: str) -> None:
        """Look again at those that are left out since they are the same as that one."""
        for other in self.records.values():
            if other.same_as == name:
                self._find_same(other)
                self._publish(other)
                if not other.same_as:
                    self._find_parts(other)

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
        self._publish(record)
        if result.reason in REFUSED:
            self.refused(record.provider, record.source)

    def _reached(self, record: Record, result: ProbeResult) -> None:
        record.set_condition(REACHABLE, "True", "Answers", "")
        record.set_condition(READY, "True" if result.ready else "False", result.reason, result.message)
        record.unreachable_since = None
        # One that leaves is not expected back, whether it answers or not.
        record.forgotten = record.forgotten and record.leaving_since is not None
        record.kube_version = result.version or record.kube_version
        record.health.answered(result.sample_us or result.latency_us)
        if noticeable(record.latency_us, result.latency_us):
            record.latency_us = result.latency_us
        if result.uid and result.uid != record.uid:
            if record.uid:
                log.warning("cluster %s came back as another one (uid %s)", record.name, result.uid)
                record.engaged_at = now()
            record.uid = result.uid
            self._find_same(record)
            self._find_parts(record)

    def _find_same(self, record: Record) -> None:
        """Note whether another record is the same cluster, or all of it: shown twice, its pods would count twice.

        Of two that are the same the earlier one counts, of a cluster and a part of it the whole.
        """
        whole = record.place[1].of if record.place is not None else ""
        uids = {record.uid, whole} - {""}
        same = [
            other for other in self.records.values()
            if other.uid in uids and other is not record and not other.same_as and _covers(other, record, whole)
        ] if uids else []  # fmt: skip
        before = record.same_as
        record.same_as = same[0].name if same else ""
        if record.same_as != before:
            self._set_configured(record, record.found.problem if record.found is not None else "")
            if record.same_as:
                log.warning("cluster %s is the same cluster as %s, or a part of it: left out", record.name, record.same_as)

    def _find_parts(self, record: Record) -> None:
        """The record's uid became known: parts of it that are there already are left out."""
        for other in self.records.values() if record.uid else ():
            if other.place is not None and other.place[1].of == record.uid:
                self._find_same(other)
                self._publish(other)

    def operated(self, name: str, operator: Operator) -> None:
        """Take over what the operator set on the `Cluster` object."""
        record = self.records.get(name)
        if record is not None and record.operator != operator:
            record.operator = operator
            self._publish(record)

    def forget(self, record: Record) -> None:
        """An operator says that the cluster will not come back."""
        record.forgotten = True
        log.warning("cluster %s is forgotten: an operator says that it will not come back", record.name)
        self._publish(record)

    # Telling.

    def _publish(self, record: Record) -> None:
        if record.same_as:
            self.hub.remove(record.name)
        else:
            self.hub.put(to_proto(record), access_of(record))
        self._tell("changed", record)

    def _tell(self, what: str, record: Record) -> None:
        for keeper in self._keepers:
            getattr(keeper, what)(record)


def _covers(other: Record, record: Record, whole: str) -> bool:
    """Whether `other`, whose uid is the record's or that of the record's whole, is the record's cluster or all of it.

    The namespace kube-system has the uid by which its whole cluster goes, and is not the whole.
    """
    part, others = (one.place is not None and bool(one.place[1].namespace) for one in (record, other))
    return (part == others and other.uid == record.uid) or (not others and other.uid == whole)


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
