"""Deployments: a ReplicaSet per template, rolled over within maxSurge and maxUnavailable.

On a host, where ReplicaSets get their pods elsewhere, it is the one workload controller that runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from deploy.local.sim.controllers import pods
from deploy.local.sim.controllers.manager import Controller
from deploy.local.sim.controllers.replicasets import owner_keys
from deploy.local.sim.store import Change, Collection
from deploy.local.sim.types import Object

_DEPLOYMENTS, _SETS = "deployments.apps", "replicasets.apps"
_HASH = "pod-template-hash"
_REVISION = "deployment.kubernetes.io/revision"
_DESIRED, _MOST = "deployment.kubernetes.io/desired-replicas", "deployment.kubernetes.io/max-replicas"
_PRIVATE = (_REVISION, _DESIRED, _MOST, "kubectl.kubernetes.io/last-applied-configuration")


class Deployments(Controller):
    watches = (_DEPLOYMENTS, _SETS)

    def keys_of(self, collection: Collection, change: Change) -> Iterable[str]:
        if collection.name == _DEPLOYMENTS:
            return () if change.kind == "DELETED" else (change.state.key,)
        return owner_keys(change, "Deployment")

    def reconcile(self, key: str) -> None:
        deployment = self.find(_DEPLOYMENTS, key)
        if deployment is None:
            return
        sets = self._sets(deployment)
        if deployment["metadata"].get("deletionTimestamp"):
            self._report(key, deployment, sets)
            return
        if not deployment["spec"].get("paused"):
            self._new_set(key, deployment, sets)
            sets = self._sets(deployment)
            self._roll(deployment, sets)
            sets = self._sets(deployment)
            self._forget_old(deployment, sets)
        else:
            self._scale_paused(deployment, sets)
        self._report(key, deployment, self._sets(deployment))

    def _sets(self, deployment: Object) -> dict[str, Object]:
        found = {}
        for _, key in self.manager.owners.dependents(deployment["metadata"]["uid"], _SETS):
            one = self.find(_SETS, key)
            if one is not None:
                found[key] = one
        return found

    def _current(self, deployment: Object, sets: dict[str, Object]) -> str | None:
        wanted = pods._sorted(deployment["spec"]["template"])
        for key, one in sets.items():
            template = deepcopy(one["spec"]["template"])
            (template["metadata"].get("labels") or {}).pop(_HASH, None)
            if pods._sorted(template) == wanted:
                return key
        return None

    def _new_set(self, key: str, deployment: Object, sets: dict[str, Object]) -> None:
        current = self._current(deployment, sets)
        revisions = [int((s["metadata"].get("annotations") or {}).get(_REVISION, 0)) for s in sets.values()]
        newest = max(revisions, default=0)
        if current is None:
            revision = newest + 1
            self._create_set(deployment, sets, revision)
        else:
            annotations = sets[current]["metadata"].get("annotations") or {}
            revision = int(annotations.get(_REVISION, 0))
            if revision < newest or not revision:
                revision = newest + 1
                self._annotate(_SETS, current, {_REVISION: str(revision)})
        self._annotate(_DEPLOYMENTS, key, {_REVISION: str(revision)})

    def _annotate(self, plural: str, key: str, annotations: dict[str, str]) -> None:
        def change(obj: Object) -> Object:
            meta = obj["metadata"]
            meta["annotations"] = {**(meta.get("annotations") or {}), **annotations}
            return obj

        self.change(plural, key, change)

    def _create_set(self, deployment: Object, sets: dict[str, Object], revision: int) -> None:
        meta, spec = deployment["metadata"], deployment["spec"]
        digest = pods.template_hash(spec["template"])
        labels = {**(spec["template"]["metadata"].get("labels") or {}), _HASH: digest}
        template = deepcopy(spec["template"])
        template["metadata"]["labels"] = labels
        selector = deepcopy(spec["selector"])
        selector.setdefault("matchLabels", {})[_HASH] = digest
        kept = {k: v for k, v in (meta.get("annotations") or {}).items() if k not in _PRIVATE}
        wanted = spec.get("replicas", 1)
        total = sum(one["spec"].get("replicas", 0) for one in sets.values())
        surge, _ = _bounds(spec)
        replicas = max(0, min(wanted, wanted + surge - total))
        if spec["strategy"]["type"] == "Recreate" and total:
            replicas = 0
        annotations = {**kept, _REVISION: str(revision), _DESIRED: str(wanted), _MOST: str(wanted + surge)}
        body: Object = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {
                "name": f"{meta['name']}-{digest}",
                "labels": labels,
                "annotations": annotations,
                "ownerReferences": [pods.owner_reference("Deployment", "apps/v1", deployment)],
            },
            "spec": {"replicas": replicas, "selector": selector, "template": template},
        }
        if spec.get("minReadySeconds"):
            body["spec"]["minReadySeconds"] = spec["minReadySeconds"]
        self.make(_SETS, meta["namespace"], body)

    def _resize(self, deployment: Object, key: str, one: Object, replicas: int) -> None:
        wanted = deployment["spec"].get("replicas", 1)
        surge, _ = _bounds(deployment["spec"])
        annotations = {_DESIRED: str(wanted), _MOST: str(wanted + surge)}
        have = one["metadata"].get("annotations") or {}
        if one["spec"].get("replicas", 0) == replicas and annotations.items() <= have.items():
            return

        def change(obj: Object) -> Object:
            obj["spec"]["replicas"] = replicas
            obj["metadata"]["annotations"] = {**(obj["metadata"].get("annotations") or {}), **annotations}
            return obj

        self.change(_SETS, key, change)

    def _scale_paused(self, deployment: Object, sets: dict[str, Object]) -> None:
        """A paused Deployment still follows its replica count, with the set it has."""
        active = [key for key, one in sets.items() if one["spec"].get("replicas", 0)]
        if len(active) == 1:
            self._resize(deployment, active[0], sets[active[0]], deployment["spec"].get("replicas", 1))

    def _roll(self, deployment: Object, sets: dict[str, Object]) -> None:
        spec = deployment["spec"]
        wanted = spec.get("replicas", 1)
        current = self._current(deployment, sets)
        if current is None:
            return
        old = {key: one for key, one in sets.items() if key != current and one["spec"].get("replicas", 0)}
        if not old:
            self._resize(deployment, current, sets[current], wanted)
            return
        if spec["strategy"]["type"] == "Recreate":
            for key, one in old.items():
                self._resize(deployment, key, one, 0)
            return
        surge, unavailable = _bounds(spec)
        total = sum(one["spec"].get("replicas", 0) for one in sets.values())
        have = sets[current]["spec"].get("replicas", 0)
        grown = min(wanted, have + max(0, wanted + surge - total))
        if have > wanted:
            grown = wanted
        self._resize(deployment, current, sets[current], grown)
        self._shrink_old(deployment, old, sets[current], grown, wanted - unavailable)

    def _shrink_old(
        self, deployment: Object, old: dict[str, Object], current: Object, grown: int, minimum: int
    ) -> None:
        """Takes from the old sets what the new one's readiness allows: pods that are not ready first."""
        ready_new = min(grown, (current.get("status") or {}).get("availableReplicas", 0))
        ready_old = sum((one.get("status") or {}).get("availableReplicas", 0) for one in old.values())
        for key, one in sorted(old.items()):
            replicas = one["spec"].get("replicas", 0)
            idle = replicas - min(replicas, (one.get("status") or {}).get("availableReplicas", 0))
            spare = max(0, min(replicas - idle, ready_new + ready_old - minimum))
            ready_old -= spare
            self._resize(deployment, key, one, replicas - idle - spare)

    def _forget_old(self, deployment: Object, sets: dict[str, Object]) -> None:
        limit = deployment["spec"].get("revisionHistoryLimit", 10)
        current = self._current(deployment, sets)
        idle = [
            key
            for key, one in sets.items()
            if key != current
            and not one["spec"].get("replicas", 0)
            and not (one.get("status") or {}).get("replicas", 0)
            and not one["metadata"].get("deletionTimestamp")
        ]
        idle.sort(key=lambda key: int((sets[key]["metadata"].get("annotations") or {}).get(_REVISION, 0)))
        for key in idle[: max(0, len(idle) - limit)]:
            self.remove(_SETS, key)

    def _report(self, key: str, deployment: Object, sets: dict[str, Object]) -> None:
        current = self._current(deployment, sets)
        totals = dict.fromkeys(("replicas", "readyReplicas", "availableReplicas"), 0)
        for one in sets.values():
            for name in totals:
                totals[name] += (one.get("status") or {}).get(name, 0)
        updated = (sets[current].get("status") or {}).get("replicas", 0) if current else 0
        wanted = deployment["spec"].get("replicas", 1)
        status: dict[str, Any] = {"observedGeneration": deployment["metadata"].get("generation", 1)}
        missing = max(0, max(wanted, totals["replicas"]) - totals["availableReplicas"])
        values = {**totals, "updatedReplicas": updated, "unavailableReplicas": missing}
        for name in (
            "replicas", "updatedReplicas", "readyReplicas", "availableReplicas", "unavailableReplicas",
        ):  # fmt: skip
            if values[name]:
                status[name] = values[name]
        status["conditions"] = self._conditions(deployment, current, values, wanted)
        if self.state(_DEPLOYMENTS, key) is not None:
            self.set_status(_DEPLOYMENTS, key, status)

    def _conditions(
        self, deployment: Object, current: str | None, values: dict[str, int], wanted: int
    ) -> list[dict[str, Any]]:
        _, unavailable = _bounds(deployment["spec"])
        set_name = (current or "").rpartition("/")[2]
        available = values["availableReplicas"] >= wanted - unavailable
        done = values["updatedReplicas"] == wanted == values["replicas"] == values["availableReplicas"]
        found = [
            self._condition(
                deployment, "Available", available,
                "MinimumReplicasAvailable" if available else "MinimumReplicasUnavailable",
                "Deployment has minimum availability." if available
                else "Deployment does not have minimum availability.",
            ),
        ]  # fmt: skip
        if current:
            reason = "NewReplicaSetAvailable" if done else "ReplicaSetUpdated"
            verb = "has successfully progressed" if done else "is progressing"
            text = f'ReplicaSet "{set_name}" {verb}.'
            found.append(self._condition(deployment, "Progressing", True, reason, text))
        return found

    def _condition(
        self, deployment: Object, kind: str, is_so: bool, reason: str, message: str
    ) -> dict[str, Any]:
        before: dict[str, Any] = next(
            (c for c in (deployment.get("status") or {}).get("conditions") or () if c["type"] == kind), {}
        )
        status, now = "True" if is_so else "False", self.core.now()
        same = before.get("status") == status
        unchanged = same and before.get("reason") == reason and before.get("message") == message
        return {
            "type": kind,
            "status": status,
            "lastUpdateTime": before["lastUpdateTime"] if unchanged else now,
            "lastTransitionTime": before["lastTransitionTime"] if same else now,
            "reason": reason,
            "message": message,
        }


def _bounds(spec: Object) -> tuple[int, int]:
    """(maxSurge, maxUnavailable) as counts; never both 0."""
    wanted = spec.get("replicas", 1)
    rolling = (spec.get("strategy") or {}).get("rollingUpdate")
    if not rolling:
        return 0, wanted
    surge = _count(rolling.get("maxSurge", "25%"), wanted, up=True)
    unavailable = _count(rolling.get("maxUnavailable", "25%"), wanted, up=False)
    return (surge, unavailable) if surge or unavailable else (0, 1)


def _count(value: int | str, total: int, *, up: bool) -> int:
    if isinstance(value, int):
        return value
    share = int(value.rstrip("%")) * total / 100
    return math.ceil(share) if up else math.floor(share)
