"""What a worker may answer."""

from __future__ import annotations

from collections.abc import Mapping

from reclock.reconciler.v1 import reconciler_pb2 as pb
from services.reconciler.work.mapping import is_name
from services.reconciler.work.spec import PRIORITY, SourceSpec, seconds

REQUEUE_MAX = 365 * 86400.0
DUE_NAME_MAX = 512
"""Longest name of a request that a worker tells of: it may put more into it than the name of an object."""


def check_done(done: pb.Done) -> tuple[str, str] | None:
    """(field, what is wrong) of a Done; None when nothing is."""
    if done.HasField("requeue_after"):
        after = seconds(done.requeue_after)
        if not 0 <= after <= REQUEUE_MAX:
            return "requeue_after", f"{after:g} s: allowed is 0 to {REQUEUE_MAX:g} s"
        if done.error:
            return "requeue_after", "not together with an error: its back-off says when"
    if done.terminal and not done.error:
        return "terminal", "only together with an error"
    if done.HasField("priority") and abs(done.priority) > PRIORITY:
        return "priority", f"{done.priority}: allowed is -{PRIORITY} to {PRIORITY}"
    return None


def check_key(key: pb.MappedKey) -> tuple[str, str] | None:
    """(field, what is wrong) of a key; None when nothing is."""
    if not is_name(key.name):
        return "name", f"{key.name!r} is no name of an object"
    if key.namespace and not is_name(key.namespace):
        return "namespace", f"{key.namespace!r} is no name of a namespace"
    if "/" in key.source:
        return "source", f"{key.source!r} is no name of a source"
    if key.HasField("priority") and abs(key.priority) > PRIORITY:
        return "priority", f"{key.priority}: allowed is -{PRIORITY} to {PRIORITY}"
    return None


def check_due(key: pb.DueKey, channels: Mapping[str, SourceSpec]) -> tuple[str, str] | None:
    """(field, what is wrong) of a key of Due; None when nothing is."""
    if not 1 <= len(key.name) <= DUE_NAME_MAX or "/" in key.name or not key.name.isprintable():
        return "name", f"{key.name!r}: 1 to {DUE_NAME_MAX} printable characters, no '/'"
    if key.namespace and not is_name(key.namespace):
        return "namespace", f"{key.namespace!r} is no name of a namespace"
    if key.source not in channels:
        return "source", f"{key.source!r}: the controller has no such source with channel"
    if key.HasField("priority") and abs(key.priority) > PRIORITY:
        return "priority", f"{key.priority}: allowed is -{PRIORITY} to {PRIORITY}"
    if not 0 <= (after := seconds(key.after)) <= REQUEUE_MAX:
        return "after", f"{after:g} s: allowed is 0 to {REQUEUE_MAX:g} s"
    return None
