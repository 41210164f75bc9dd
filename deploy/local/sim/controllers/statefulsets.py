"""StatefulSets (ordered or parallel) and DaemonSets: pods by ordinal and by node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from deploy.local.sim.controllers import pods
from deploy.local.sim.controllers.manager import Controller
from deploy.local.sim.controllers.replicasets import owner_keys
from deploy.local.sim.store import Change, Collection
from deploy.local.sim.types import Object

_SETS, _DAEMONS, _REVISIONS = "statefulsets.apps", "daemonsets.apps", "controllerrevisions.apps"
_HASH = "controller-revision-hash"


class _Revisioned(Controller):
    """Shared: a ControllerRevision for the current template."""

    def _revision(self, owner: Object, kind: str) -> str:
        """The name of the revision that holds the owner's template; made when it is new."""
        meta = owner["metadata"]
        digest = pods.template_hash(owner["spec"]["template"])
        name = f"{meta['name']}-{digest}"
        if self.state(_REVISIONS, f"{meta['namespace']}/{name}") is None:
            known = self.manager.owners.dependents(meta["uid"], _REVISIONS)
            body = {
                "apiVersion": "apps/v1",
                "kind": "ControllerRevision",
                "metadata": {
                    "name": name,
                    "labels": {**(owner["spec"]["template"]["metadata"].get("labels") or {}), _HASH: digest},
                    "ownerReferences": [pods.owner_reference(kind, "apps/v1", owner)],
                },
                "data": {"spec": {"template": {**owner["spec"]["template"], "$patch": "replace"}}},
                "revision": len(known) + 1,
            }
            self.make(_REVISIONS, meta["namespace"], body)
        return name


class StatefulSets(_Revisioned):
    watches = (_SETS, "pods")

    def keys_of(self, collection: Collection, change: Change) -> Iterable[str]:
        if collection.name == _SETS:
            return () if change.kind == "DELETED" else (change.state.key,)
        return owner_keys(change, "StatefulSet")

    def reconcile(self, key: str) -> None:
        owner = self.find(_SETS, key)
        if owner is None:
            return
        revision = ""
        if not owner["metadata"].get("deletionTimestamp"):
            revision = self._revision(owner, "StatefulSet")
            self._step(owner, revision)
        self._report(key, owner, revision)

    def _step(self, owner: Object, revision: str) -> None:
        """Makes or removes the next pods: one at a time and in order, unless the policy is Parallel."""
        spec, meta = owner["spec"], owner["metadata"]
        mine = pods.owned_pods(self, meta["uid"])
        start = (spec.get("ordinals") or {}).get("start", 0)
        wanted = [f"{meta['name']}-{start + n}" for n in range(spec.get("replicas", 1))]
        parallel = spec.get("podManagementPolicy") == "Parallel"
        have = {pod["metadata"]["name"]: pod for pod in mine.values()}
        for name in wanted:
            pod = have.get(name)
            if pod is None:
                self._make(owner, name, revision)
                if not parallel:
                    return
            elif pods.phase(pod) in ("Failed", "Succeeded"):
                self.remove("pods", f"{meta['namespace']}/{name}")
                return
            elif not parallel and (not pods.is_ready(pod) or pod["metadata"].get("deletionTimestamp")):
                return
        extra = sorted(set(have) - set(wanted), key=_ordinal, reverse=True)
        for name in extra:
            if not have[name]["metadata"].get("deletionTimestamp"):
                self.remove("pods", f"{meta['namespace']}/{name}")
            if not parallel:
                return
        self._update(owner, [have[name] for name in reversed(wanted)], revision)

    def _update(self, owner: Object, ordered: list[Object], revision: str) -> None:
        """Rolling update: the highest ordinal that is of another revision goes, once all above it are ready."""
        strategy = owner["spec"].get("updateStrategy") or {}
        if strategy.get("type") == "OnDelete":
            return
        partition = (strategy.get("rollingUpdate") or {}).get("partition", 0)
        digest = revision.rpartition("-")[2]
        for pod in ordered:
            meta = pod["metadata"]
            if _ordinal(meta["name"]) < partition or meta.get("deletionTimestamp"):
                return
            if (meta.get("labels") or {}).get(_HASH, "").rpartition("-")[2] != digest:
                self.remove("pods", f"{meta['namespace']}/{meta['name']}")
                return
            if not pods.is_ready(pod):
                return

    def _make(self, owner: Object, name: str, revision: str) -> None:
        labels = {
            _HASH: revision,
            "statefulset.kubernetes.io/pod-name": name,
            "apps.kubernetes.io/pod-index": name.rpartition("-")[2],
        }
        pod = pods.from_template(owner, "StatefulSet", "apps/v1", name=name, labels=labels)
        pod["spec"].update(hostname=name)
        if owner["spec"].get("serviceName"):
            pod["spec"]["subdomain"] = owner["spec"]["serviceName"]
        self.make("pods", owner["metadata"]["namespace"], pod)

    def _report(self, key: str, owner: Object, revision: str) -> None:
        mine = [p for p in pods.owned_pods(self, owner["metadata"]["uid"]).values() if pods.is_active(p)]
        old = owner.get("status") or {}
        minimum, now = owner["spec"].get("minReadySeconds", 0), self.core.timers.now()
        updated = [p for p in mine if (p["metadata"].get("labels") or {}).get(_HASH) == revision]
        done = len(updated) == len(mine) == owner["spec"].get("replicas", 1)
        current = revision if done or not old.get("currentRevision") else old["currentRevision"]
        counts = {
            "readyReplicas": sum(1 for p in mine if pods.is_ready(p)),
            "currentReplicas": sum(
                1 for p in mine if (p["metadata"].get("labels") or {}).get(_HASH) == current
            ),
            "updatedReplicas": len(updated),
        }
        status: dict[str, Any] = {
            "observedGeneration": owner["metadata"].get("generation", 1),
            "replicas": len(mine),
            "currentRevision": current,
            "updateRevision": revision or old.get("updateRevision", ""),
            "collisionCount": 0,
            "availableReplicas": sum(1 for p in mine if pods.is_available(p, minimum, now)),
            **{name: value for name, value in counts.items() if value},
        }
        if self.state(_SETS, key) is not None:
            self.set_status(_SETS, key, status)


def _ordinal(name: str) -> int:
    return int(name.rpartition("-")[2])


class DaemonSets(_Revisioned):
    watches = (_DAEMONS, "pods", "nodes")

    def keys_of(self, collection: Collection, change: Change) -> Iterable[str]:
        if collection.name == "nodes":
            return list(self.core.store.collection(_DAEMONS).each())
        if collection.name == _DAEMONS:
            return () if change.kind == "DELETED" else (change.state.key,)
        return owner_keys(change, "DaemonSet")

    def reconcile(self, key: str) -> None:
        owner = self.find(_DAEMONS, key)
        if owner is None:
            return
        selector = owner["spec"]["template"]["spec"].get("nodeSelector") or {}
        nodes = self.core.store.collection("nodes")
        wanted = {name for name in nodes.each() if selector.items() <= nodes.live[name].labels.items()}
        if owner["metadata"].get("deletionTimestamp"):
            self._report(key, owner, wanted, "")
            return
        revision = self._revision(owner, "DaemonSet")
        digest = revision.rpartition("-")[2]
        placed: dict[str, list[str]] = {}
        for pod_key, pod in pods.owned_pods(self, owner["metadata"]["uid"]).items():
            meta = pod["metadata"]
            if meta.get("deletionTimestamp"):
                placed.setdefault(_target(pod), [])
            elif pods.phase(pod) == "Failed" or (meta.get("labels") or {}).get(_HASH) != digest:
                self.remove("pods", pod_key)
                placed.setdefault(_target(pod), [])
            else:
                placed.setdefault(_target(pod), []).append(pod_key)
        for node in sorted(wanted - set(placed)):
            self._make(owner, node, digest)
        for node, keys in placed.items():
            for pod_key in keys if node not in wanted else keys[1:]:
                self.remove("pods", pod_key)
        self._report(key, owner, wanted, digest)

    def _make(self, owner: Object, node: str, digest: str) -> None:
        name = owner["metadata"]["name"]
        pod = pods.from_template(
            owner, "DaemonSet", "apps/v1", generateName=f"{name}-", labels={_HASH: digest}
        )
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        required = {"nodeSelectorTerms": [term]}
        pod["spec"]["affinity"] = {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}
        }
        self.make("pods", owner["metadata"]["namespace"], pod)

    def _report(self, key: str, owner: Object, wanted: set[str], digest: str) -> None:
        mine = [p for p in pods.owned_pods(self, owner["metadata"]["uid"]).values() if pods.is_active(p)]
        here = [p for p in mine if _target(p) in wanted]
        ready = sum(1 for p in here if pods.is_ready(p))
        updated = sum(1 for p in here if (p["metadata"].get("labels") or {}).get(_HASH) == digest)
        status: dict[str, Any] = {
            "currentNumberScheduled": len({_target(p) for p in here}),
            "numberMisscheduled": len(mine) - len(here),
            "desiredNumberScheduled": len(wanted),
            "numberReady": ready,
            "observedGeneration": owner["metadata"].get("generation", 1),
        }
        more = {"updatedNumberScheduled": updated, "numberAvailable": ready,
                "numberUnavailable": len(wanted) - ready}  # fmt: skip
        status.update({name: value for name, value in more.items() if value})
        if self.state(_DAEMONS, key) is not None:
            self.set_status(_DAEMONS, key, status)


def _target(pod: Object) -> str:
    """The node that a DaemonSet's pod is for."""
    affinity = ((pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    for term in affinity.get("nodeSelectorTerms") or ():
        for field in term.get("matchFields") or ():
            return str(field["values"][0])
    return str(pod["spec"].get("nodeName", ""))
