"""Plays the kubelets: pods start, run, complete, go; with delays that a human can watch, shorter or longer on request.

Pending -> (0.3 s) ContainerCreating -> (0.7 s) Running -> (2 to 3 s, unless restartPolicy is Always) Succeeded;
deleted -> (0.4 s) gone. Annotations, as in the kube engine: fleet.reclock.dev/start-delay and /run-time (durations as
"5s"), fleet.reclock.dev/exit-code ("1": it ends as Failed).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from deploy.local.sim.controllers.manager import Controller
from deploy.local.sim.deletes import Options
from deploy.local.sim.objects import decode
from deploy.local.sim.store import Change, Collection
from deploy.local.sim.timers import parse_timestamp
from deploy.local.sim.types import Object

CREATE_SECONDS, START_SECONDS, STOP_SECONDS = 0.3, 0.7, 0.4
RUN_SECONDS = (2.0, 3.0)
_ANNOTATION = "fleet.reclock.dev/"
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def duration(text: str) -> float | None:
    """Seconds of a Go duration (`5s`, `1m30s`); None when it is none."""
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


class Kubelet(Controller):
    """Keys are pods that are bound to a node. Each step is planned once and checks what it finds."""

    watches = ("pods",)
    speed = 1.0

    def __init__(self, manager: Any) -> None:
        super().__init__(manager)
        self._planned: dict[str, tuple[str, str]] = {}
        self._addresses = 0

    def rebuild(self) -> None:
        self._planned.clear()

    def keys_of(self, collection: Collection, change: Change) -> Iterable[str]:
        if change.kind == "DELETED":
            self._planned.pop(change.state.key, None)
            return ()
        return (change.state.key,) if b'"nodeName":' in change.state.raw else ()

    def reconcile(self, key: str) -> None:
        """Plans the step that the pod's state calls for."""
        state = self.state("pods", key)
        if state is None:
            return
        pod = decode(state.raw)
        if not pod["spec"].get("nodeName"):
            return
        step, seconds = self._next(pod)
        uid = pod["metadata"]["uid"]
        if step and self._planned.get(key) != (uid, step):
            self._planned[key] = (uid, step)
            self.core.timers.after(seconds * self.speed, lambda: self._do(key, uid, step))

    def _next(self, pod: Object) -> tuple[str, float]:
        meta, status = pod["metadata"], pod.get("status") or {}
        annotations = meta.get("annotations") or {}
        phase = status.get("phase", "Pending")
        if meta.get("deletionTimestamp"):
            return "stop", STOP_SECONDS
        if phase == "Pending" and not status.get("podIP"):
            return "create", CREATE_SECONDS
        if phase == "Pending":
            asked = duration(annotations.get(f"{_ANNOTATION}start-delay", ""))
            return "start", START_SECONDS if asked is None else asked
        if phase == "Running":
            asked = duration(annotations.get(f"{_ANNOTATION}run-time", ""))
            if asked is not None:
                return "end", asked
            if pod["spec"].get("restartPolicy") != "Always":
                return "end", self.core.random.uniform(*RUN_SECONDS)
        return "", 0.0

    def _do(self, key: str, uid: str, step: str) -> None:
        if self._planned.get(key) != (uid, step):
            return
        del self._planned[key]
        pod = self.find("pods", key)
        if pod is None or pod["metadata"]["uid"] != uid:
            return
        if step == "stop":
            self.remove("pods", key, Options(grace=0, uid=uid))
            return
        if self._next(pod)[0] != step:
            return
        status = {"create": self._created, "start": self._started, "end": self._ended}[step](pod)
        self.set_status("pods", key, status)

    def _created(self, pod: Object) -> Object:
        self._addresses += 1
        number = self._addresses
        address = f"10.{1 + number // 65536 % 250}.{number // 256 % 256}.{number % 256}"
        now = self.core.now()
        waiting = [
            {
                "name": container["name"],
                "state": {"waiting": {"reason": "ContainerCreating"}},
                "lastState": {},
                "ready": False,
                "restartCount": 0,
                "image": container["image"],
                "imageID": "",
                "started": False,
            }
            for container in pod["spec"]["containers"]
        ]
        return {
            **(pod.get("status") or {}),
            "phase": "Pending",
            "startTime": now,
            "hostIP": "127.0.0.1",
            "hostIPs": [{"ip": "127.0.0.1"}],
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": _conditions(pod, now, ready=False),
            "containerStatuses": waiting,
        }

    def _started(self, pod: Object) -> Object:
        now = self.core.now()
        status = pod["status"]
        for one in status["containerStatuses"]:
            one.update(
                state={"running": {"startedAt": now}},
                ready=True,
                started=True,
                containerID=f"sim://{pod['metadata']['uid']}/{one['name']}",
            )
        return {**status, "phase": "Running", "conditions": _conditions(pod, now, ready=True)}

    def _ended(self, pod: Object) -> Object:
        now = self.core.now()
        status = pod["status"]
        text = (pod["metadata"].get("annotations") or {}).get(f"{_ANNOTATION}exit-code", "0")
        code = int(text) if text.isdigit() else 0
        for one in status["containerStatuses"]:
            running = (one.get("state") or {}).get("running") or {}
            one.update(
                state={
                    "terminated": {
                        "exitCode": code,
                        "reason": "Error" if code else "Completed",
                        "startedAt": running.get("startedAt", now),
                        "finishedAt": now,
                        "containerID": one.get("containerID", ""),
                    }
                },
                ready=False,
                started=False,
            )
        phase = "Failed" if code else "Succeeded"
        return {**status, "phase": phase, "conditions": _conditions(pod, now, ready=False, done=not code)}


def _conditions(pod: Object, now: str, *, ready: bool, done: bool = False) -> list[dict[str, Any]]:
    """The pod's conditions; times stay where a condition stays as it was."""
    before = {c["type"]: c for c in (pod.get("status") or {}).get("conditions") or ()}
    word = "True" if ready else "False"
    wanted: dict[str, tuple[str, str]] = {
        "PodReadyToStartContainers": ("True", ""),
        "Initialized": ("True", "PodCompleted" if done else ""),
        "Ready": (word, "" if ready else ("PodCompleted" if done else "ContainersNotReady")),
        "ContainersReady": (word, "" if ready else ("PodCompleted" if done else "ContainersNotReady")),
        "PodScheduled": ("True", ""),
    }
    for gate in pod["spec"].get("readinessGates") or ():
        wanted[gate["conditionType"]] = (word, "")
    found = []
    for kind, (status, reason) in wanted.items():
        old = before.get(kind, {})
        since = old["lastTransitionTime"] if old.get("status") == status else now
        one = {"type": kind, "status": status, "lastProbeTime": None, "lastTransitionTime": since}
        if reason:
            one["reason"] = reason
        found.append(one)
    return found


def ready_since(pod: Object) -> float | None:
    """When the pod became Ready; None when it is not."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition["type"] == "Ready" and condition["status"] == "True":
            return parse_timestamp(condition["lastTransitionTime"])
    return None
