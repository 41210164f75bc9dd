"""Puts pods on nodes: those that fit, the emptiest first; what fits nowhere waits and says why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from deploy.local.sim.controllers.manager import Controller
from deploy.local.sim.controllers.nodes import is_ready, requests_of
from deploy.local.sim.objects import decode
from deploy.local.sim.quantity import cpu, memory
from deploy.local.sim.store import Change, Collection
from deploy.local.sim.subresources import bind
from deploy.local.sim.types import Object
from deploy.local.sim.validation import selects

_Use = tuple[str, int, int]
"""(node, millicores, bytes) of a pod that is bound."""


class Scheduler(Controller):
    """Keys are pods'. A change of nodes, or a pod that goes, has every waiting pod looked at again."""

    watches = ("pods", "nodes")

    def __init__(self, manager: Any) -> None:
        super().__init__(manager)
        self._used: dict[str, list[int]] = {}
        self._placed: dict[str, _Use] = {}
        self._waiting: dict[str, None] = {}

    def rebuild(self) -> None:
        self._used.clear()
        self._placed.clear()
        self._waiting.clear()

    def keys_of(self, collection: Collection, change: Change) -> Iterable[str]:
        key = change.state.key
        if collection.name == "nodes":
            return list(self._waiting)
        if change.kind == "DELETED":
            self._waiting.pop(key, None)
            return self._forget(key)
        pod = decode(change.state.raw)
        if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            return self._forget(key)
        node = pod["spec"].get("nodeName")
        if not node:
            return (key,)
        self._waiting.pop(key, None)
        if key not in self._placed:
            self._remember(key, node, pod["spec"])
        return ()

    def _remember(self, key: str, node: str, spec: dict[str, Any]) -> None:
        millicores, size = requests_of(spec)
        self._placed[key] = (node, millicores, size)
        used = self._used.setdefault(node, [0, 0, 0])
        used[0] += millicores
        used[1] += size
        used[2] += 1

    def _forget(self, key: str) -> Iterable[str]:
        placed = self._placed.pop(key, None)
        if placed is None:
            return ()
        used = self._used[placed[0]]
        used[0] -= placed[1]
        used[1] -= placed[2]
        used[2] -= 1
        return list(self._waiting)

    def reconcile(self, key: str) -> None:
        pod = self.find("pods", key)
        if pod is None or pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
            return
        if pod["spec"].get("schedulerName") != "default-scheduler" or pod["spec"].get("schedulingGates"):
            return
        reasons: dict[str, int] = {}
        best: tuple[float, str] | None = None
        wanted = requests_of(pod["spec"])
        nodes = self.core.store.collection("nodes")
        for name in nodes.each():
            node = nodes.live[name].object()
            why = self._why_not(pod["spec"], node, wanted)
            if why:
                reasons[why] = reasons.get(why, 0) + 1
                continue
            score = self._used.get(name, [0, 0, 0])[2]
            if best is None or (score, name) < best:
                best = (score, name)
        namespace, _, name = key.rpartition("/")
        if best is not None:
            bind(self.core, namespace, name, {"target": {"kind": "Node", "name": best[1]}})
        else:
            self._refuse(key, pod, reasons, len(nodes))

    def _why_not(self, spec: dict[str, Any], node: Object, wanted: tuple[int, int]) -> str:
        labels = node["metadata"].get("labels") or {}
        if node.get("spec", {}).get("unschedulable") or not is_ready(node):
            return "node(s) were unschedulable"
        if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
            return "node(s) didn't match Pod's node affinity/selector"
        if not _affinity(spec, labels, node["metadata"]["name"]):
            return "node(s) didn't match Pod's node affinity/selector"
        for taint in (node.get("spec") or {}).get("taints") or ():
            if taint["effect"] != "PreferNoSchedule" and not _tolerated(taint, spec.get("tolerations") or ()):
                shown = f"{{{taint['key']}: {taint.get('value', '')}}}"
                return f"node(s) had untolerated taint {shown}"
        return self._no_room(node, wanted)

    def _no_room(self, node: Object, wanted: tuple[int, int]) -> str:
        room = (node.get("status") or {}).get("allocatable") or {}
        used = self._used.get(node["metadata"]["name"], [0, 0, 0])
        if used[2] + 1 > memory(room.get("pods", 0)):
            return "Too many pods"
        if wanted[0] and used[0] + wanted[0] > cpu(room.get("cpu", 0)):
            return "Insufficient cpu"
        if wanted[1] and used[1] + wanted[1] > memory(room.get("memory", 0)):
            return "Insufficient memory"
        return ""

    def _refuse(self, key: str, pod: Object, reasons: Mapping[str, int], count: int) -> None:
        self._waiting[key] = None
        said = ", ".join(f"{number} {why}" for why, number in sorted(reasons.items()))
        message = (
            f"0/{count} nodes are available: {said}." if count else "no nodes available to schedule pods"
        )
        status = pod.get("status") or {}
        others = [c for c in status.get("conditions") or () if c["type"] != "PodScheduled"]
        before = [c for c in status.get("conditions") or () if c["type"] == "PodScheduled"]
        if before and before[0].get("message") == message:
            return
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "lastProbeTime": None,
            "lastTransitionTime": self.core.now(),
            "reason": "Unschedulable",
            "message": message,
        }
        self.set_status("pods", key, {**status, "conditions": [*others, condition]})


def _tolerated(taint: Mapping[str, Any], tolerations: Iterable[Mapping[str, Any]]) -> bool:
    for one in tolerations:
        if one.get("effect") not in (None, "", taint["effect"]):
            continue
        if one.get("operator") == "Exists":
            if one.get("key") in (None, "", taint["key"]):
                return True
        elif one.get("key") == taint["key"] and one.get("value", "") == taint.get("value", ""):
            return True
    return False


def _affinity(spec: Mapping[str, Any], labels: Mapping[str, str], name: str) -> bool:
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if not required:
        return True
    for term in required.get("nodeSelectorTerms") or ():
        fields = all(
            (name in f.get("values", ())) == (f["operator"] == "In") for f in term.get("matchFields") or ()
        )
        if fields and selects({"matchExpressions": term.get("matchExpressions") or []}, labels):
            return True
    return False
