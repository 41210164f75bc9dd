"""ReplicaSets and ReplicationControllers' successor: as many pods as asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from deploy.local.sim.controllers import pods
from deploy.local.sim.controllers.manager import Controller
from deploy.local.sim.controllers.owners import owner_references
from deploy.local.sim.objects import metadata
from deploy.local.sim.store import Change, Collection
from deploy.local.sim.types import Object
from deploy.local.sim.validation import selects

_SETS = "replicasets.apps"


class ReplicaSets(Controller):
    watches = (_SETS, "pods")

    def keys_of(self, collection: Collection, change: Change) -> Iterable[str]:
        if collection.name == _SETS:
            return () if change.kind == "DELETED" else (change.state.key,)
        return owner_keys(change, "ReplicaSet")

    def reconcile(self, key: str) -> None:
        owner = self.find(_SETS, key)
        if owner is None:
            return
        mine = self._adopted(owner)
        if not owner["metadata"].get("deletionTimestamp"):
            self._scale(owner, mine)
            mine = pods.owned_pods(self, owner["metadata"]["uid"])
        self._report(key, owner, mine)

    def _adopted(self, owner: Object) -> dict[str, Object]:
        """Its pods; ownerless ones that its selector takes become its own."""
        mine = pods.owned_pods(self, owner["metadata"]["uid"])
        if owner["metadata"].get("deletionTimestamp") or (owner.get("status") or {}).get(
            "observedGeneration"
        ):
            return mine
        collection = self.core.store.collection("pods")
        for key in list(collection.each(f"{owner['metadata']['namespace']}/")):
            state = collection.live[key]
            if not selects(owner["spec"]["selector"], state.labels) or owner_references(state):
                continue
            reference = pods.owner_reference("ReplicaSet", "apps/v1", owner)
            self.change("pods", key, lambda pod: _owned(pod, reference))  # noqa: B023 - called at once
        return pods.owned_pods(self, owner["metadata"]["uid"])

    def _scale(self, owner: Object, mine: dict[str, Object]) -> None:
        active = {key: pod for key, pod in mine.items() if pods.is_active(pod)}
        wanted = owner["spec"].get("replicas", 0)
        name, namespace = owner["metadata"]["name"], owner["metadata"]["namespace"]
        for _ in range(wanted - len(active)):
            pod = pods.from_template(owner, "ReplicaSet", "apps/v1", generateName=f"{name}-")
            if self.make("pods", namespace, pod) is None:
                break
        if len(active) > wanted:
            ordered = sorted(active, key=lambda key: _rank(active[key]))
            for key in ordered[: len(active) - wanted]:
                self.remove("pods", key)

    def _report(self, key: str, owner: Object, mine: dict[str, Object]) -> None:
        active = [pod for pod in mine.values() if pods.is_active(pod)]
        minimum, now = owner["spec"].get("minReadySeconds", 0), self.core.timers.now()
        ready = sum(1 for pod in active if pods.is_ready(pod))
        available = sum(1 for pod in active if pods.is_available(pod, minimum, now))
        labels = (owner["spec"]["template"].get("metadata") or {}).get("labels") or {}
        labelled = sum(1 for pod in active if labels.items() <= (pod["metadata"].get("labels") or {}).items())
        status: dict[str, Any] = {"replicas": len(active)}
        for name, value in (
            ("fullyLabeledReplicas", labelled), ("readyReplicas", ready), ("availableReplicas", available),
        ):  # fmt: skip
            if value:
                status[name] = value
        status["observedGeneration"] = owner["metadata"].get("generation", 1)
        if self.state(_SETS, key) is not None:
            self.set_status(_SETS, key, status)
        if minimum and available < ready:
            self.later(minimum, key)


def owner_keys(change: Change, kind: str) -> Iterable[str]:
    """Keys of the controllers of this kind that own the pod now or did before."""
    states = [change.state] if change.before is None else [change.state, change.before]
    found = set()
    for state in states:
        if b'"ownerReferences":' in state.raw:
            key = pods.owner_key(metadata(state), kind, state.namespace)
            if key:
                found.add(key)
    return found


def _owned(pod: Object, reference: dict[str, Any]) -> Object:
    pod["metadata"]["ownerReferences"] = [reference]
    return pod


def _rank(pod: Object) -> tuple[bool, bool, bool, str]:
    """Who goes first when there are too many: unplaced, pending, not ready, youngest."""
    placed = bool(pod["spec"].get("nodeName"))
    age = "".join(chr(255 - ord(c)) for c in pod["metadata"]["creationTimestamp"])
    return (placed, pods.phase(pod) == "Running", pods.is_ready(pod), age)
