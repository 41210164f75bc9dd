"""Who has a cluster's name: the cluster that has it until it has left, then the one that waits for it.

Steps of the registry, each synchronous. `waiting` says what for.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

from services.discovery.health import Change
from services.discovery.probe import ProbeResult
from services.discovery.providers.base import Found, is_unread
from services.discovery.record import CONFIGURED, REACHABLE, READY, Record, is_part, now
from services.discovery.waiting import ANOTHER, Waiting, fingerprint

if TYPE_CHECKING:
    from services.discovery.registry import Registry

log = logging.getLogger(__name__)


def must_wait(record: Record, found: Found) -> bool:
    """Whether access is not used yet: it differs from what is known to lead to a cluster that may have copies."""
    if not record.keeps_name or is_part(found.place[1]):
        return False
    known = record.found or record.kept
    if known is not None and known.digest == found.digest:
        return record.misled
    if known is None and record.verified == fingerprint(record.uid, found):
        return False
    # Without the access of before it is streamed all the same, as not reached: those who know it keep their caches.
    return known is not None or record.leaving_since is not None


def let_wait(registry: Registry, record: Record, provider: str, found: Found) -> None:
    """A provider found other access under the record's name."""
    waiting = record.waiting
    if record.found is None and record.kept is not None:
        registry.use(record, record.kept)
        registry.tell("engaged", record)
    if waiting is None or waiting.found.digest != found.digest:
        log.info("cluster %s: other access (%s, %s) waits until it is known to lead there", record.name, found.server, found.source)
        wait_for(registry, record, Waiting(provider, found))
        return
    waiting.provider, waiting.found = provider, found
    registry.set_configured(record, "")
    registry.publish(record)


def wait_for(registry: Registry, record: Record, waiting: Waiting | None) -> None:
    """This is the other access under the record's name from now on; None: there is none any more."""
    record.waiting = waiting
    registry.tell("waits", record)
    registry.set_configured(record, record.found.problem if record.found is not None else "")
    registry.publish(record)


def withdraw(registry: Registry, provider: str, wanted: Container[str], unreadable: Sequence[str]) -> None:
    """A provider was read: what it does not have any more waits no longer."""
    for record in registry.records.values():
        waiting = record.waiting
        if waiting is None or waiting.provider != provider or record.name in wanted:
            continue
        if not is_unread(waiting.found.source, unreadable):
            wait_for(registry, record, None)


def identified(registry: Registry, name: str, digest: str, result: ProbeResult) -> None:
    """Take over what a probe found out about the access that waits under a name."""
    record = registry.records.get(name)
    waiting = record.waiting if record is not None else None
    if record is None or waiting is None or waiting.found.digest != digest:
        return
    if result.uid and result.uid == record.uid:
        record.verified = fingerprint(record.uid, waiting.found)
        registry.take(record, waiting.provider, waiting.found)
        registry.probed(name, result)
        return
    if result.uid:
        waiting.uid, waiting.problem = result.uid, ""
        _give_way(registry, record)
    else:
        waiting.problem = result.message or result.reason
        registry.set_configured(record, "")
    registry.publish(record)
    registry.note_refusal(waiting.provider, waiting.found.source, result)


def misled(registry: Registry, record: Record, uid: str) -> None:
    """Another cluster answers with the access in force: what was made on this one may run on, nobody can tell."""
    assert record.found is not None
    known = f"another cluster (uid {uid}) answers there now; this one has uid {record.uid}"
    if record.set_condition(REACHABLE, "False", "AnotherCluster", known):
        log.warning("cluster %s: %s", record.name, known)
    record.set_condition(READY, "Unknown", "Unreachable", "its readiness is not known")
    record.unreachable_since = record.unreachable_since or now()
    record.verified = ANOTHER
    if record.waiting is None and record.leaving_since is None:
        record.waiting = Waiting(record.provider, record.found)
    if record.waiting is not None and record.waiting.found.digest == record.found.digest:
        record.waiting.uid = uid
        _give_way(registry, record)


def _give_way(registry: Registry, record: Record) -> None:
    """Another cluster has its name: it leaves."""
    if record.leaving_since is None:
        registry.leave(record, "another cluster has its name")
    registry.set_configured(record, "")


def inherit(registry: Registry, record: Record) -> None:
    """The record has left: who waits for its name has it now."""
    waiting = record.waiting
    if waiting is None:
        return
    heir = registry.records[record.name] = Record(record.name, waiting.provider, waiting.found.source, uid=waiting.uid)
    heir.verified = fingerprint(heir.uid, waiting.found) if heir.uid else None
    heir.operator = record.operator
    if record.left_behind:
        text = f"on the cluster that had this name before (uid {record.uid}): {record.left_behind}"
        heir.health.began([*record.health.changes, Change(now(), CONFIGURED, "False", "LeftBehind", text)])
    registry.take(heir, waiting.provider, waiting.found)
