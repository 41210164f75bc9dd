"""Statuses up: sums of copies, and what a Job's status may become."""

from __future__ import annotations

from typing import Any

import pytest

from services.reconciler import job_status, status_sums
from services.reconciler.status_sums import Copy

START, LATER, END = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z", "2026-01-01T00:02:00Z"


def rs(desired: int, generation: int = 3, seen: int = 2) -> dict[str, Any]:
    return {
        "metadata": {"generation": generation}, "spec": {"replicas": desired},
        "status": {"replicas": 0, "observedGeneration": seen},
    }  # fmt: skip


def counts(n: int, available: int) -> dict[str, int]:
    return {"replicas": n, "fullyLabeledReplicas": n, "readyReplicas": available, "availableReplicas": available}


def test_replicaset_sums_and_observes() -> None:
    copies = [Copy("east", counts(2, 2), 2, current=True), Copy("west", counts(2, 1), 2, current=True)]
    assert status_sums.replicaset(rs(4), copies) == {
        "replicas": 4, "fullyLabeledReplicas": 4, "readyReplicas": 3, "availableReplicas": 3, "observedGeneration": 3,
    }  # fmt: skip


def test_replicaset_is_not_observed_while_one_copy_is_behind_or_ungranted() -> None:
    behind = [Copy("east", counts(2, 2), 2, current=True), Copy("west", counts(1, 1), 2, current=False)]
    assert status_sums.replicaset(rs(4), behind)["observedGeneration"] == 2
    short = [Copy("east", counts(2, 2), 2, current=True)]
    assert status_sums.replicaset(rs(4), short)["observedGeneration"] == 2


def test_pods_above_the_grant_are_not_available() -> None:
    copies = [Copy("east", counts(2, 2), 1, current=False), Copy("west", counts(2, 2), 2, current=True)]
    status = status_sums.replicaset(rs(3), copies)
    assert (status["replicas"], status["availableReplicas"]) == (4, 3)


def test_a_duplicate_counts_what_every_cluster_has() -> None:
    both = [Copy("east", counts(3, 3), 3, current=True), Copy("west", counts(3, 1), 3, current=True)]
    assert status_sums.duplicated(rs(3), both, 2) == {
        "replicas": 3, "fullyLabeledReplicas": 3, "readyReplicas": 1, "availableReplicas": 1, "observedGeneration": 3,
    }  # fmt: skip
    assert "availableReplicas" not in status_sums.duplicated(rs(3), both[:1], 2), "west has none yet"
    assert status_sums.duplicated(rs(0), [], 2) == {"replicas": 0, "observedGeneration": 3}


def test_replicaset_of_zero_is_observed_without_copies() -> None:
    assert status_sums.replicaset(rs(0), []) == {"replicas": 0, "observedGeneration": 3}


def test_failures_name_their_cluster() -> None:
    failing = {**counts(0, 0), "conditions": [{"type": "ReplicaFailure", "status": "True", "message": "quota"}]}
    status = status_sums.replicaset(rs(1), [Copy("east", failing, 1, current=True)])
    assert status["conditions"][0]["message"] == "east: quota"


def test_daemonset_is_observed_only_with_every_placed_copy() -> None:
    host = {"metadata": {"generation": 1}, "spec": {}}
    one = {"currentNumberScheduled": 2, "desiredNumberScheduled": 2, "numberReady": 2, "numberAvailable": 2}
    partial = status_sums.daemonset(host, [Copy("east", one, 0, current=True)], placed=2)
    assert partial.get("observedGeneration", 0) == 0
    both = status_sums.daemonset(host, [Copy("east", one, 0, current=True), Copy("west", one, 0, current=True)], placed=2)
    assert (both["observedGeneration"], both["desiredNumberScheduled"]) == (1, 4)


def true(kind: str, time: str = END, **more: str) -> dict[str, Any]:
    return {"type": kind, "status": "True", "lastTransitionTime": time, **more}


def job(status: dict[str, Any], *, suspend: bool = False, **annotations: str) -> dict[str, Any]:
    return {"metadata": {"annotations": annotations}, "spec": {"suspend": suspend}, "status": status}


def accepts(old: dict[str, Any], new: dict[str, Any], *, suspended: bool = False) -> list[str]:
    """What Kubernetes' validation of a Job's status update (batch/validation, 1.34) would say against it."""
    def has(status: dict[str, Any], kind: str, value: str = "True") -> bool:
        return any(c["type"] == kind and c["status"] == value for c in status.get("conditions", []))

    end = has(new, "Complete") or has(new, "Failed")
    rules = {
        "complete and failed": has(new, "Complete") and has(new, "Failed"),
        "complete and failure target": has(new, "Complete") and has(new, "FailureTarget"),
        "criteria and failed": has(new, "SuccessCriteriaMet") and has(new, "Failed"),
        "criteria and target": has(new, "SuccessCriteriaMet") and has(new, "FailureTarget"),
        "completionTime without Complete": "completionTime" in new and not has(new, "Complete"),
        "Complete without completionTime": has(new, "Complete") and not new.get("completionTime"),
        "completed before start": new.get("completionTime", "z") < new.get("startTime", ""),
        "Failed without FailureTarget": has(new, "Failed") and not has(new, "FailureTarget"),
        "Complete without criteria": has(new, "Complete") and not has(new, "SuccessCriteriaMet"),
        "finished with pods": end and any(new.get(f) for f in ("active", "terminating")),
        "finished without start": end and not new.get("startTime"),
        "finished with uncounted": end and bool(new.get("uncountedTerminatedPods")),
        "more ready than active": new.get("ready", 0) > new.get("active", 0),
        "failed fell": new.get("failed", 0) < old.get("failed", 0),
        "succeeded fell": new.get("succeeded", 0) < old.get("succeeded", 0),
        "start changed": old.get("startTime") not in (None, new.get("startTime")) and not suspended
        and not (has(old, "Suspended") and has(new, "Suspended", "False")),
        **{f"{k} was unset": has(old, k) and not has(new, k)
           for k in ("Failed", "Complete", "FailureTarget", "SuccessCriteriaMet")},
    }  # fmt: skip
    return [name for name, broken in rules.items() if broken]


DONE = {
    "startTime": START, "completionTime": END, "succeeded": 1, "ready": 0, "terminating": 0,
    "uncountedTerminatedPods": {}, "conditions": [true("SuccessCriteriaMet"), true("Complete")],
}  # fmt: skip
OLD_DONE = {"startTime": START, "completionTime": END, "succeeded": 1, "active": 1, "conditions": [true("Complete")]}
OLD_FAILED = {"startTime": START, "failed": 1, "conditions": [true("Failed", reason="BackoffLimitExceeded")]}
RUNNING = {"startTime": LATER, "active": 1, "ready": 1, "terminating": 0}
RESUMED = {**RUNNING, "conditions": [{"type": "Suspended", "status": "False", "lastTransitionTime": LATER}]}
PAUSED = {"conditions": [true("Suspended")]}


@pytest.mark.parametrize("old", [{}, {"startTime": START, "active": 1}, {"startTime": START, "failed": 2},
                                 {"startTime": START, "succeeded": 1}, {"startTime": START, **PAUSED}])
@pytest.mark.parametrize("copy", [{}, RUNNING, DONE, OLD_DONE, OLD_FAILED, RESUMED, PAUSED,
                                  {"startTime": LATER, "active": 1, "ready": 2}])
@pytest.mark.parametrize("suspended", [False, True])
def test_every_status_is_one_that_kubernetes_accepts(
    old: dict[str, Any], copy: dict[str, Any], suspended: bool
) -> None:
    host = job(old, suspend=suspended)
    new = job_status.from_copy(host, job(copy))
    assert accepts(old, new, suspended=suspended) == []


def test_a_finished_job_is_copied_whole() -> None:
    assert job_status.from_copy(job({"startTime": START, "active": 1}), job(DONE)) == DONE


def test_a_finished_host_job_never_changes() -> None:
    assert job_status.from_copy(job(DONE), job(RUNNING)) == DONE
    assert job_status.without_copy(job(DONE)) == DONE


def test_old_members_get_what_the_host_requires() -> None:
    status = job_status.from_copy(job({"startTime": START}), job(OLD_FAILED))
    assert [c["type"] for c in status["conditions"]] == ["FailureTarget", "Failed"]
    assert status["conditions"][0]["reason"] == "BackoffLimitExceeded"


def test_over_attempts_start_stays_and_failures_add_up() -> None:
    host = job({"startTime": START, "failed": 2, "succeeded": 1})
    copy = job({**RUNNING, "failed": 1}, **{"reclock.dev/failed-base": "2"})
    status = job_status.from_copy(host, copy)
    assert (status["startTime"], status["failed"], status["succeeded"]) == (START, 3, 1)


def test_suspended_without_a_copy_says_so_and_nothing_is_active() -> None:
    status = job_status.without_copy(job({"startTime": START, "active": 2, "ready": 1}, suspend=True))
    assert not {"active", "ready", "startTime"} & status.keys()
    assert status["conditions"][0]["type"] == "Suspended" and status["conditions"][0]["status"] == "True"


@pytest.mark.parametrize(("text", "base"), [("3", 3), ("", 0), ("three", 0), ("-1", 0), ("²", 0), ("9" * 5000, 0)])
def test_a_base_that_somebody_edited_stops_nothing(text: str, base: int) -> None:
    copy = {"metadata": {"annotations": {"reclock.dev/failed-base": text}}, "status": {"failed": 1}}
    assert job_status.base_of(copy) == base
    assert job_status.from_copy(job({}), copy)["failed"] == base + 1
