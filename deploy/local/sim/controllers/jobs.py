"""Jobs: pods until enough have succeeded, or too many failed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from deploy.local.sim.controllers import pods
from deploy.local.sim.controllers.manager import Controller
from deploy.local.sim.controllers.replicasets import owner_keys
from deploy.local.sim.store import Change, Collection
from deploy.local.sim.timers import parse_timestamp
from deploy.local.sim.types import Object

_JOBS = "jobs.batch"
_TRACKING = "batch.kubernetes.io/job-tracking"


class Jobs(Controller):
    watches = (_JOBS, "pods")

    def keys_of(self, collection: Collection, change: Change) -> Iterable[str]:
        if collection.name == _JOBS:
            return () if change.kind == "DELETED" else (change.state.key,)
        return owner_keys(change, "Job")

    def reconcile(self, key: str) -> None:
        job = self.find(_JOBS, key)
        if job is None:
            return
        mine = pods.owned_pods(self, job["metadata"]["uid"])
        self._release(mine)
        status = dict(job.get("status") or {})
        if _finished(status) or job["metadata"].get("deletionTimestamp"):
            self._clean_up(key, job, status)
            return
        self._count(key, job, mine, status)
        succeeded, failed = status.get("succeeded", 0), status.get("failed", 0)
        spec = job["spec"]
        wanted = spec.get("completions")
        if spec.get("suspend"):
            self._suspend(mine, status)
        elif failed > spec.get("backoffLimit", 6):
            self._end(
                mine, status, "Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit"
            )
        elif succeeded >= (wanted if wanted is not None else 1) and not status.get("active"):
            self._end(
                mine, status, "Complete", "CompletionsReached", "Reached expected number of succeeded pods"
            )
        else:
            self._start(job, mine, status)
        if self.state(_JOBS, key) is not None:
            self.set_status(_JOBS, key, status)

    def _count(self, key: str, job: Object, mine: dict[str, Object], status: dict[str, Any]) -> None:
        phases = [pods.phase(pod) for pod in mine.values()]
        for name, value in (("succeeded", phases.count("Succeeded")), ("failed", phases.count("Failed"))):
            if value:
                status[name] = max(value, status.get(name, 0))
        active = [pod for pod in mine.values() if pods.is_active(pod)]
        _put(status, "active", len(active))
        status["ready"] = sum(1 for pod in active if pods.is_ready(pod))
        status["terminating"] = sum(1 for pod in mine.values() if pod["metadata"].get("deletionTimestamp"))
        status.setdefault("uncountedTerminatedPods", {})
        if not job["spec"].get("suspend"):
            status.setdefault("startTime", self.core.now())

    def _start(self, job: Object, mine: dict[str, Object], status: dict[str, Any]) -> None:
        spec, meta = job["spec"], job["metadata"]
        active = status.get("active", 0)
        wanted = spec.get("parallelism", 1)
        if spec.get("completions") is not None:
            wanted = min(wanted, spec["completions"] - status.get("succeeded", 0))
        elif status.get("succeeded", 0):
            wanted = active
        indexed = spec.get("completionMode") == "Indexed"
        made = 0
        for _ in range(wanted - active):
            pod = pods.from_template(job, "Job", "batch/v1", generateName=f"{meta['name']}-")
            pod["metadata"]["finalizers"] = [_TRACKING]
            if indexed:
                index = _free_index({**mine, **pods.owned_pods(self, meta["uid"])})
                pod["metadata"].setdefault("annotations", {})["batch.kubernetes.io/job-completion-index"] = (
                    str(index)
                )
                pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] = str(index)
                pod["metadata"]["generateName"] = f"{meta['name']}-{index}-"
            if self.make("pods", meta["namespace"], pod) is None:
                break
            made += 1
        for pod_key in [k for k, p in mine.items() if pods.is_active(p)][: max(0, active - wanted)]:
            self.remove("pods", pod_key)
        _put(status, "active", active + made if wanted >= active else wanted)

    def _suspend(self, mine: dict[str, Object], status: dict[str, Any]) -> None:
        for pod_key, pod in mine.items():
            if pods.is_active(pod):
                self.remove("pods", pod_key)
        status.pop("startTime", None)
        _put(status, "active", 0)
        self._condition(status, "Suspended", "JobSuspended", "Job suspended")

    def _end(
        self, mine: dict[str, Object], status: dict[str, Any], kind: str, reason: str, message: str
    ) -> None:
        for pod_key, pod in mine.items():
            if pods.is_active(pod):
                self.remove("pods", pod_key)
        _put(status, "active", 0)
        status["ready"] = 0
        if kind == "Complete":
            self._condition(status, "SuccessCriteriaMet", reason, message)
            status["completionTime"] = self.core.now()
        else:
            self._condition(status, "FailureTarget", reason, message)
        self._condition(status, kind, reason, message)

    def _condition(self, status: dict[str, Any], kind: str, reason: str, message: str) -> None:
        conditions = [c for c in status.get("conditions") or () if c["type"] != kind]
        before = next((c for c in status.get("conditions") or () if c["type"] == kind), None)
        now = self.core.now()
        made = {
            "type": kind,
            "status": "True",
            "lastProbeTime": now,
            "lastTransitionTime": now,
            "reason": reason,
            "message": message,
        }
        status["conditions"] = [*conditions, before or made]

    def _release(self, mine: dict[str, Object]) -> None:
        """Takes the tracking finalizer off pods that are done or going: they have been counted."""
        for key, pod in mine.items():
            finalizers = pod["metadata"].get("finalizers") or []
            if _TRACKING in finalizers and not pods.is_active(pod):
                self.change("pods", key, _untracked)

    def _clean_up(self, key: str, job: Object, status: dict[str, Any]) -> None:
        after = job["spec"].get("ttlSecondsAfterFinished")
        if after is None or job["metadata"].get("deletionTimestamp"):
            return
        ended = max(parse_timestamp(c["lastTransitionTime"]) for c in status["conditions"])
        left = ended + after - self.core.timers.now()
        if left <= 0:
            self.remove(_JOBS, key)
        else:
            self.later(left, key)


def _finished(status: dict[str, Any]) -> bool:
    return any(
        c["type"] in ("Complete", "Failed") and c["status"] == "True" for c in status.get("conditions") or ()
    )


def _put(status: dict[str, Any], name: str, value: int) -> None:
    if value:
        status[name] = value
    else:
        status.pop(name, None)


def _untracked(pod: Object) -> Object:
    meta = pod["metadata"]
    meta["finalizers"] = [name for name in meta["finalizers"] if name != _TRACKING]
    return pod


def _free_index(mine: dict[str, Object]) -> int:
    taken = {
        int((pod["metadata"].get("annotations") or {}).get("batch.kubernetes.io/job-completion-index", -1))
        for pod in mine.values()
        if pods.phase(pod) != "Failed"
    }
    index = 0
    while index in taken:
        index += 1
    return index
