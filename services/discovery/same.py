"""Clusters that several sources name: shown twice, their pods would count twice. Steps of the registry, each synchronous."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from services.discovery.record import Record

if TYPE_CHECKING:
    from services.discovery.registry import Registry

log = logging.getLogger(__name__)


def find(registry: Registry, record: Record) -> None:
    """Note whether another record is the same cluster, or all of it.

    Of two that are the same the earlier one counts, of a cluster and a part of it the whole.
    """
    whole = record.place[1].of if record.place is not None else ""
    uids = {record.uid, whole} - {""}
    same = [
        other for other in registry.records.values()
        if other.uid in uids and other is not record and not other.same_as and _covers(other, record, whole)
    ] if uids else []  # fmt: skip
    before = record.same_as
    record.same_as = same[0].name if same else ""
    if record.same_as != before:
        registry.set_configured(record, record.found.problem if record.found is not None else "")
        if record.same_as:
            log.warning("cluster %s is the same cluster as %s, or a part of it: left out", record.name, record.same_as)


def find_parts(registry: Registry, record: Record) -> None:
    """The record's uid became known: parts of it that are there already are left out."""
    for other in registry.records.values() if record.uid else ():
        if other.place is not None and other.place[1].of == record.uid:
            find(registry, other)
            registry.publish(other)


def recheck(registry: Registry, name: str) -> None:
    """Look again at those that are left out since they are the same as that one."""
    for other in registry.records.values():
        if other.same_as == name:
            find(registry, other)
            registry.publish(other)
            if not other.same_as:
                find_parts(registry, other)


def _covers(other: Record, record: Record, whole: str) -> bool:
    """Whether `other`, whose uid is the record's or that of the record's whole, is the record's cluster or all of it.

    The namespace kube-system has the uid by which its whole cluster goes, and is not the whole.
    """
    part, others = (one.place is not None and bool(one.place[1].namespace) for one in (record, other))
    return (part == others and other.uid == record.uid) or (not others and other.uid == whole)
