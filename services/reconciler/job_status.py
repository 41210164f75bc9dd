"""Status of a host Job from its copy, within what the API server lets a Job's status become. Pure.

The rules are those of Kubernetes' own validation of a Job's status update: terminal conditions never go,
counters never fall, startTime is fixed while the Job is not suspended, and a Job ends only with
SuccessCriteriaMet (or FailureTarget) set, no active, terminating or uncounted pods, and a completionTime.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.common.kube.times import parse_time
from services.reconciler.names import FAILED_BASE
from services.reconciler.objects import annotations_of, count, now

Status = dict[str, Any]
Conditions = list[dict[str, Any]]

ENDS = {"Complete": "SuccessCriteriaMet", "Failed": "FailureTarget"}
"""Terminal condition -> the condition that must stand beside it."""
COUNTER_DIGITS = 9
"""What is longer is no int32."""
NOT_RUNNING = ("active", "ready", "terminating")


def _holds(conditions: Conditions, kind: str) -> bool:
    return any(entry.get("type") == kind and entry.get("status") == "True" for entry in conditions)


def finished(job: Mapping[str, Any]) -> str:
    """`Complete` or `Failed` once a Job has ended, else ""."""
    conditions = (job.get("status") or {}).get("conditions") or []
    return next((kind for kind in ENDS if _holds(conditions, kind)), "")


def failed_base(host: Mapping[str, Any]) -> int:
    """Pods that failed in attempts before the one that starts now."""
    return count(host.get("status") or {}, "failed")


def base_of(copy: Mapping[str, Any]) -> int:
    """Pods that had failed in attempts before this copy's; 0 where somebody made its annotation unreadable."""
    text = annotations_of(copy).get(FAILED_BASE) or "0"
    return int(text) if text.isascii() and text.isdigit() and len(text) <= COUNTER_DIGITS else 0


def without_copy(host: Mapping[str, Any]) -> Status:
    """Status of a Job that runs nowhere: nothing is active, and it says when it is suspended."""
    old: Status = dict(host.get("status") or {})
    if finished(host):
        return old
    status = {key: value for key, value in old.items() if key not in (*NOT_RUNNING, "uncountedTerminatedPods")}
    suspended = bool((host.get("spec") or {}).get("suspend"))
    conditions: Conditions = list(old.get("conditions") or [])
    if suspended:
        conditions = _suspended(conditions)
        status.pop("startTime", None)
    if conditions:
        status["conditions"] = conditions
    return status


def _suspended(conditions: Conditions) -> Conditions:
    if _holds(conditions, "Suspended"):
        return conditions
    time = now()
    entry = {
        "type": "Suspended", "status": "True", "reason": "JobSuspended", "message": "Job suspended",
        "lastProbeTime": time, "lastTransitionTime": time,
    }  # fmt: skip
    return [*(c for c in conditions if c.get("type") != "Suspended"), entry]


def from_copy(host: Mapping[str, Any], copy: Mapping[str, Any]) -> Status:
    """Status that the host Job gets from its copy; the old one unchanged where it has ended."""
    old: Status = dict(host.get("status") or {})
    if finished(host):
        return old
    new: Status = dict(copy.get("status") or {})
    conditions = _conditions(list(old.get("conditions") or []), list(new.get("conditions") or []))
    _start_time(host, old, new, conditions)
    new["failed"] = max(count(old, "failed"), base_of(copy) + count(new, "failed"))
    new["succeeded"] = _succeeded(host, old, new)
    end = next((kind for kind in ENDS if _holds(conditions, kind)), "")
    if end:
        _end(end, new, conditions)
    if end != "Complete":
        new.pop("completionTime", None)
    if "ready" in new:
        new["ready"] = min(count(new, "ready"), count(new, "active"))
    if conditions:
        new["conditions"] = conditions
    return {key: value for key, value in new.items() if value or key in ("ready", "terminating", "uncountedTerminatedPods")}


def _conditions(old: Conditions, new: Conditions) -> Conditions:
    """The copy's conditions, and those of the host that must never go."""
    kept = [
        entry for entry in old
        if entry.get("type") in ENDS.values() and entry.get("status") == "True" and not _holds(new, entry["type"])
    ]  # fmt: skip
    if not kept:
        return new
    names = {entry["type"] for entry in kept}
    against = {"SuccessCriteriaMet": {"FailureTarget", "Failed"}, "FailureTarget": {"SuccessCriteriaMet", "Complete"}}
    names |= {other for name in list(names) for other in against[name]}
    return [*kept, *(entry for entry in new if entry.get("type") not in names)]


def _start_time(host: Mapping[str, Any], old: Status, new: Status, conditions: Conditions) -> None:
    """Over attempts the first start stands; only suspending a Job resets it."""
    before = old.get("startTime")
    if before is None or before == new.get("startTime"):
        return
    if (host.get("spec") or {}).get("suspend") and "startTime" not in new:
        return
    was_suspended = _holds(list(old.get("conditions") or []), "Suspended")
    resumes = was_suspended and any(
        c.get("type") == "Suspended" and c.get("status") == "False" for c in conditions
    )
    if not resumes:
        new["startTime"] = before


def _succeeded(host: Mapping[str, Any], old: Status, new: Status) -> int:
    spec = host.get("spec") or {}
    elastic = spec.get("completionMode") == "Indexed" and spec.get("completions") == spec.get("parallelism")
    shown, current = count(old, "succeeded"), count(new, "succeeded")
    return current if elastic else max(shown, current)


def _end(end: str, new: Status, conditions: Conditions) -> None:
    """Make the end one that the API server accepts, whatever version the member has."""
    beside = ENDS[end]
    if not _holds(conditions, beside):
        final = next(c for c in conditions if c.get("type") == end)
        reason = "CompletionsReached" if end == "Complete" else final.get("reason", "")
        conditions.insert(0, {**final, "type": beside, "reason": reason})
    for field in NOT_RUNNING:
        if field in new:
            new[field] = 0
    new["uncountedTerminatedPods"] = {}
    if end == "Complete" and not new.get("completionTime"):
        final = next(c for c in conditions if c.get("type") == end)
        new["completionTime"] = final.get("lastTransitionTime") or now()
    new.setdefault("startTime", new.get("completionTime") or now())
    start, completion = parse_time(new["startTime"]), parse_time(new.get("completionTime"))
    if start and completion and completion < start:
        new["completionTime"] = new["startTime"]
